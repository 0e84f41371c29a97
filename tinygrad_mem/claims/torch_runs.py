"""Programs of PyTorch that claims are about, predicted for a GPU with PyTorch's own autograd. Importing this needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..pytorch import Prediction, predict

GPU = "cuda"
LAYERS, WIDTH = 64, 256
T = TypeVar("T")


def returned(program: Callable[[], T]) -> T:
    """The result of a program that is predicted."""
    found: list[T] = []
    predict(lambda: found.append(program()))
    return found[0]


def _square_layers(foreach: bool) -> None:
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False, device=GPU) for _ in range(LAYERS))
    optimizer = torch.optim.Adam(layers.parameters(), foreach=foreach)
    for _ in range(2):
        for parameter in layers.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad()


def foreach() -> float:
    """The memory that Adam's step on lists takes more at its peak than the other, in times of the parameters."""
    peaks = [predict(_square_layers, foreach).peak for foreach in (True, False)]
    return (peaks[0] - peaks[1]) / (4 * LAYERS * WIDTH * WIDTH)


def workspace() -> int:
    """The bytes that cuBLAS takes for its first product."""

    def run() -> int:
        x = torch.empty(256, 256, device=GPU)
        before = torch.cuda.memory_allocated()
        y = x @ x
        return torch.cuda.memory_allocated() - 4 * y.numel() - before

    return returned(run)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with all its scores."""
    return F.dropout((q @ k.mT).softmax(-1), 0.1) @ v


class MegatronLayer(nn.Module):
    """A layer of GPT-3, as Megatron writes it: scores in memory, dropout after softmax and after both halves, in float16."""

    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        options: dict[str, Any] = {"device": GPU, "dtype": torch.float16}
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, **options), nn.LayerNorm(width, **options)
        self.qkv, self.out = nn.Linear(width, 3 * width, **options), nn.Linear(width, width, **options)
        self.up, self.down = nn.Linear(width, 4 * width, **options), nn.Linear(4 * width, width, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = checkpoint(attend, q, k, v, use_reentrant=False) if self.recompute else attend(q, k, v)
        y = y.transpose(1, 2).reshape(b, s, h)
        x = x + F.dropout(self.out(y), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


@cache
def layer(recompute: bool = False, width: int = 12_288, heads: int = 96, tokens: int = 2048) -> int:
    """The bytes that the layer keeps for the backward of one sequence, beside its parameters and its result."""

    def run() -> int:
        model = MegatronLayer(width, heads, recompute)
        x = torch.empty(1, tokens, width, device=GPU, dtype=torch.float16, requires_grad=True)
        model(x)  # what libraries take at first
        before = torch.cuda.memory_allocated()
        y = model(x)
        return torch.cuda.memory_allocated() - before - y.nbytes + x.nbytes

    return returned(run)


def _with_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.empty(*q.shape[:2], q.shape[1], device=GPU, dtype=q.dtype)
    return F.dropout(torch.baddbmm(scores, q, k.mT, beta=0, alpha=0.125).softmax(-1), 0.1) @ v


def _without_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], dropout_p=0.1)[0]


def attention(tokens: int, heads: int = 32) -> float:
    """The peak of attention that is written out, forward and backward, over that of PyTorch's own."""

    def run(how: Callable[..., torch.Tensor]) -> None:
        q, k, v = (torch.empty(heads, tokens, 64, device=GPU, dtype=torch.float16, requires_grad=True) for _ in range(3))
        y = how(q, k, v)
        y.backward(torch.empty_like(y))

    return predict(run, _with_scores).peak / predict(run, _without_scores).peak


def whole_loss(backward: bool) -> int:
    """The bytes that the head of Gemma 2 and its loss take at their peak, with all logits, beside their inputs."""

    def run() -> int:
        sizes: dict[str, Any] = {"device": GPU, "dtype": torch.bfloat16, "requires_grad": True}
        hidden, weight = torch.empty(8192, 2304, **sizes), torch.empty(256_000, 2304, **sizes)
        targets = torch.zeros(8192, dtype=torch.int64, device=GPU)
        torch.mm(hidden[:1], weight[:1].T)  # what libraries take at first
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        logits = hidden @ weight.T
        logits = torch.tanh(logits / 30.0) * 30.0
        loss = F.cross_entropy(logits.float(), targets)
        del logits
        if backward:
            loss.backward()
        return torch.cuda.max_memory_allocated() - before

    return returned(run)


class ResidualBlock(nn.Module):
    """A block of ResNet-50: three convolutions, a batch norm after each, and a sum."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.down: nn.Module | None = None
        if stride > 1 or channels != 4 * width:
            self.down = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


@cache
def resnet50() -> Prediction:
    """A forward of ResNet-50 with one output on 16 images of 224 x 224, on the CPU; at the end its graph is there."""

    def run() -> None:
        start = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        blocks, channels = [], 64
        for width, number, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(number):
                blocks.append(ResidualBlock(channels, width, stride if i == 0 else 1))
                channels = 4 * width
        model = nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1))
        images = torch.empty(16, 3, 224, 224)
        held.extend((model, images, model(images)))

    held: list[object] = []
    return predict(run, device="cpu")
