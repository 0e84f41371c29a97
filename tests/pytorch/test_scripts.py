"""Whole training scripts, as people write them, and short ones.

On the CPU the bytes after each statement are those of PyTorch's allocator; on a GPU each op is in the table of kernels.
"""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.pytorch import small_scripts
from tests.pytorch.marks import Mark, Script, check_bytes
from tinygrad_mem.memory.log import Kind
from tinygrad_mem.pytorch import predict


class Residual(nn.Module):
    def __init__(self, width: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, out, 3, padding=1))
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(time, out))
        self.second = nn.Sequential(nn.GroupNorm(8, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + self.time(time)[:, :, None, None]) + self.skip(x)


class UNet(nn.Module):
    """Two resolutions, attention at the lower one, and a class that may be left out."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        time = 4 * width
        self.width, self.time = width, nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.classes = nn.Embedding(classes + 1, time)
        self.begin, self.down = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.upper, self.lower = Residual(width, width, time), Residual(width, 2 * width, time)
        self.norm, self.qkv, self.project = nn.GroupNorm(8, 2 * width), *(nn.Conv1d(2 * width, n * width, 1) for n in (6, 2))
        self.middle, self.up = Residual(2 * width, 2 * width, time), nn.Upsample(scale_factor=2, mode="nearest")
        self.back = Residual(4 * width, width, time)
        self.end = nn.Sequential(nn.GroupNorm(8, 2 * width), nn.SiLU(), nn.Conv2d(2 * width, 3, 3, padding=1))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x).flatten(2)).chunk(3, 1)
        q, k, v = (each.unflatten(1, (4, -1)).transpose(-1, -2) for each in heads)
        return x + self.project(F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).flatten(1, 2)).view(x.shape)

    def forward(self, x: torch.Tensor, steps: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        angle = steps[:, None].float() * torch.exp(torch.arange(half, device=x.device) * -(math.log(10_000) / (half - 1)))
        time = self.time(torch.cat((angle.sin(), angle.cos()), -1)) + self.classes(label)
        upper = self.upper(self.begin(x), time)
        lower = self.attend(self.lower(self.down(upper), time))
        up = self.up(self.back(torch.cat([self.middle(lower, time), lower], 1), time))
        return self.end(torch.cat([up, upper], 1))


@torch.no_grad()
def averaged(average: nn.Module, model: nn.Module) -> None:
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 0.001)


def diffusion(mark: Mark, device: str) -> Any:
    """A U-Net with an average of its weights, trained without classes at times; samples are guided by them."""
    beta = torch.linspace(1e-4, 0.02, 50, device=device)
    kept = torch.cumprod(1 - beta, 0)
    model = UNet().to(device)
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x, label = torch.randn(4, 3, 16, 16, device=device), torch.randint(0, 10, (4,), device=device)
        label = torch.where(torch.rand(4, device=device) < 0.1, torch.full_like(label, 10), label)
        steps, noise = torch.randint(0, 50, (4,), device=device), torch.randn_like(x)
        share = kept[steps].view(-1, 1, 1, 1)
        mark()
        loss = F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, steps, label), noise)
        mark()
        optimizer.zero_grad()
        loss.backward()
        mark()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mark()
        averaged(average, model)
        mark()
    with torch.no_grad():
        x, label = torch.randn(2, 3, 16, 16, device=device), torch.arange(2, device=device)
        for step in (49, 48):
            steps = torch.full((4,), step, device=device)
            guided, plain = average(torch.cat([x, x]), steps, torch.cat([label, torch.full_like(label, 10)])).chunk(2)
            mark()
            x = (x - beta[step] / (1 - kept[step]).sqrt() * (plain + 3 * (guided - plain))) / (1 - beta[step]).sqrt()
            mark()
    return model, average, optimizer, (x.clamp(-1, 1) * 127.5 + 127.5).to(torch.uint8).cpu()


def segmentation(mark: Mark, device: str) -> Any:
    """Skips, two heads, channels last, autocast with a scaler, a loss that leaves pixels out, and a confusion matrix."""
    convolved = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))  # noqa: E731
    first, second, back = convolved(3, 8), convolved(8, 16), convolved(24, 8)
    head, other = nn.Conv2d(8, 4, 1), nn.Conv2d(16, 4, 1)
    model: Any = nn.ModuleList([first, second, back, head, other]).to(device)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3, momentum=0.9, foreach=True)
    scaler, matrix = torch.amp.GradScaler(device), torch.zeros(4, 4, dtype=torch.long, device=device)
    for _ in range(2):
        x = torch.rand(2, 3, 22, 18).to(device, memory_format=torch.channels_last)
        y = torch.randint(0, 5, (2, 22, 18)).to(device)
        y[y == 4] = 255
        mark()
        with torch.autocast(device, torch.bfloat16):
            upper = first(x)
            lower = second(F.max_pool2d(upper, 2))
            grown = F.interpolate(lower, size=upper.shape[2:], mode="bilinear", align_corners=True)
            made = head(back(torch.cat([upper, grown], 1)))
            loss = F.cross_entropy(made, y, ignore_index=255)
            loss = loss + 0.4 * F.cross_entropy(F.interpolate(other(lower), x.shape[2:], mode="bicubic"), y, ignore_index=255)
        mark()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        mark()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        mark()
        with torch.no_grad():
            matrix += torch.bincount((y.clamp(max=3) * 4 + made.argmax(1)).flatten(), minlength=16).view(4, 4)
            mark()
    return model, optimizer, matrix.diag() / (matrix.sum(0) + matrix.sum(1) - matrix.diag()).clamp(min=1)


def reinforcement(mark: Mark, device: str) -> Any:
    """Proximal policy optimization: a buffer of rollouts, advantages by a mask, actions of a beta distribution, epochs."""
    body = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)), nn.Tanh())
    policy, value = nn.Linear(64, 4), nn.Linear(64, 1)
    model = nn.ModuleList([body, policy, value]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-5)

    def act(seen: torch.Tensor) -> tuple[torch.distributions.Beta, torch.Tensor]:
        hidden = body(seen)
        alpha, beta = (1 + F.softplus(policy(hidden))).chunk(2, -1)
        return torch.distributions.Beta(alpha, beta), value(hidden).squeeze(-1)

    for _ in range(2):
        seen, did = torch.zeros(4, 4, 6, device=device), torch.zeros(4, 4, 2, device=device)
        logs, rewards, values = (torch.zeros(4, 4, device=device) for _ in range(3))
        for step in range(4):
            seen[step] = torch.randn(4, 6, device=device)
            with torch.no_grad():
                chosen, values[step] = act(seen[step])
                did[step] = chosen.sample()
                logs[step] = chosen.log_prob(did[step]).sum(-1)
            rewards[step] = torch.tensor([0.5] * 4).to(device)
            mark()
        ended = torch.zeros(4, 4, dtype=torch.bool, device=device)
        seen[ended] = torch.zeros(6, device=device)
        mark()
        gained = rewards + 0.99 * values.roll(-1, 0) * ~ended - values
        flat = [each.flatten(0, 1) for each in (seen, did, logs, gained, gained + values)]
        for places in torch.randperm(16, device=device).split(8):
            x, action, log, gain, target = (each[places] for each in flat)
            chosen, valued = act(x)
            mark()
            ratio = (chosen.log_prob(action).sum(-1) - log).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            loss = torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean() + F.mse_loss(valued, target)
            loss = loss - 0.01 * chosen.entropy().mean() + 0.1 * chosen.rsample().mean()
            mark()
            optimizer.zero_grad()
            loss.backward()
            mark()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            mark()
    return model, optimizer


SCRIPTS: list[Script] = [diffusion, segmentation, reinforcement, *small_scripts.SCRIPTS]


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """No collection at moments that differ."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_after_each_statement_the_bytes_are_pytorchs(script: Script):
    assert check_bytes(script) == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # forward mode calls it, once a process
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_on_a_gpu_each_op_is_in_the_table_of_kernels_and_a_second_prediction_is_the_first(script: Script):
    tracks = [predict(lambda: script(lambda: None, "cuda")) for _ in range(2)]
    assert [why for why in tracks[0].unknown if "not in the table" in why] == []
    sizes = [[event.rounded for event in track.log if event.kind in (Kind.MALLOC, Kind.FREE)] for track in tracks]
    assert sizes[0] == sizes[1]
    assert tracks[0].unknown == tracks[1].unknown
