"""True: what is kept for backward is what the docstrings say, op by op, and what a formula says, network by network."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat, ours
from tests.ops.cases import CASES
from tinygrad_mem import memory, nn
from tinygrad_mem.memory import Category
from tinygrad_mem.models.lenet import LeNet
from tinygrad_mem.models.resnet import resnet20
from tinygrad_mem.nn import functional as F


def r(count: int) -> int:
    """Bytes of ``count`` in the pool."""
    return -(-count // 512) * 512


# --- op by op -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [c for c in CASES if c.grad], ids=lambda case: case.name)
def test_each_op_keeps_what_its_row_says(case: OpCase):
    inputs = ours([np.asarray(a) for a in case.inputs(np.random.default_rng(3))], "float64")
    results: list = []

    def run(*args: Any) -> Any:
        results.extend(flat(case.run(*args)))
        return results

    rows = memory.saved(run, *inputs)
    formula = case.saved(*[t.array for t in inputs], *[t.array for t in results]) if case.saved else 0
    assert rows.total == formula
    assert all(row.line.startswith("tests/") for row in rows)


# --- network by network ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network, the shape of its input, and the bytes that it keeps beside its input and parameters, piece by piece."""

    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    kept: Callable[[], list[int]]
    integer: bool = False


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x).relu()


class Words(nn.Module):
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


def resnet20_kept() -> list[int]:
    """32 x 32, batch 4. A BatchNorm keeps its input and two numbers a channel (its ReLU, or the sum and its ReLU, keeps y)."""
    kept = []
    for planes, side, blocks in ((16, 32, 3), (32, 16, 3), (64, 8, 3)):
        plane = 4 * planes * side * side * 4
        norms = 2 * blocks + (planes == 16)  # the stem's is one more
        kept += [plane] * (2 * norms)  # the norm's x, and the ReLU's y, which is the next convolution's x
        kept += [planes * 4] * (2 * norms)  # mean and 1/std
    for planes, side in ((32, 16), (64, 8)):  # the two shortcuts that change size: a 1 x 1 convolution and a norm
        kept += [4 * planes * side * side * 4, planes * 4, planes * 4]
    return [*kept, 4 * 64 * 4]  # and the head's x


NETWORKS = [
    Network("one Linear: its input and its weight, which are no activations", lambda: nn.Linear(64, 8), (32, 64), list),
    Network(
        "MLP: each ReLU's y, which is also the next layer's x",
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)),
        (32, 784),
        lambda: [32 * 1024 * 4, 32 * 512 * 4],
    ),
    Network(
        "Sigmoid and Tanh keep y",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.Sigmoid(), nn.Linear(100, 50), nn.Tanh()),
        (16, 64),
        lambda: [16 * 100 * 4, 16 * 50 * 4],
    ),
    Network(
        "GELU keeps its x; its y is the next layer's x",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.GELU(), nn.Linear(100, 10)),
        (16, 64),
        lambda: [16 * 100 * 4, 16 * 100 * 4],
    ),
    Network(
        "BatchNorm keeps x, mean and 1/std",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10)),
        (16, 64),
        lambda: [16 * 100 * 4, 100 * 4, 100 * 4, 16 * 100 * 4],
    ),
    Network(
        "LayerNorm keeps x, and a mean and 1/std a row",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.LayerNorm(100), nn.Linear(100, 10)),
        (16, 64),
        lambda: [16 * 100 * 4, 16 * 4, 16 * 4, 16 * 100 * 4],
    ),
    Network(
        "Dropout keeps two numbers and no mask; its y is the next layer's x",
        lambda: nn.Sequential(nn.Linear(64, 100), nn.Dropout(0.5), nn.Linear(100, 10)),
        (16, 64),
        lambda: [16 * 100 * 4],
    ),
    Network(
        "CNN: ReLU's y, the pool's index in one byte an output, the pool's y as the head's x",
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 64, 10)),
        (4, 3, 16, 16),
        lambda: [4 * 8 * 256 * 4, 4 * 8 * 64, 4 * 8 * 64 * 4],
    ),
    Network("residual: the ReLU's y; a sum keeps nothing", Residual, (32, 64), lambda: [32 * 64 * 4]),
    Network("embedding, mean, head: the mean, which is the head's x", Words, (8, 20), lambda: [8 * 32 * 4], integer=True),
    Network("tied weights: the first product, which is the second's x", Twice, (32, 64), lambda: [32 * 64 * 4]),
    Network(
        "LeNet, batch 16",
        LeNet,
        (16, 1, 28, 28),
        lambda: [
            *(16 * 6 * 28 * 28 * 4, 16 * 6 * 14 * 14, 16 * 6 * 14 * 14 * 4),
            *(16 * 16 * 10 * 10 * 4, 16 * 16 * 5 * 5, 16 * 16 * 5 * 5 * 4),
            *(16 * 120 * 4, 16 * 84 * 4),
        ],
    ),
    Network("ResNet-20, batch 4", resnet20, (4, 3, 32, 32), resnet20_kept),
]


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name.partition(":")[0])
def test_activations_of_a_network_are_the_sum_of_a_formula(network: Network, where: str):
    with tm.device(where), memory.track(where) as track:
        model = network.build()
        x = tm.zeros(network.shape, dtype=tm.int64) if network.integer else tm.ones(network.shape)
        out = model(x)
        track.mark("forward")
    expected = sum(map(r, network.kept()))
    found = track.by_category("forward")
    assert found.get(Category.ACTIVATION, 0) == expected
    assert found[Category.INPUT] == r(x.nbytes)
    assert found[Category.PARAMETER] == sum(r(p.nbytes) for p in model.parameters())
    del out
    assert memory.saved(model, x).total >= sum(network.kept())


