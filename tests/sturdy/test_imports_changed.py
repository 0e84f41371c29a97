"""Model files in the idiom of published ones run with only their imports changed, and lose what they lose there."""

from __future__ import annotations

import importlib
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"
FILES = {
    "GPT block": """
class Block(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in (q, k, v))
        att = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(k.size(-1))
        att = F.softmax(att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf")), dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(16, 4, 8) for _ in range(2)])
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def loss_of(model, x, y):
    logits = model(y)
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), y[:, 1:].reshape(-1))
""",
    "autoencoder": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(True), nn.Conv2d(6, 9, 3, 2, 1), nn.Tanh())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(9, 6, 3, stride=2, padding=1, output_padding=1), nn.ReLU(True),
            nn.ConvTranspose2d(6, 3, kernel_size=4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))

def loss_of(model, x, y):
    return nn.MSELoss()(model(x), torch.sigmoid(x))
""",
    "U-Net": """
class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.net(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc, self.down = DoubleConv(3, 4), nn.Sequential(nn.MaxPool2d(2), DoubleConv(4, 8))
        self.up, self.conv, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), DoubleConv(8, 4), nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x1 = self.inc(x)
        u = self.up(self.down(x1))
        dy, dx = x1.size()[2] - u.size()[2], x1.size()[3] - u.size()[3]
        u = F.pad(u, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.out(self.conv(torch.cat([x1, u], dim=1)))

def loss_of(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), (x[:, :2] > 0).float())
""",
    "ResNet": """
