"""What other engines got wrong about lifetimes, gradients' owners and pools, asked of the tracker."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.networks import WORKLOADS
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.errors import GraphError
from tinygrad_mem.memory import Category

MIB = 1 << 20


def r(count: int) -> int:
    """Bytes of ``count`` in the pool."""
    return -(-count // 512) * 512


@contextmanager
def no_collector() -> Iterator[None]:
    """Memory falls when the last reference goes, or not at all."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# --- after a step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS[:4], ids=lambda w: w.name)
def test_after_a_step_only_parameters_gradients_and_state_are_left(workload: Any):
    """And the collector finds nothing that is ours: no cycle was made."""
    with no_collector(), memory.track("meta") as track, tm.device("meta"):
        memory.mark("start")
        step = workload.build(tm, "meta")
        step()
        step()
        left = track.by_category("end")
        older = track.by_category("start").get(Category.UNTRACKED, 0)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        ours = [type(thing).__name__ for thing in gc.garbage if type(thing).__module__.startswith("tinygrad_mem")]
    parameters = sum(r(p.nbytes) for p in step.model.parameters())
    moments = 2 if workload.name == "MLP" else 1
    assert left.pop(Category.UNTRACKED, 0) == older
    assert left.pop(Category.BUFFER, 0) == sum(r(b.nbytes) for b in step.model.buffers())
    assert left == {
        Category.PARAMETER: parameters,
        Category.GRADIENT: parameters,
        Category.OPTIMIZER_STATE: moments * parameters,
        Category.INPUT: r(step.x.nbytes) + r(step.y.nbytes),
    }
    assert ours == []


def test_a_frozen_network_keeps_nothing_but_its_heads_input():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 12 * 12, 5))
    for p in model[:5].parameters():
        p.requires_grad_(False)
    with memory.track() as track:
        x = tm.ones(4, 3, 16, 16)
        out = model(x)
        frozen = track.by_category("end").get(Category.ACTIVATION, 0)
        del out
        for p in model.parameters():
            p.requires_grad_(True)
        kept = model(x)
        trained = track.by_category("end").get(Category.ACTIVATION, 0)
    assert frozen == r(4 * 8 * 12 * 12 * 4)
    assert trained == r(4 * 8 * 14 * 14 * 4) + frozen
    assert kept.shape == (4, 5)


# --- losses ---------------------------------------------------------------------------------------------------------------


def test_summing_losses_keeps_every_graph_and_their_numbers_none():
    """The advice to write ``total += loss.item()``."""
    w, x = tm.ones(1000, requires_grad=True), tm.ones(1000)

    def kept(add: Callable[[Any], Any]) -> list[int]:
        used, total = [], 0.0
        for _ in range(4):
            total = total + add(((w * x) ** 2).sum())
            used.append(device("cpu").pool.used_bytes())
        return [after - before for before, after in pairwise(used)]

    graph = r(4000)  # w * x, which the square keeps (x ** 2 keeps x alone); w and x are there anyway
    growth = kept(lambda loss: loss)
    assert all(graph <= more <= graph + 2 * 512 for more in growth), growth
    assert kept(lambda loss: loss.item()) == [0, 0, 0]
    assert kept(lambda loss: loss.detach()) == [0, 0, 0]


def test_deleting_the_loss_before_backward_frees_what_was_kept():
    w = tm.ones(1000, requires_grad=True)
    with no_collector(), memory.track() as track:
        loss = (w.exp() * w.tanh()).sum()
        assert track.by_category("end")[Category.ACTIVATION] >= 2 * 4096
        del loss
        assert Category.ACTIVATION not in track.by_category("end")


# --- gradients ------------------------------------------------------------------------------------------------------------