def test_there_are_twelve_networks():
    assert len(NETWORKS) >= 12


# --- the listing ----------------------------------------------------------------------------------------------------------


def test_the_listing_says_what_shape_dtype_bytes_shared_and_where():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    x = tm.ones(3, 6)
    text = io.StringIO()
    rows = memory.print_saved(model, x, file=text)
    assert [(row.op, row.name, row.shape, row.dtype, row.bytes, row.module) for row in rows] == [
        ("Linear", "x", (3, 6), "float32", 72, "Sequential.0"),
        ("ReLU", "y", (3, 5), "float32", 60, "Sequential.1"),
        ("Linear", "x", (3, 5), "float32", 60, "Sequential.2"),
        ("Linear", "weight", (2, 5), "float32", 40, "Sequential.2"),
    ]
    assert [row.shared for row in rows] == [("argument 0",), ("Linear.x",), ("ReLU.y",), ("parameter 2.weight",)]
    assert rows.total == 72 + 60 + 40
    lines = text.getvalue().splitlines()
    assert lines[0].split() == ["op", "saves", "shape", "dtype", "bytes", "shared", "with", "module", "line"]
    assert lines[2].split()[:6] == ["ReLU", "y", "[3,", "5]", "float32", "60"]
    assert lines[-1] == "172 bytes (172 B) are kept for backward, shared memory counted once"
    assert all("test_saved.py" in row.line for row in rows)


def test_what_was_let_go_is_not_listed():
    w = tm.ones(4, requires_grad=True)

    def fn() -> Any:
        (w.exp() * 2).sum().backward()
        return w.tanh()

    assert [(row.op, row.name) for row in memory.saved(fn)] == [("Tanh", "y")]
    with tm.no_grad():
        assert memory.saved(lambda: w.exp()) == []


def test_a_view_counts_for_what_it_keeps_alive():
    x = tm.ones(1000, 4, requires_grad=True)
    rows = memory.saved(lambda: (x * 2)[:1].square())
    assert [(row.shape, row.bytes) for row in rows if row.op == "Square"] == [((1, 4), 16_000)]


def test_what_a_hook_packed_is_what_is_listed():
    x = tm.ones(100, requires_grad=True)
    with tm.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        rows = memory.saved(lambda: x.exp())
    assert [(row.op, row.dtype, row.bytes) for row in rows] == [("Exp", "float16", 200)]


def test_cross_entropy_keeps_the_scores_and_two_numbers_a_sample():
    x, target = tm.zeros(64, 10, requires_grad=True), tm.zeros(64, dtype=tm.int64)
    rows = memory.saved(lambda: F.cross_entropy(x, target))
    assert {row.name for row in rows} >= {"x", "target"}
