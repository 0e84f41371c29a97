"""Bytes of checkpointing: by formula, beside PyTorch's in the same run, predicted, told by the tracker, and gone in the end."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.recompute.test_checkpoint import BLOCKS, cut, nested, network
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import Pool, device, round_up
from tinygrad_mem.memory import Category
from tinygrad_mem.scope import local
from tinygrad_mem.utils.checkpoint import checkpoint, checkpoint_sequential


@contextmanager
def alone(where: str) -> Iterator[Any]:
    """The device with an empty pool, and the collector off."""
    there = device(where)
    gc.collect()
    gc.disable()
    before, there.pool = there.pool, Pool(where, reserve=where == "cpu")
    try:
        with there:
            yield there.pool
    finally:
        there.pool = before
        gc.enable()


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize(("n", "k"), [(16, 4), (16, 1), (16, 16), (12, 3), (100, 10)])
def test_n_equal_layers_in_k_segments(where: str, n: int, k: int):
    """Each layer keeps its result of ``a`` bytes. Beyond the input, the caller's:

    forward: the inputs of the checkpointed segments behind the first, and the results of the last segment, n / k;
    backward: the same inputs, the n / k results of the segment that is recomputed, and a gradient.
    """
    a, length = 4096, n // k
    with alone(where) as pool:
        layers = nn.Sequential(*[nn.Sigmoid() for _ in range(n)])
        x = tm.ones(1024, requires_grad=True)
        base = pool.used_bytes()
        pool.reset_peak()
        loss = checkpoint_sequential(layers, k, x).sum()
        after = pool.used_bytes() - base
        assert after == (max(k - 2, 0) + length) * a + 512
        loss.backward()
        assert pool.peak_used - base == (max(k - 2, 0) + length + 1) * a + 1024
        del loss
        assert pool.used_bytes() - base == a  # the gradient


def test_sqrt_is_the_best_number_of_segments():
    n, peaks = 144, {}
    for k in (1, 4, 9, 12, 16, 36, 144):
        with alone("meta") as pool:
            x = tm.ones(1024, requires_grad=True)
            checkpoint_sequential([nn.Sigmoid() for _ in range(n)], k, x).sum().backward()
            peaks[k] = pool.peak_used
    assert min(peaks, key=peaks.__getitem__) == 12
    assert peaks[12] / 4096 == pytest.approx(2 * 12, abs=3)
    assert peaks[1] / 4096 == pytest.approx(n, abs=3)


def test_a_hundred_linear_layers_in_two_segments():
    """A listing in many lists of tips: half of the activations, whatever the lists say."""
    kept = {}
    for segments in (1, 2):
        with alone("meta") as pool:
            model = nn.Sequential(*[nn.Linear(10, 10) for _ in range(100)])
            x = tm.randn(64, 10)
            base = pool.used_bytes()
            out = checkpoint_sequential(model, segments, x)
            kept[segments] = pool.used_bytes() - base
            del out
    one = round_up(64 * 10 * 4)
    assert kept == {1: 100 * one, 2: 51 * one}  # with the result; the input is the caller's


def both(framework: Any, kind: str) -> tuple[Callable[[], Any], tuple[int, ...]]:
    """A network of either framework, by a function, and the shape of its input."""
    n = framework.nn
    if kind == "linear":
        return (lambda: n.Sequential(*[m for _ in range(12) for m in (n.Linear(128, 128), n.ReLU())])), (512, 128)
    if kind == "norms":
        make = lambda: n.Sequential(*[m for _ in range(8) for m in (n.Linear(64, 64), n.LayerNorm(64), n.GELU())])  # noqa: E731
        return make, (512, 64)
    convs = lambda: n.Sequential(  # noqa: E731
        n.Conv2d(3, 16, 3, padding=1),
        *[m for _ in range(8) for m in (n.Conv2d(16, 16, 3, padding=1), n.BatchNorm2d(16), n.ReLU())],
    )
    return convs, (64, 3, 32, 32)


HOW: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sequential 2": lambda c, m, x: c.checkpoint_sequential(m, 2, x, use_reentrant=False),
    "sequential 5": lambda c, m, x: c.checkpoint_sequential(m, 5, x, use_reentrant=False),
    "whole": lambda c, m, x: c.checkpoint(m, x, use_reentrant=False),
    "nested": lambda c, m, x: c.checkpoint(
        lambda x: m[12:](c.checkpoint(m[6:12], c.checkpoint(m[:6], x, use_reentrant=False), use_reentrant=False)),
        x,
        use_reentrant=False,
    ),
}


@pytest.mark.parametrize("kind", ["linear", "norms", "convs"])
@pytest.mark.parametrize("how", HOW)
def test_never_above_pytorch_with_the_same_technique(kind: str, how: str):
    def step(framework: Any, module: Any) -> Any:
        make, shape = both(framework, kind)
        model, x = make(), framework.zeros(*shape)
        loss = HOW[how](module, model, x).square().mean()
        loss.backward()
        return model, loss

    theirs = pytorch_peak(lambda: step(torch, torch.utils.checkpoint))
    with alone("meta"), memory.track("meta") as track:
        step(tm, tm.utils.checkpoint)
    ours = sum(block.requested for block in track.live("peak"))  # PyTorch's count knows no rounding either
    assert 0.4 * theirs <= ours <= theirs, f"ours {ours:,}, PyTorch {theirs:,}"


@settings(max_examples=examples(6))
@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=6), st.data())
def test_meta_predicts_the_cpu_used_and_reserved(names: list[str], data: Any):
    tree = cut(list(range(len(names))), data.draw, 2)

    def steps() -> None:
        blocks = network(names)
        rule = tm.optim.SGD(nn.Sequential(*blocks).parameters(), lr=0.1) if any(list(b.parameters()) for b in blocks) else None
        for _ in range(2):
            x = tm.randn(64, 6, requires_grad=True)
            nested(blocks, x, tree).square().mean().backward()
            if rule is not None:
                rule.step()
                rule.zero_grad()

    with alone("cpu"):
        with memory.track("cpu") as track:
            steps()
        found = track.peak, track.pool("end").reserved, track.pool("end").used
    predicted = memory.predict(steps)
    assert found == (predicted.peak, predicted.pool("end").reserved, predicted.pool("end").used)


def test_the_tracker_knows_what_is_recomputed():
    with alone("cpu"), memory.track() as track:
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(4)])
        x = tm.randn(256, 64)
        loss = checkpoint_sequential(model, 2, x).square().mean()
        memory.mark("forward")
        loss.backward()
    size = 256 * 64 * 4
    kept = track.by_category("forward")
    assert kept[Category.ACTIVATION] == 3 * size  # the second part's input, and its two results; the first part's is an input
    assert kept[Category.INPUT] == size
    phases = [event.phase for event in track.log]
    assert {"forward", "recompute", "backward"} <= set(phases)
    entered = [e for e in track.log if e.kind is memory.Kind.ENTER and e.phase == "recompute" and e.role == "ACTIVATION"]
    assert {(e.op, e.note) for e in entered} >= {("Linear", "x"), ("Sigmoid", "y")}
    assert all("test_memory.py" in e.line for e in entered)
    assert {e.module for e in entered} >= {"Sequential.0", "Sequential.1"}
    for moment in track.timeline():
        assert sum(moment.by_category.values()) == moment.used
    end = track.by_category("end")
    assert not end.get(Category.ACTIVATION)


def test_print_saved_shows_what_a_segment_keeps():
    model = nn.Sequential(*[nn.Sigmoid() for _ in range(6)])
    x = tm.ones(256, requires_grad=True)
    rows = memory.saved(partial(checkpoint_sequential, model, 3), x)
    assert [(row.op, row.name, row.bytes) for row in rows] == [
        ("Checkpoint", "x", 1024),
        ("Checkpoint", "x", 1024),
        ("Sigmoid", "y", 1024),
        ("Sigmoid", "y", 1024),
    ]
    assert rows[0].shared == ("argument 0",)
    assert rows.total == 4 * 1024


def test_nothing_is_left_and_no_cycle():
    with alone("cpu") as pool:
        blocks = network(["linear", "norm", "tanh", "residual", "dropout"])
        model = nn.Sequential(*blocks)
        x = tm.randn(64, 6)
        base = pool.used_bytes()
        tree = [[0, [1, 2]], [3, 4]]
        out = nested(blocks, x, tree)
        del out  # no backward
        assert pool.used_bytes() == base
        nested(blocks, x, tree).sum().backward()
        model.zero_grad()
        assert pool.used_bytes() == base
        out = nested(blocks, x * 1, tree).sum()
        out.backward(retain_graph=True)
        model.zero_grad()
        assert pool.used_bytes() == base + 2 * round_up(x.nbytes) + 512  # the inputs of both segments, and the sum
        del out
        assert pool.used_bytes() == base
        assert gc.collect() == 0


def test_a_walk_over_a_part_drops_what_it_did_not_use():
    with alone("cpu") as pool:
        x, w = tm.ones(1024, requires_grad=True), tm.ones(1024, requires_grad=True)
        out = checkpoint(lambda x, w: x.sigmoid() * w.sigmoid(), x, w).sum()
        before = pool.used_bytes()
        (gx,) = tm.autograd.grad(out, x, retain_graph=True)
        assert pool.used_bytes() == before + gx.nbytes


def test_what_is_recomputed_goes_as_it_is_used():
    """In the middle of backward only the arrays of the nodes to come are alive."""
    with alone("cpu") as pool:
        x = tm.ones(1024, requires_grad=True)
        seen: list[int] = []

        def f(x: tm.Tensor) -> tm.Tensor:
            for _ in range(8):
                x = x.sigmoid()
                if local.phase != "recompute":
                    handles.append(x)
            return x

        handles: list = []
        out = checkpoint(f, x).sum()
        for h in handles[:8]:
            h.register_hook(lambda g: seen.append(pool.used_bytes()))
        nodes = [h.grad_fn for h in handles[:8]]
        handles.clear()
        out.backward()
        del nodes
    falls = np.diff(seen[1:])  # the first of them comes before the recomputation
    assert (falls <= 0).all()
    assert falls.sum() <= -5 * 4096


def test_a_step_fits_into_a_limit_that_the_plain_one_exceeds():
    def step(segments: int) -> None:
        model = nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(16)])
        checkpoint_sequential(model, segments, tm.ones(1024, 128)).mean().backward()

    with alone("cpu"), memory.limit(8 << 20):
        step(4)
        with pytest.raises(tm.errors.OutOfMemoryError):
            step(1)
