"""Reversible blocks: equal to ordinary ones within the rounding of the way back, and a peak that does not know depth."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.errors import ArgumentError, ShapeError
from tinygrad_mem.techniques import ReversibleBlock, ReversibleSequential

PARTS = {
    "linear": lambda w: nn.Sequential(nn.Linear(w, w), nn.Tanh()),
    "norm": lambda w: nn.Sequential(nn.Linear(w, w), nn.BatchNorm1d(w), nn.ReLU(inplace=True)),
    "dropout": lambda w: nn.Sequential(nn.Linear(w, w), nn.Dropout(0.4), nn.GELU()),
    "layer norm": lambda w: nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w)),
    "no parameters": lambda w: nn.Sigmoid(),
}


def blocks(names: list[str], width: int, *, tied: bool = False) -> list[ReversibleBlock]:
    tm.manual_seed(2)
    parts = [PARTS[name](width) for name in names]
    made = [ReversibleBlock(f, g) for f, g in zip(parts[::2], parts[1::2], strict=True)]
    return made * 2 if tied else made


@given(st.lists(st.tuples(*[st.sampled_from(sorted(PARTS))] * 2), min_size=1, max_size=4), st.integers(1, 6), st.booleans())
@settings(max_examples=examples(40))
def test_equal_to_ordinary_blocks(pairs: list, width: int, tied: bool):
    """In float64: outputs, statistics and generators bit for bit, gradients to 1e-9."""
    names = [name for pair in pairs for name in pair]
    rng = np.random.default_rng(0)
    x, target = rng.standard_normal((6, 2 * width)), tm.tensor(rng.standard_normal((6, 2 * width)))
    found = []
    for reversible in (False, True):
        made = blocks(names, width, tied=tied)
        model = (ReversibleSequential if reversible else nn.Sequential)(*made).double()
        tm.manual_seed(5)
        leaf = tm.tensor(x, requires_grad=True)
        y = model(leaf * 1.0)
        (y * target).sum().backward()
        exact = [y.detach().numpy(), *[b.numpy() for b in model.buffers()], np.asarray(device("cpu").generator.state)]
        close = [leaf.grad, *[p.grad for p in model.parameters()]]
        found.append((exact, [None if g is None else g.numpy() for g in close]))
    training.assert_identical(found[1][0], found[0][0])
    for a, b in zip(found[1][1], found[0][1], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)


def test_gradients_by_name_inputs_without_gradient_and_no_grad():
    model = ReversibleSequential(*blocks(["linear", "norm"], 3))
    y = model(tm.ones(4, 6))
    weight = model.blocks[0].f[0].weight
    (g,) = tm.autograd.grad(y.sum(), [weight])
    assert g.shape == weight.shape
    assert weight.grad is None
    with tm.no_grad():
        assert model(tm.ones(4, 6)).grad_fn is None
    weight.requires_grad_(False)
    model(tm.ones(4, 6)).sum().backward()
    assert weight.grad is None
    assert model.blocks[0].g[0].weight.grad is not None


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 1e-8, 1e-4), ("float16", 1e-4, 0.3)])
def test_drift_of_the_way_back(dtype: str, least: float, most: float):
    """The input of 100 blocks, found again from their output: what the docstring says of it is measured."""
    tm.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()).to(getattr(tm, dtype)) for _ in range(200)]
    model = ReversibleSequential(*[ReversibleBlock(f, g) for f, g in zip(parts[::2], parts[1::2], strict=True)])
    x = tm.randn(8, 32).to(getattr(tm, dtype))
    with tm.no_grad():
        left, right = model(x).chunk(2, 1)
        for block in reversed(list(model.blocks)):
            right = right - block.g(left)
            left = left - block.f(right)
    drift = float(np.abs(tm.cat([left, right], 1).numpy().astype(np.float64) - x.numpy()).max() / np.abs(x.numpy()).max())
    assert least <= drift <= most, drift


# --- bytes

WIDTH, BATCH = 32, 256


def part() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def run(depth: int, reversible: bool) -> None:
    made = [ReversibleBlock(part(), part()) for _ in range(depth)]
    model = (ReversibleSequential if reversible else nn.Sequential)(*made)
    model(tm.ones(BATCH, 2 * WIDTH)).sum().backward()


def test_the_peaks_slope_over_depth_is_zero():
    """But for parameters and their gradients, to the byte, on meta and on the cpu; ordinary blocks keep all."""
    parameters = 2 * (WIDTH * WIDTH * 4 + 512)  # of a block
    peaks = {d: training.assert_predicted(lambda d=d: run(d, True)).peak for d in (2, 5, 20)}
    assert peaks[5] - peaks[2] == 3 * 2 * parameters
    assert peaks[20] - peaks[5] == 15 * 2 * parameters
    plain = {d: memory.predict(run, d, False).peak for d in (5, 20)}
    half = BATCH * WIDTH * 4
    assert plain[20] - plain[5] >= 15 * (4 * half + parameters), "two inputs and two outputs of each block's parts"


def test_one_block_tied_many_times_has_a_slope_of_exactly_zero():
    def tied(depth: int) -> None:
        block = ReversibleBlock(part(), part())
        ReversibleSequential(*[block] * depth)(tm.ones(BATCH, 2 * WIDTH)).sum().backward()

    found = {memory.predict(tied, depth).peak for depth in (3, 10, 40)}
    assert len(found) == 1


def test_bytes_of_the_big_networks():
    """A ResNet of 100 blocks at 32 x 32, in channels as the CIFAR networks have: saved bytes by number of blocks."""

    def saved(reversible: bool, depth: int) -> int:
        found: list[int] = []

        def resnet() -> None:
            def conv() -> nn.Module:
                return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())

            made = [ReversibleBlock(conv(), conv()) for _ in range(depth)]
            y = (ReversibleSequential if reversible else nn.Sequential)(*made)(tm.randn(8, 32, 32, 32)).sum()
            found.append(sum(training.saved_storages(y).values()))
            y.backward()

        memory.predict(resnet)
        return found[0]

    half = 8 * 16 * 32 * 32 * 4
    assert saved(True, 100) == saved(True, 1) == 2 * half
    assert saved(False, 100) >= 100 * 4 * half


def test_never_above_pytorch_without_the_technique_and_far_below_for_many_blocks():
    """PyTorch has no such layer: ordinary residual blocks of its own are the bound."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            make = torch.nn
            self.f = make.Sequential(make.Linear(WIDTH, WIDTH), make.Tanh())
            self.g = make.Sequential(make.Linear(WIDTH, WIDTH), make.Tanh())

        def forward(self, x: Any) -> Any:
            x1, x2 = x.chunk(2, 1)
            y1 = x1 + self.f(x2)
            return torch.cat([y1, x2 + self.g(y1)], 1)

    def theirs() -> Any:
        model = torch.nn.Sequential(*[Block() for _ in range(20)])
        model(torch.ones(BATCH, 2 * WIDTH)).sum().backward()
        return model

    bound, ours = pytorch_peak(theirs), training.requested(memory.predict(run, 20, True))
    assert 0.05 * bound <= ours <= 0.3 * bound, (ours, bound)


def test_nothing_is_left_behind():
    pool = device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        run(4, True)
        assert pool.used_bytes() == before
    finally:
        gc.enable()


# --- bad input


def test_bad_input():
    with pytest.raises(ArgumentError, match="expected ReversibleBlocks, found none"):
        ReversibleSequential()
    with pytest.raises(ArgumentError, match="expected ReversibleBlocks, found Linear"):
        ReversibleSequential(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"different dimensions: \[1, 0\]"):
        ReversibleSequential(ReversibleBlock(part(), part()), ReversibleBlock(part(), part(), dim=0))
    model = ReversibleSequential(ReversibleBlock(part(), nn.Linear(WIDTH, 3)))
    with pytest.raises(ShapeError, match=r"dimension 1 of shape \[2, 3\] cannot be halved"):
        model(tm.ones(2, 3))
    with pytest.raises(ShapeError, match=r"Linear made shape \[2, 3\] of \[2, 32\]; f and g must keep the shape"):
        model(tm.ones(2, 2 * WIDTH))
