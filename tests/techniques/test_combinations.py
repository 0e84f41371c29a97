"""Techniques together: their bytes, their numbers, and predictions that are exact."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.techniques import training
from tinygrad_mem import nn
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import (
    TABLE,
    InPlaceABN,
    ReversibleBlock,
    ReversibleSequential,
    accumulate,
    compressed,
    optimizer_in_backward,
    save_on_cpu,
)
from tinygrad_mem.utils.checkpoint import checkpoint

WIDTH = 48


def network(reversible: bool, inplace: bool) -> nn.Module:
    def part() -> nn.Module:
        norm = [InPlaceABN(WIDTH)] if inplace else [nn.BatchNorm1d(WIDTH), nn.LeakyReLU()]
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), *norm, nn.Dropout(0.2))

    blocks = [ReversibleBlock(part(), part()) for _ in range(2)]
    return (ReversibleSequential if reversible else nn.Sequential)(*blocks)


def train(use: frozenset[str], losses: list | None = None) -> nn.Module:
    """Two steps with any set of techniques; the last layer and its loss are one function."""
    tm.manual_seed(3)
    model = nn.Sequential(network("reversible" in use, "inplace" in use), nn.Linear(2 * WIDTH, 32))
    head = nn.Parameter(tm.randn(100, 32) / 6)
    parameters = [*model.parameters(), head]
    optimizer = tm.optim.Adam(parameters, lr=0.01)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=8, class_chunk_size=32) if "chunking" in use else None
    hooks = [make for name, make in (("compression", compressed), ("offload", save_on_cpu)) if name in use]
    around = (*hooks, contextlib.nullcontext)[0]
    if "in_backward" in use:
        optimizer_in_backward(optimizer)
    window = accumulate(model, optimizer, 2) if "accumulation" in use else None
    parts = 1 if window is None else 2
    for _ in range(2):
        for x, y in zip(tm.randn(24, 2 * WIDTH).chunk(parts), tm.randint(0, 100, (24,)).chunk(parts), strict=True):
            with around():
                hidden = checkpoint(model, x) if "recompute" in use else model(x)
                loss = F.linear_cross_entropy(hidden, head, y, options=options)
            if losses is not None:
                losses.append(loss.item())
            if window is not None:
                window.backward(loss, weight=len(y))
            else:
                loss.backward()
                if "in_backward" not in use:
                    optimizer.step()
                    optimizer.zero_grad()
            del loss, hidden
    return nn.Sequential(model, nn.ParameterList([head]))


BUILT = [name for name, row in TABLE.items() if not row.tests]
"""The techniques that ``train`` knows how to use: those of this folder."""
APART = {frozenset((row.name, other)) for row in TABLE.values() for other in row.not_with}
PAIRS = [frozenset(pair) for pair in itertools.combinations(BUILT, 2) if frozenset(pair) not in APART]
MANY = [frozenset(BUILT) - {"accumulation"}, frozenset(BUILT) - {"in_backward"}]
EXACT = {"in_backward", "offload", "recompute"}


@pytest.mark.parametrize("use", [frozenset(), *PAIRS, *MANY], ids=lambda use: "+".join(sorted(use)) or "none")
def test_any_two_and_all_that_go_together_are_predicted(use: frozenset[str]):
    training.assert_predicted(lambda: train(use))


def final(use: frozenset[str]) -> list:
    losses: list = []
    model = train(use, losses)
    return [losses, *[t.detach().numpy().copy() for t in (*model.parameters(), *model.buffers())]]


@pytest.mark.parametrize(
    "use", [{"in_backward", "offload"}, {"offload", "recompute"}, EXACT], ids=lambda u: "+".join(sorted(u))
)
def test_those_that_are_exact_are_exact_together(use: set):
    training.assert_identical(final(frozenset(use)), final(frozenset()))


def test_all_at_once_train_as_a_plain_step_does():
    plain, ours = final(frozenset()), final(frozenset(BUILT) - {"accumulation", "compression"})
    for a, b in zip(ours[0], plain[0], strict=True):
        assert a == pytest.approx(b, rel=1e-2)


def test_together_they_need_less_than_each():
    def peak(use: Any) -> int:
        return tm.memory.predict(train, frozenset(use)).peak

    assert peak(["offload", "in_backward"]) <= min(peak(["offload"]), peak(["in_backward"]))
    assert peak(["offload", "accumulation"]) <= peak(["accumulation"])
