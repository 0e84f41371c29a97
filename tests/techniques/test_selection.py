"""Selection: the same loss and gradients as over all positions, and logits of the labelled ones only, to the byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import DataDependenceError, ShapeError
from tinygrad_mem.models import bert
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import labelled_positions, select_labelled

WIDTH, VOCABULARY = 16, 500


@given(share=st.floats(0.05, 1.0), batch=st.integers(1, 3), tokens=st.integers(1, 9), seed=st.integers(0, 99))
def test_loss_and_gradients_equal_those_of_all_positions(share: float, batch: int, tokens: int, seed: int):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((batch, tokens)) < share, rng.integers(0, 7, (batch, tokens)), -100)
    labels[0, 0] = 3
    weight, hidden = rng.standard_normal((7, 4)), rng.standard_normal((batch, tokens, 4))
    results = []
    for select in (False, True):
        w, x, y = tm.tensor(weight, requires_grad=True), tm.tensor(hidden, requires_grad=True), tm.tensor(labels)
        rows, wanted = select_labelled(x, y) if select else (x.flatten(0, 1), y.flatten())
        loss = F.cross_entropy(F.linear(rows, w), wanted)
        loss.backward()
        results.append([values(t) for t in (loss, w.grad, x.grad)])
    for all_of_them, selected in zip(*results, strict=True):
        np.testing.assert_allclose(selected, all_of_them, rtol=1e-12, atol=1e-14)


def kept(select: bool, count: int, tokens: int = 64) -> int:
    """Bytes that a loss over ``count`` labels of 2 x ``tokens`` positions keeps for backward."""
    labels = np.full(2 * tokens, -100)
    labels[:count] = np.arange(count)
    hidden = tm.ones(2, tokens, WIDTH, requires_grad=True)
    head, wanted = nn.Linear(WIDTH, VOCABULARY, bias=False), tm.tensor(labels.reshape(2, tokens))

    def run() -> Any:
        x, y = select_labelled(hidden, wanted) if select else (hidden.flatten(0, 1), wanted.flatten())
        return F.cross_entropy(head(x), y)

    rows = memory.saved(run)
    return sum(row.bytes for row in rows if row.first and row.name not in ("weight", "norm"))


@pytest.mark.parametrize("count", [1, 19, 128])
def test_bytes(count: int):
    positions, logits, target, statistics = 2 * 64, 4 * VOCABULARY, 8, 4
    whole = positions * (4 * WIDTH + logits + target + statistics)
    selected = count * (4 * WIDTH + logits + target + statistics + 8)  # and the index of each
    assert kept(False, count) == whole
    assert kept(True, count) == selected


def test_peak_of_a_step_falls_with_the_share():
    def step(select: bool) -> None:
        labels = np.full((2, 64), -100)
        labels[:, ::7] = 1
        hidden, head = tm.ones(2, 64, WIDTH, requires_grad=True), nn.Linear(WIDTH, VOCABULARY, bias=False)
        wanted, places = tm.tensor(labels), tm.tensor(np.flatnonzero(labels != -100))
        x, y = select_labelled(hidden, wanted, positions=places) if select else (hidden.flatten(0, 1), wanted.flatten())
        F.cross_entropy(head(x), y).backward()

    peaks = [memory.predict(step, select).peak for select in (False, True)]
    assert 0.2 * peaks[0] < peaks[1] < 0.45 * peaks[0]


def test_of_the_big_networks():
    """BERT's own 15 % of 2 x 128 positions: 39 rows of logits instead of 256, each of 30,522 numbers."""
    places, row = np.arange(0, 256, 7)[:39], 30522 * 4

    def step(select: bool) -> None:
        model = bert.bert("bert-tiny")
        tokens, at = tm.zeros(2, 128, dtype=tm.int64), tm.tensor(places)
        logits = model(tokens, positions=at if select else None).reshape(-1, 30522)
        wanted = tm.zeros(len(places) if select else 256, dtype=tm.int64)
        F.cross_entropy(logits, wanted).backward()

    whole, selected = (memory.predict(step, select).peak for select in (False, True))
    saved = (256 - 39) * row  # the logits, and their gradient in their place or beside them
    assert saved < whole - selected < 2.2 * saved


def test_as_pytorch():
    """The loss over all positions with ignore_index, in PyTorch."""
    rng = np.random.default_rng(3)
    labels = np.where(rng.random((3, 8)) < 0.3, rng.integers(0, 7, (3, 8)), -100)
    weight, hidden = rng.standard_normal((7, 4)), rng.standard_normal((3, 8, 4))
    x, w = tm.tensor(hidden, requires_grad=True), tm.tensor(weight)
    rows, wanted = select_labelled(x, tm.tensor(labels))
    F.cross_entropy(F.linear(rows, w), wanted).backward()
    z = torch.tensor(hidden, requires_grad=True)
    logits = torch.nn.functional.linear(z, torch.tensor(weight)).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, torch.tensor(labels).flatten()).backward()
    np.testing.assert_allclose(values(x.grad), z.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_positions():
    labels = tm.tensor([[-100, 2, -100], [1, -100, 0]])
    assert labelled_positions(labels).tolist() == [1, 3, 5]
    assert labelled_positions(labels, ignore_index=2).tolist() == [0, 2, 3, 4, 5]
    rows, wanted = select_labelled(tm.arange(6.0).view(2, 3, 1), labels)
    assert rows.flatten().tolist() == [1, 3, 5]
    assert wanted.tolist() == [2, 1, 0]


def test_refused():
    with pytest.raises(ShapeError, match=r"one for each row of hidden: hidden \[2, 3, 4\], labels int64 \[2, 4\]"):
        select_labelled(tm.ones(2, 3, 4), tm.zeros(2, 4, dtype=tm.int64))
    with pytest.raises(ShapeError, match="labels are whole numbers"):
        select_labelled(tm.ones(2, 3, 4), tm.zeros(2, 3))
    with pytest.raises(DataDependenceError, match="make the positions where the labels are made"):
        select_labelled(tm.ones(2, 3, device="meta"), tm.ones(2, dtype=tm.int64, device="meta"))
