"""True, network by network: what is kept for backward, layer by layer, is a table that a reader can check by hand.

A table has one row for each array that is kept beside the network's input and its parameters: the layer in whose forward it
was made, what it is and who keeps it, its bytes. The rules behind all of them:

- a linear layer and a convolution keep their input (for the weight's gradient), which is mostly what the layer before made;
- ReLU, ReLU6, Sigmoid and Tanh keep their result, GELU and SiLU their input;
- a norm keeps its input and two numbers a channel (a row, a group); max pooling one byte for each of its results;
- sums, means, flattening, joining, average pooling and dropout (its mask is drawn again) keep nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.models.lenet import LeNet
from tinygrad_mem.models.resnet import resnet20
from tinygrad_mem.models.vgg import CifarVGG

Table = list[tuple[str, str, int]]


def f(*shape: int) -> int:
    """Bytes of an array of float32."""
    return 4 * prod(shape)


def u8(*shape: int) -> int:
    """Bytes of an array of single bytes."""
    return prod(shape)


def r(count: int) -> int:
    """Bytes of ``count`` in the pool."""
    return -(-count // 512) * 512


@dataclass(frozen=True)
class Network:
    """A network, the shape of its input, and its table."""

    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    kept: Callable[[], Table]
    integer: bool = False


class Words(nn.Module):
    """An embedding, the mean over words, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.table(x).mean(1))


class Twice(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.w(self.w(x))


class Block(nn.Module):
    """x + the rest of x, which a norm begins."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.act(self.up(self.norm(x))))


class UNet(nn.Module):
    """One step down, one step up, and the upper level joined to what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.pool, self.deep = nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.leave, self.head = (
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.Conv2d(8, 1, 1),
        )
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        level = self.act(self.enter(x))
        deep = self.act(self.deep(self.pool(level)))
        return self.head(self.act(self.leave(tm.cat([level, self.up(deep)], 1))))


def conv_norm_relu(conv: str, norm: str, n: int, channels: int, side: int) -> Table:
    """A convolution makes its norm's input; ReLU, and in a block the sum before it, write into what the norm has made."""
    plane = f(n, channels, side, side)
    statistics: Table = [(norm, "mean", f(channels)), (norm, "1 / std", f(channels))]
    return [(conv, "the norm's x", plane), *statistics, (norm, "ReLU's y, the next convolution's x", plane)]


def vgg16_kept(n: int = 4) -> Table:
    """32 x 32, batch 4: five levels."""
    table, number, side = [], 0, 32
    for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            conv, norm = f"CifarVGG.features.{number}", f"CifarVGG.features.{number + 1}"
            table += conv_norm_relu(conv, norm, n, channels, side)
            number += 3
        side //= 2
        table += [(f"CifarVGG.features.{number}", "the pool's index", u8(n, channels, side, side))]
        table += [(f"CifarVGG.features.{number}", "the next layer's x", f(n, channels, side, side))]
        number += 1
    return table


def resnet20_kept(n: int = 4) -> Table:
    """32 x 32, batch 4: three stages of three blocks; one that halves the image has a convolution and a norm beside it."""
    table = conv_norm_relu("CifarResNet.conv1", "CifarResNet.bn1", n, 16, 32)
    for stage, (channels, side) in enumerate(((16, 32), (32, 16), (64, 8)), 1):
        for number in range(3):
            block = f"CifarResNet.layer{stage}.{number}"
            for i in (1, 2):
                table += conv_norm_relu(f"{block}.conv{i}", f"{block}.bn{i}", n, channels, side)
            if number == 0 and stage > 1:
                table += conv_norm_relu(f"{block}.shortcut.0", f"{block}.shortcut.1", n, channels, side)[:3]
    return [*table, ("CifarResNet", "the mean, the head's x", f(n, 64))]


NETWORKS = [
    Network("one Linear: its input and its weight, which are no activations", lambda: nn.Linear(64, 8), (32, 64), list),
    Network(
        "MLP",
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
        (32, 784),
        lambda: [
            ("Sequential.1", "y, the next layer's x", f(32, 1024)),
            ("Sequential.3", "y, the next layer's x", f(32, 512)),
        ],
    ),
    Network(
        "Sigmoid and Tanh",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.Sigmoid(), nn.Linear(100, 50), nn.Tanh()),
        (16, 64),
        lambda: [("Sequential.1", "y, the next layer's x", f(16, 100)), ("Sequential.3", "y", f(16, 50))],
    ),
    Network(
        "residual MLP, two blocks",
        lambda: nn.Sequential(Block(), Block()),
        (32, 48),
        lambda: [
            *[(f"Sequential.{i}.norm", what, f(32)) for i in (0, 1) for what in ("mean", "1 / std")],
            *[(f"Sequential.{i}.norm", "y, the x of up", f(32, 48)) for i in (0, 1)],
            *[(f"Sequential.{i}.up", "GELU's x", f(32, 96)) for i in (0, 1)],
            *[(f"Sequential.{i}.act", "the x of down", f(32, 96)) for i in (0, 1)],
            ("Sequential.0", "the sum, the second norm's x", f(32, 48)),
        ],
    ),
    Network(
        "dropout",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.Dropout(0.5), nn.Linear(100, 10), nn.Dropout(0.2)),
        (16, 64),
        lambda: [("Sequential.1", "the next layer's x; of the last dropout nothing", f(16, 100))],
    ),
    Network(
        "embedding and linear",
        Words,
        (8, 20),
        lambda: [("Words", "the mean, which is the head's x", f(8, 32))],
        integer=True,
    ),
    Network("tied weights", Twice, (32, 64), lambda: [("Twice.w", "the first product, the second's x", f(32, 64))]),
    Network(
        "LeNet",
        LeNet,
        (16, 1, 28, 28),
        lambda: [
            ("LeNet", "ReLU's y, of all four", f(16, 6, 28, 28) + r(f(16, 16, 10, 10)) + r(f(16, 120)) + r(f(16, 84))),
            ("LeNet", "the first pool's index", u8(16, 6, 14, 14)),
            ("LeNet", "the second convolution's x", f(16, 6, 14, 14)),
            ("LeNet", "the second pool's index", u8(16, 16, 5, 5)),
            ("LeNet", "the first linear layer's x", f(16, 16, 5, 5)),
        ],
    ),
    Network("VGG16-BN", CifarVGG, (4, 3, 32, 32), vgg16_kept),
    Network("ResNet-20", resnet20, (4, 3, 32, 32), resnet20_kept),
    Network(
        "autoencoder of convolutions",
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2, stride=2), nn.Sigmoid()),
        ),
        (4, 1, 16, 16),
        lambda: [
            ("Sequential.1", "y, the next layer's x", f(4, 4, 8, 8)),
            ("Sequential.3", "y, the next layer's x", f(4, 8, 4, 4)),
            ("Sequential.5", "y, the next layer's x", f(4, 4, 8, 8)),
            ("Sequential.7", "y", f(4, 1, 16, 16)),
        ],
    ),
    Network(
        "U-Net: what is joined",
        UNet,
        (2, 1, 16, 16),
        lambda: [
            ("UNet.act", "y of enter", f(2, 8, 16, 16)),
            ("UNet.pool", "index", u8(2, 8, 8, 8)),
            ("UNet.pool", "y, the x of deep", f(2, 8, 8, 8)),
            ("UNet.act", "y of deep, the x of up", f(2, 16, 8, 8)),
            ("UNet", "both joined, the x of leave", f(2, 16, 16, 16)),
            ("UNet.act", "y of leave, the head's x", f(2, 8, 16, 16)),
        ],
    ),
    Network(
        "signals: Conv1d, BatchNorm1d, pooling",
        lambda: nn.Sequential(
            *(nn.Conv1d(4, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2)),
            *(nn.Conv1d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 3)),
        ),
        (4, 4, 32),
        lambda: [
            ("Sequential.0", "the norm's x", f(4, 8, 32)),
            *[("Sequential.1", what, f(8)) for what in ("mean", "1 / std")],
            ("Sequential.2", "y", f(4, 8, 32)),
            ("Sequential.3", "index", u8(4, 8, 16)),
            ("Sequential.3", "y, the next layer's x", f(4, 8, 16)),
            ("Sequential.5", "y", f(4, 16, 16)),
            ("Sequential.6", "the last layer's x", f(4, 16)),
        ],
    ),
    Network(
        "depthwise and pointwise",
        lambda: nn.Sequential(
            *(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6()),
            *(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
        ),
        (2, 8, 12, 12),
        lambda: [
            ("Sequential.0", "the norm's x", f(2, 8, 12, 12)),
            *[("Sequential.1", what, f(8)) for what in ("mean", "1 / std")],
            ("Sequential.2", "y, the pointwise convolution's x", f(2, 8, 12, 12)),
            ("Sequential.3", "the norm's x", f(2, 16, 12, 12)),
            *[("Sequential.4", what, f(16)) for what in ("mean", "1 / std")],
            ("Sequential.5", "y", f(2, 16, 12, 12)),
            ("Sequential.6", "the last layer's x", f(2, 16)),
        ],
    ),
    Network(
        "groups: Conv2d, GroupNorm, SiLU",
        lambda: nn.Sequential(
            *(nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(4, 8), nn.SiLU(), nn.Flatten(), nn.Linear(8 * 10 * 10, 5))
        ),
        (2, 8, 12, 12),
        lambda: [
            ("Sequential.0", "the norm's x", f(2, 8, 10, 10)),
            *[("Sequential.1", what, f(2, 4)) for what in ("mean", "1 / std")],
            ("Sequential.1", "SiLU's x", f(2, 8, 10, 10)),
            ("Sequential.2", "the last layer's x", f(2, 8, 10, 10)),
        ],
    ),
]