class BasicBlock(nn.Module):
    expansion = 1
    def __init__(self, cin, planes, stride=1):
        super(BasicBlock, self).__init__()
        self.conv1 = nn.Conv2d(cin, planes, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, kernel_size=3, stride=1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu(out)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(BasicBlock(3, 4), BasicBlock(4, 8, 2))
        self.linear = nn.Linear(8, 11)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        out = F.adaptive_avg_pool2d(self.layers(x), (1, 1))
        return self.linear(torch.flatten(out, 1))

def loss_of(model, x, y):
    output = F.log_softmax(model(x), dim=1)
    return F.nll_loss(output, y[:, 0])
""",
    "mixture of experts": """
class Experts(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.count, self.router = count, nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) / 4)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) / 4)

    def forward(self, x):
        share, chosen = F.softmax(self.router(x), dim=-1).topk(2, dim=-1)
        torch._check(chosen.size(1) == 2, lambda: "two experts a token")
        order = chosen.flatten().argsort(stable=True)
        ends = torch.histc(chosen.float(), bins=self.count, min=0, max=self.count - 1).cumsum(0).to(torch.int32)
        rows = F.silu(F.grouped_mm(x[order // 2], self.up, offs=ends))
        rows = F.grouped_mm(rows, self.down, offs=ends) * share.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x, layout=torch.strided).index_add_(0, order // 2, rows)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.experts, self.head = nn.Conv2d(3, 8, 4, 4), Experts(3, 8), nn.Linear(8, 11)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(tokens + self.experts(tokens.reshape(-1, 8)).view_as(tokens))

def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y[:, :4].flatten())
""",
}
TRAIN = """
def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    losses = []
    model.train()
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(loss_of(model, x, y).item())
    return losses
"""


def run(source: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name.replace(" ", "_"))
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", FILES)
def test_it_trains_as_under_pytorch(name: str, dev: str, reliability: Callable[[str, int], None]):
    reliability("model files that train as under PyTorch", 1)
    source = HEAD + FILES[name] + TRAIN
    ours = source
    for line in HEAD.splitlines()[1:]:
        changed = line.replace("torch", "tinygrad_mem") + (" as torch" if line == "import torch" else "")
        ours = ours.replace(f"{line}\n", f"{changed}\n")
    mine: Any = run(ours, name)
    theirs: Any = run(source, name)
    torch.manual_seed(0)
    other, model = theirs.Net(), mine.Net()
    model.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 8, 8)).astype(np.float32), rng.integers(0, 11, (4, 8))
    found = mine.train(model.to(dev), tm.tensor(x, device=dev), tm.tensor(y, device=dev))
    expected = theirs.train(other, torch.tensor(x), torch.tensor(y))
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


SERIES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = nn.LSTMCell(1, 7), nn.LSTMCell(7, 7), nn.Linear(7, 1)

    def forward(self, x, more=0):
        h, c, h2, c2 = (torch.zeros(x.size(0), 7, dtype=torch.double) for _ in range(4))
        found = []
        for each in x.split(1, dim=1):
            h, c = self.first(each, (h, c))
            h2, c2 = self.second(h, (h2, c2))
            found += [self.out(h2)]
        return torch.cat(found, dim=1)

def train(model, x, y):
    optimizer, losses = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=5), []
    def closure():
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(x), y)
        losses.append(loss.item())
        loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(closure)
    return losses
"""


def test_a_time_series_trains_by_lbfgs_as_under_pytorch(reliability: Callable[[str, int], None]):
    reliability("model files that train as under PyTorch", 1)
    head = HEAD.replace("torch", "tinygrad_mem").replace("import tinygrad_mem\n", "import tinygrad_mem as torch\n")
    mine: Any = run(head + SERIES, "a time series")
    theirs: Any = run(HEAD + SERIES, "a time series")
    torch.manual_seed(0)
    other, model = theirs.Net().double(), mine.Net().double()
    model.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    wave = np.sin(np.arange(14) / 2 + np.arange(3)[:, None])
    found = mine.train(model, tm.tensor(wave[:, :-1]), tm.tensor(wave[:, 1:]))
    expected = theirs.train(other, torch.tensor(wave[:, :-1]), torch.tensor(wave[:, 1:]))
    assert len(found) == len(expected) >= 15
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_what_the_networks_of_transformers_import_can_be_imported():
    root = Path(pytest.importorskip("transformers").__file__).parent
    imports = re.compile(r"^ *from torch((?:\.\w+)*) import (\([^)]*\)|[^\n]+)", re.M)
    wanted: set[tuple[str, str]] = set()
    for path in [*root.glob("models/*/modeling_*.py"), *root.glob("distributed/*_parallel.py"), root / "initialization.py"]:
        for place, names in imports.findall(path.read_text()):
            wanted |= {(place, name) for name in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", names))}
    assert len(wanted) > 30
    missing = []
    for place, name in sorted(wanted):
        try:
            if not hasattr(importlib.import_module(f"tinygrad_mem{place}"), name):
                importlib.import_module(f"tinygrad_mem{place}.{name}")
        except ModuleNotFoundError:
            missing.append((place, name))
    assert [each for each in missing if not each[0].startswith(".onnx")] == []  # exporting a network


def test_rotary_embeddings_in_the_form_that_the_refusal_shows():
    """What published files ask ``polar`` and ``view_as_complex`` for, in real numbers: the same values and gradients."""
    rng = np.random.default_rng(0)
    array, angles = rng.standard_normal((2, 3, 4, 8)), rng.standard_normal((3, 1, 4))

    theirs = torch.tensor(array, requires_grad=True)
    turns = torch.polar(torch.ones(3, 1, 4).double(), torch.tensor(angles))
    turned = torch.view_as_complex(theirs.reshape(2, 3, 4, 4, 2)) * turns
    wanted = torch.view_as_real(turned).flatten(3)
    wanted.sin().sum().backward()

    ours = tm.tensor(array, requires_grad=True)
    for name in ("polar", "view_as_complex", "view_as_real"):
        with pytest.raises(AttributeError, match=r"tensors are real; for rotary embeddings") as refused:
            getattr(tm, name)
        (form,) = re.findall(r"(stack\(.*\)\.flatten\(-2\))", str(refused.value))
        (pair,) = re.findall(r"`(a, b = [^`]*)`", str(refused.value))
        names = {"x": ours, "cos": tm.tensor(angles).cos(), "sin": tm.tensor(angles).sin(), "stack": tm.stack}
        exec(pair, names)
        found = eval(form, names)
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-12)
    found.sin().sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-10)
