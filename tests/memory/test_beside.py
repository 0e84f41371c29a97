"""Tracks that begin, end and are asked while other threads train, and while a handler or a finalizer runs inside them.

What another thread does meanwhile is done here between any two bytecodes, so that each run sees the same; then with threads.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.interleave import _Both, ends
from tests.profiles import every as step_of
from tests.tracing import traced, watch
from tinygrad_mem import interrupts, memory, nn, scope
from tinygrad_mem.autograd import core
from tinygrad_mem.devices import Pool, chunks, device
from tinygrad_mem.memory import Category, alive, census, listener
from tinygrad_mem.nn import functional as F
from tinygrad_mem.ops import base

from .interrupt import visited

TRACKER = (listener, scope, sys.modules["tinygrad_mem.memory.record"])


class Training:
    """A network that is trained, and blocks that come and go."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.BatchNorm1d(9), nn.Linear(9, 2))
        self.rule = tm.optim.Adam(self.net.parameters())
        self.x, self.kept = tm.randn(4, 6), [tm.empty(n * 300) for n in range(1, 8)]
        self.sizes = itertools.cycle([100, 700, 300])
        self.step()

    def step(self) -> None:
        self.rule.zero_grad()
        F.mse_loss(self.net(self.x), tm.zeros(4, 2)).backward()
        self.rule.step()

    def turn(self) -> None:
        """A block comes, the oldest goes, and an older tensor is given another role."""
        self.kept.append(tm.empty(next(self.sizes)))
        del self.kept[0]
        self.rule.zero_grad()
        (self.net[0].weight * 2).sum().backward()


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    """On a pool of its own, with a census of its own: it looks at each object, and is visited each time."""
    sources = alive.SOURCES

    def found(*types: type) -> list:
        return [thing for source in sources for thing in source(*types)]

    gc.collect()
    kinds = [kind for base in census.COLLECTED for kind in census._subclasses(base)]
    others = {id(thing): thing for thing in found(*kinds) if type(thing) in kinds}

    def ours(*types: type) -> list:
        return [thing for thing in found(*types) if type(thing) in types and id(thing) not in others]

    monkeypatch.setattr(alive, "SOURCES", [ours])
    for kind in (nn.Module, tm.optim.Optimizer):
        monkeypatch.setattr(kind, "_living", interrupts.LiveObjects())
    monkeypatch.setattr(device("cpu"), "pool", Pool("cpu"))
    return Training()


def check(track: memory.Track, what: str) -> None:
    """No category is ever negative, together they are what is used, and that is the pool's at rest."""
    pool, timeline = device("cpu").pool, track.timeline()
    total = np.sum([timeline.bytes(category) for category in Category], axis=0)
    for category in Category:
        assert (timeline.bytes(category) >= 0).all(), f"{what}: negative {category}"
    assert (total == timeline.used).all(), f"{what}: categories do not add up"
    state = track.pool("end")
    assert state.used == state.rounded == pool.used_bytes(), f"{what}: the pool has {pool.used_bytes()}, the track {state.used}"
    assert state.reserved == pool.total_bytes(), f"{what}: the pool reserves {pool.total_bytes()}, the track {state.reserved}"


@pytest.mark.parametrize(("visit", "every"), [("turn", 23), ("turn", 29), ("turn", 31), ("step", 97), ("step", 101)])
def test_a_track_that_begins_and_ends_while_others_train(visit, every, training, reliability):
    track = memory.track()
    with visited(getattr(training, visit), *TRACKER, every=every) as where:
        track.__enter__()
    assert len(where) > 80  # in Python 3.13 it is fewer bytecodes than in 3.11
    training.step()
    check(track, "begun")
    (weight,) = [block for block in track.live("end") if block.address == device("cpu").address(training.net[3].weight.array)]
    assert (weight.name, weight.category) == ("Sequential.3.weight", Category.PARAMETER)
    with visited(getattr(training, visit), *TRACKER, every=every) as ends:
        track.mark("here")
        track.__exit__()
    assert scope.listeners == ()
    assert all(min(moment.by_category.values(), default=0) >= 0 for moment in track.timeline())
    reliability("runs of other code between two bytecodes of a track's begin and end", len(where) + len(ends))