def test_a_gradient_has_one_owner_and_can_be_written():
    """A clipping that scaled a gradient twice, or failed on a broadcast view, was somebody's bug."""
    a, b = tm.ones(100, requires_grad=True), tm.ones(100, requires_grad=True)
    with memory.track() as track:
        (a + b).sum().backward()
        blocks = [block for block in track.live("end") if block.category is Category.GRADIENT and block.requested == 400]
    assert len(blocks) == 2
    for t in (a, b):
        assert t.grad is not None
        assert t.grad.array.flags.writeable
        assert t.grad.array.strides == (4,)
    nn.utils.clip_grad_norm_([a, b], 1.0)
    for t in (a, b):
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), np.full(100, 1 / 200**0.5, np.float32), rtol=1e-5)


def test_when_gradients_are_dropped_sets_the_peak():
    """``zero_grad()`` after the forward instead of before it: a whole set of gradients lies under the activations."""

    def peak(early: bool) -> int:
        with memory.track("meta") as track, tm.device("meta"):
            model = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500))
            rule = tm.optim.SGD(model.parameters(), lr=0.1)
            x = tm.ones(4000, 500)
            for number in range(2):
                if number:
                    track.mark("second")
                if early:
                    rule.zero_grad()
                loss = model(x).sum()
                if not early:
                    track.mark("forward")
                    rule.zero_grad()
                loss.backward()
                rule.step()
                del loss
            found = track.at_peak(since=track.marks[-1 if early else -2])
            return found.used

    gradients = 2 * (r(500 * 500 * 4) + r(500 * 4))
    late, early = peak(False), peak(True)
    assert 0 < late - early <= gradients


# --- in place -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [lambda b: b.add_(1), lambda b: b[2:4].zero_(), lambda b: b.view(5, 2).t().mul_(2)])
def test_a_write_through_any_view_is_seen_and_both_ops_are_named(write: Callable[[Any], Any]):
    a = tm.ones(10, requires_grad=True)
    b = a * 2
    c = b * b
    write(b)
    with pytest.raises(
        GraphError, match=r"Mul saved 'x' at version 0; (Add|Fill|Zero|Mul)\w* has written to it since, it is at version 1 now"
    ):
        c.sum().backward()


# --- pools ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["cpu", "meta", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_with_a_limit_what_is_cached_goes_before_anything_is_refused(where: str):
    """Out of memory with nothing in use: four pieces are cached that hold no block, and one larger than each is asked for."""
    gc.collect()
    pool = device(where).pool
    pool.free_all_blocks()
    limit = pool.used_bytes() + 4 * MIB + pool.free_bytes()
    with memory.limit(limit, where), tm.device(where), memory.track(where) as track:
        pieces = [tm.empty(MIB // 4) for _ in range(4)]
        del pieces
        assert pool.free_bytes() >= 4 * MIB
        beyond = pool.total_bytes() + 4 * MIB - limit  # less than 4 MiB if pieces lay in segments that earlier tests left
        whole = tm.empty(MIB)
    assert whole.nbytes == 4 * MIB
    released = [event.rounded for event in track.log if event.kind is memory.Kind.RELEASE]
    assert sum(released) >= beyond > 0


def test_requested_rounded_used_and_reserved_are_four_numbers():
    gc.collect()
    pool = device("meta").pool
    pool.free_all_blocks()
    with memory.track("meta") as track, tm.device("meta"):
        before = track.pool("end")
        x = tm.empty(100)  # 400 bytes
        y = tm.empty(1000)
        views = [x[i:] for i in range(5)]
        del y
        after = track.pool("end")
    assert after.requested - before.requested == 400
    assert after.rounded - before.rounded == after.used - before.used == 512
    assert after.reserved - before.reserved == 512 + 4096
    assert len(views) == 5


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_copied_module_has_parameters_and_buffers(again: Callable[[nn.Module], nn.Module]):
    model = nn.Sequential(nn.Linear(30, 30), nn.BatchNorm1d(1000))
    with memory.track() as track:
        memory.mark("start")
        other = again(model)
    start, end = track.by_category("start"), track.by_category("end")
    made = {category: size - start.get(category, 0) for category, size in end.items() if size != start.get(category)}
    assert made == {
        Category.PARAMETER: sum(r(p.nbytes) for p in other.parameters()),
        Category.BUFFER: sum(r(b.nbytes) for b in other.buffers()),
    }
