"""Ops that a finalizer, a callback of a weak reference or a handler of a signal runs while a segment runs, or runs again."""

from __future__ import annotations

import itertools
import signal
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import tinygrad_mem as tm
import tinygrad_mem.nn.functional as F
from tinygrad_mem import nn, recompute
from tinygrad_mem.autograd import graph
from tinygrad_mem.autograd.graph import saved_tensors_hooks
from tinygrad_mem.callbacks import callback_depth
from tinygrad_mem.devices import random
from tinygrad_mem.recompute import create_selective_checkpoint_contexts, frame, scheduled, selective
from tinygrad_mem.utils.checkpoint import checkpoint

from ..memory.interrupt import visited


class Visitor:
    """Records ops of the kinds that a segment has, keeps some results, draws random numbers, trains with a checkpoint."""

    def __init__(self) -> None:
        self.w = tm.tensor([[0.5, 2.0], [1.0, -3.0]], requires_grad=True)
        self.kept: list = []
        self.turns = itertools.cycle([self.keep, self.draw, self.write, self.train])

    def __call__(self, *_: object) -> None:
        with tm.enable_grad():
            next(self.turns)()

    def keep(self) -> None:
        self.kept = [*self.kept[-3:], (self.w * 2, self.w.exp(), F.linear(self.w, self.w))]

    def draw(self) -> None:
        mask = F.dropout(tm.ones(64), 0.5)
        assert 0 < mask.count_nonzero() < 64

    def write(self) -> None:
        x = self.w * 1
        x.mul_(2)
        F.relu(x, inplace=True)
        assert x.tolist() == [[1.0, 4.0], [2.0, 0.0]]

    def train(self) -> None:
        self.w.grad = None
        checkpoint(lambda w: (w * w).relu(), self.w).sum().backward()
        assert self.w.grad is not None
        assert self.w.grad.tolist() == [[1.0, 4.0], [2.0, -6.0]]


class Finalized:
    def __init__(self, visit: Callable[[], None]) -> None:
        self.visit = visit

    def __del__(self) -> None:
        self.visit()


def finalizer(visit: Callable[..., None]) -> None:
    Finalized(visit)


def finalize(visit: Callable[..., None]) -> None:
    weakref.finalize(nn.Identity(), visit)


def callback(visit: Callable[..., None]) -> None:
    class Thing:
        pass

    thing = Thing()
    watch = weakref.ref(thing, visit)
    del thing, watch


def handler(visit: Callable[..., None]) -> None:
    before = signal.signal(signal.SIGUSR1, visit)
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


WAYS = [finalizer, finalize, callback, handler]


class Masks:
    """What a segment draws; or, given the masks of another run, what it finds in the place of that."""

    def __init__(self, given: list | None = None) -> None:
        self.given, self.drawn = given, []

    def __call__(self) -> tm.Tensor:
        mask = F.dropout(tm.ones(2, 2), 0.5) if self.given is None else tm.tensor(self.given[len(self.drawn)])
        self.drawn.append(mask.numpy().copy())
        return mask


def segment(x: tm.Tensor, w: tm.Tensor, mask: Masks) -> tm.Tensor:
    """Products that save nothing beside ones that do, as the last one does: the visitor's are easily taken for them."""
    y = F.dropout(x * w * 2 * mask(), 0.0)
    y = (F.linear(y, w) * 0.1).exp() * 3
    return F.relu(y * mask(), inplace=True) * w * 1 * w


def plain(x, w, mask):
    return checkpoint(segment, x, w, mask)


def nested(x, w, mask):
    return checkpoint(lambda x, w: checkpoint(segment, x * w, w, mask) * w, x, w)


def chosen(x, w, mask):
    return checkpoint(
        segment, x, w, mask, context_fn=lambda: create_selective_checkpoint_contexts(["Dropout", "Linear", "Exp"])
    )


def chain(x, w, mask):
    class Part(nn.Module):
        def forward(self, x):
            return segment(x, w, mask)

    return recompute.apply(nn.Sequential(Part(), Part(), Part()), recompute.sqrt(3))(x)


def hooked(x, w, mask):
    with saved_tensors_hooks(lambda t: t.detach().numpy().copy(), tm.tensor):
        return segment(x, w, mask)


def test_what_counts_as_a_visit():
    seen = []
    for way in WAYS:
        way(lambda *_: seen.append(callback_depth()))
    finalizer(lambda: finalizer(lambda: seen.append(callback_depth())))
    assert seen == [1, 1, 1, 1, 2]
    assert callback_depth() == 0


def run(form: Callable[..., tm.Tensor], mask: Masks) -> list[np.ndarray]:
    x = tm.tensor([[0.5, -1.0], [2.0, 0.1]], requires_grad=True)
    w = tm.tensor([[1.0, 0.5], [-2.0, 0.3]], requires_grad=True)
    y = form(x, w, mask)
    y.sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    return [y.detach().numpy(), x.grad.numpy(), w.grad.numpy()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", [plain, nested, chosen, chain, hooked])
def test_a_visit_between_the_bytecodes_of_a_segment_is_no_part_of_it(form, way, reliability):
    """Gradients are bit for bit those of the masks that the forward drew, found by a run that nobody visits."""
    visitor, mask = Visitor(), Masks()
    with visited(
        lambda: way(visitor),
        sys.modules["tinygrad_mem.recompute.checkpoint"],
        frame,
        scheduled,
        selective,
        graph,
        random,
        every=31,
    ) as where:
        found = run(form, mask)
    assert where
    for a, b in zip(found, run(form, Masks(mask.drawn)), strict=True):
        np.testing.assert_array_equal(a, b)
    reliability("ops and steps run between two bytecodes of a recomputation", len(where))