@pytest.mark.usefixtures("only_memory")
@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name.partition(":")[0])
def test_activations_of_a_network_are_its_table(network: Network, where: str):
    with tm.device(where), memory.track(where) as track:
        model = network.build()
        x = tm.zeros(network.shape, dtype=tm.int64) if network.integer else tm.ones(network.shape)
        out = model(x)
        track.mark("forward")
    expected: Counter[str] = Counter()
    for module, _, size in network.kept():
        expected[module] += r(size)
    blocks = [block for block in track.live("forward") if block.category is Category.ACTIVATION]
    found: Counter[str] = Counter()
    for block in blocks:
        found[block.module] += block.rounded
    assert found == expected
    at = track.by_category("forward")
    assert at.get(Category.ACTIVATION, 0) == sum(expected.values())
    assert at[Category.INPUT] == r(x.nbytes)
    assert at[Category.PARAMETER] == sum(r(p.nbytes) for p in model.parameters())
    del out, blocks
    again = memory.saved(model, x).total
    known = r if where == "cuda" else int  # CuPy keeps rounded sizes only
    own = known(x.nbytes) + sum(known(t.nbytes) for t in (*model.parameters(), *model.buffers()))
    kept = sum(known(size) for _, _, size in network.kept())
    assert kept <= again <= kept + own


def test_there_are_more_than_twelve_networks():
    assert len(NETWORKS) > 12