def test_tracks_that_begin_while_a_thread_trains(training, reliability):
    """As threads are switched: each track is whole, and at rest it says what the pool says."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(24):
            stop = threading.Event()

            def train(stop: threading.Event = stop) -> None:
                while not stop.is_set():
                    training.step()
                    training.turn()

            thread = threading.Thread(target=train)
            thread.start()
            with memory.track() as track:
                tm.ones(1000).sum()
                stop.set()
                thread.join()
                check(track, f"track {number}")
    finally:
        sys.setswitchinterval(switch)
        stop.set()
    reliability("tracks started while another thread trains", 24)


# --- begun and ended between any two bytecodes of the pool and the tape


ASKED = (sys.modules["tinygrad_mem.devices.pool"], chunks, core, base)


def _trail(do: Callable[[], object]) -> list[tuple]:
    """The bytecodes of :data:`ASKED` that ``do`` runs."""
    files, trail = {module.__file__ for module in ASKED}, []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        watch(frame, trace)
        if event == "opcode":
            trail.append((frame.f_code, frame.f_lasti))
        return trace

    with traced(trace):
        do()
    return trail


@pytest.mark.parametrize("by", ["a second thread", "a handler"])
def test_tracks_that_begin_and_end_at_every_bytecode_of_the_pool_and_the_tape(by: str, training, reliability):
    """One begins and ends there; another begins there and is read at rest."""
    points = ends(_trail(training.step))[:: step_of(16)]
    reached = 0
    for point in points:
        tracks: list[memory.Track] = []

        def visit(tracks: list[memory.Track] = tracks) -> None:
            with memory.track("cpu") as short:
                held = tm.ones(300)
            del held
            tracks.extend([short, memory.track("cpu")])
            tracks[1].__enter__()

        if by == "a handler":
            with visited(visit, *ASKED, only=point):
                training.step()
        else:
            _Both(tuple(module.__file__ for module in ASKED), point, [])(training.step, visit)
        if not tracks:
            continue  # this step has fewer bytecodes than that which was counted
        reached += 1
        long = tracks[1]
        training.turn()
        check(long, f"{by}, at bytecode {point}")
        long.__exit__(None, None, None)
        for track in tracks:
            timeline = track.timeline()
            total = np.sum([timeline.bytes(category) for category in Category], axis=0)
            assert (total == timeline.used).all(), f"{by}, at bytecode {point}: categories do not add up"
            assert all((timeline.bytes(category) >= 0).all() for category in Category), f"{by}, at bytecode {point}: negative"
        assert scope.listeners == ()
    assert reached > 80  # Python 3.12 has fewer bytecodes than 3.11
    inside = "ops, steps and tracks run between two bytecodes of an op or backward"
    net = inside if by == "a handler" else "tracks started while another thread trains"
    reliability(net, 2 * reached)


def test_what_a_census_found_is_let_go_before_its_look_is_over(monkeypatch):
    """Predictions beside it wait for a look to end: what it still had then would be freed too late there."""
    kept: list[weakref.ref] = []
    alive_at_end = []
    take, leave = listener.Census.__init__, scope.scanning.__exit__

    def noted(self: Any, device: Any) -> None:
        kept.append(weakref.ref(self))
        take(self, device)

    def end(self: Any, *exc: object) -> None:
        alive_at_end.extend(ref for ref in kept if ref() is not None)
        leave(self, *exc)

    monkeypatch.setattr(listener.Census, "__init__", noted)
    monkeypatch.setattr(scope.scanning, "__exit__", end)
    training = Training()
    with memory.track():
        never_runs = nn.Linear(3, 4)  # it is named at the end
        training.step()
    del never_runs
    assert len(kept) == 2
    assert alive_at_end == []
