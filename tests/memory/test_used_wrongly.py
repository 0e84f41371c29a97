"""A tracker used wrongly, or at a bad moment: clear errors, and no event is lost."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.memory.interrupt import interrupted
from tinygrad_mem import memory, nn, scope
from tinygrad_mem.devices import Pool, device
from tinygrad_mem.devices import pool as pool_module
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.memory import Kind, attribution, listener, log
from tinygrad_mem.memory import track as track_function
from tinygrad_mem.nn import functional as F

track_module = sys.modules[track_function.__module__]
MIB = 1 << 20


def in_a_process(program: str) -> None:
    """The program runs to its end and says nothing."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# --- a track's life -------------------------------------------------------------------------------------------------------


def test_a_track_runs_once():
    with memory.track() as track:
        tm.tensor([1.0])
        with pytest.raises(RuntimeError, match="is running already"):
            track.__enter__()
    with pytest.raises(RuntimeError, match="has run already"):
        track.__enter__()
    with pytest.raises(RuntimeError, match="it has ended already, or was never entered"):
        track.__exit__()
    with pytest.raises(RuntimeError, match="mark: the track is not running, so it cannot record 'late'"):
        track.mark("late")
    memory.mark("nobody listens")


def test_an_empty_track_has_no_peak():
    gc.collect()
    with memory.track("meta") as track:
        pass
    if device("meta").pool.used_bytes() == 0:
        with pytest.raises(ValueError, match="nothing was allocated"):
            track.at_peak()


def test_after_its_end_a_track_hears_nothing():
    with memory.track() as track:
        model = nn.Linear(10, 10)
        out = model(tm.ones(2, 10))
    count = len(track.log)
    out.sum().backward()
    del model, out
    gc.collect()
    assert len(track.log) == count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_not_tracked_and_says_so():
    program = """
import os, sys
import tinygrad_mem as tm
from tinygrad_mem import memory, scope
with memory.track() as track:
    x = tm.ones(1000)
    child = os.fork()
    if child == 0:
        y = tm.ones(2000)
        assert scope.listeners == () and not track.running
        try:
            track.peak
        except RuntimeError as error:
            ok = "belongs to process" in str(error) and "a child is not tracked" in str(error)
        try:
            track.mark("here")
            ok = False
        except RuntimeError:
            pass
        with memory.track() as own:
            z = tm.ones(10)
        ok = ok and own.peak > 0
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    y = tm.ones(3000)
assert [e.requested for e in track.log if e.kind is memory.Kind.MALLOC] == [4000, 12000]
child = os.fork()
if child == 0:
    with memory.track() as again:
        pass
    os._exit(0)
os.waitpid(child, 0)
"""
    in_a_process(program)


@pytest.mark.parametrize("ended", [True, False])
def test_an_interpreter_that_ends_with_a_graph_alive_says_nothing(ended: bool):
    program = f"""
import tinygrad_mem as tm
from tinygrad_mem import memory, nn
track = memory.track()
track.__enter__()
model = nn.Linear(10, 10)
rule = tm.optim.Adam(model.parameters())
model(tm.ones(3, 10)).exp().sum().backward()
rule.step()
loss = model(tm.ones(3, 10)).exp().sum()
class Cycle: pass
cycle = Cycle()
cycle.held = cycle, loss, model, rule
if {ended}:
    track.__exit__()
"""
    in_a_process(program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_frees_what_a_thread_of_its_parent_was_asking_for():
    """The pool has counted it, and nobody has it: in the child that thread does not go on."""
    in_a_process("""
import os, threading
import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.devices import pool
kept = tm.ones(2000)
make, there, go_on = pool._new_block, threading.Event(), threading.Event()
def slow(*arguments):
    there.set()
    go_on.wait()
    return make(*arguments)
pool._new_block = slow
thread = threading.Thread(target=lambda: tm.ones(1000), daemon=True)
thread.start()
there.wait()
pool._new_block = make
child = os.fork()
if child == 0:
    before = memory.memory_allocated()
    ended = threading.Event()
    beside = threading.Thread(target=ended.wait)
    beside.start()
    with memory.track():
        pass
    before = before if memory.memory_allocated() == before else 0  # a thread of the child's own may be asking for it
    ended.set()
    beside.join()
    with memory.track() as own:
        more = tm.ones(3000)
    whole = sum(own.by_category("end").values()) == memory.memory_allocated() == 8192 + 12288
    os._exit(0 if whole and before == 8192 + 4096 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
go_on.set()
thread.join()
with memory.track() as track:
    pass
assert sum(track.by_category("end").values()) == memory.memory_allocated() == 8192
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_threads_track_and_allocate():
    """Children are forked while another thread is anywhere in a track's life: each can use its pool and a track of its own."""
    in_a_process("""
import os, threading
import tinygrad_mem as tm
from tinygrad_mem import memory, scope
tm.ones(1)  # what is imported with the first tensor is there: a child of a thread that imports waits for ever
stop = threading.Event()
def work():
    while not stop.is_set():
        with memory.track():
            x = tm.ones(1000)
            del x
thread = threading.Thread(target=work, daemon=True)
thread.start()
for _ in range(4):
    child = os.fork()
    if child == 0:
        ok = not any(isinstance(each, memory.listener.Recorder) for each in scope.listeners)
        with memory.track() as own:
            kept = tm.ones(2000)
        ok = ok and sum(own.by_category("end").values()) == memory.memory_allocated()
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
stop.set()
thread.join()
""")


def test_moments_that_are_none():
    with memory.track() as one:
        memory.mark("here")
        x = tm.ones(1000)
    with memory.track() as two:
        y = tm.ones(2000)
        two.mark("here")
    assert two.live("here")
    for moment in (one.marks[0], one.timeline()[-1]):
        with pytest.raises(ValueError, match="is a moment of another track; ask that track"):
            two.live(moment)
    for number in (-1, len(two.log) + 1, 10**9):
        with pytest.raises(IndexError, match=rf"expected an event up to {len(two.log)}, found {number}"):
            two.by_category(number)
    for wrong in (1.5, [1], b"here"):
        with pytest.raises(TypeError, match="a moment is an event's number, a mark or its text, 'peak' or 'end', found"):
            two.pool(wrong)  # type: ignore[arg-type]
    assert two.live(np.int64(3)) == two.live(3)  # type: ignore[arg-type]
    del x, y


def test_an_address_that_was_handed_out_again_is_not_explained():
    with memory.track() as track:
        x = tm.ones(1000)
        assert "x" in track.explain(x)
    del x
    again = tm.ones(1000)
    with pytest.raises(ValueError, match="its addresses may have been reused; call explain while it runs"):
        track.explain(again)


def test_a_track_in_a_generator_ends_with_it():
    def steps() -> Generator[memory.Track, None, None]:
        with memory.track() as track:
            while True:
                yield track

    generator = steps()
    track = next(generator)
    x = tm.ones(1000)
    with memory.track() as inner:
        y = next(generator) is track
    generator.close()
    assert y
    assert not track.running
    assert sum(e.kind is Kind.MALLOC for e in track.log) == 1
    assert sum(e.kind is Kind.MALLOC for e in inner.log) == 0
    dropped = steps()
    track = next(dropped)
    del dropped
    assert not track.running
    del x


def test_a_track_ends_in_another_thread():
    track = memory.track()
    track.__enter__()
    x = tm.ones(1000)
    thread = threading.Thread(target=track.__exit__)
    thread.start()
    thread.join()
    assert not track.running
    with memory.track() as again:
        y = tm.unique(tm.ones(10))
    assert sum(again.by_category("end").values()) == device("cpu").pool.used_bytes()
    del x, y


def test_tracks_begin_and_end_while_threads_allocate():
    """What threads make and drop just as a track begins is counted once, or not at all where it is gone."""
    pool, stop, errors = device("cpu").pool, threading.Event(), []

    def work(size: int) -> None:
        try:
            kept: list = []
            while not stop.is_set():
                kept.append(tm.ones(size) * 2)
                del kept[: len(kept) - 5]
        except BaseException as error:
            errors.append(error)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(15):
            stop.clear()
            threads = [threading.Thread(target=work, args=(size,)) for size in (10, 1000)]
            for thread in threads:
                thread.start()
            with memory.track() as track:
                for _ in range(50):
                    tm.ones(100)
                stop.set()
                for thread in threads:
                    thread.join()
                used = pool.used_bytes()
            assert sum(track.by_category("end").values()) == used
            assert min(track.by_category("end").values(), default=0) >= 0
    finally:
        sys.setswitchinterval(switch)
        stop.set()
    assert not errors


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------------


def step() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8))
    rule = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.mse_loss(model(tm.ones(4, 8)), tm.zeros(4, 8)).backward()
    rule.step()


def test_an_interrupt_at_any_point_of_the_tracker():
    """Wherever it comes, the track ends or can be ended, nothing listens, nothing is pinned, and what was heard adds up."""
    pool, count, reached = device("cpu").pool, 0, ["begin"]
    gc.collect()
    before = pool.used_bytes()
    while reached:
        count, track = count + 1, memory.track()
        with (
            interrupted(29 * count, listener, log, track_module) as reached,
            contextlib.suppress(KeyboardInterrupt),
            track,
        ):
            step()
        if track.running:  # it came before the end was heard
            track.__exit__()
        assert scope.listeners == (), f"interrupted at {reached}"
        gc.collect()
        assert pool.used_bytes() == before, f"interrupted at {reached}"
        timeline = track.timeline()
        assert all((timeline.bytes(category) >= 0).all() for category in memory.Category), f"interrupted at {reached}"
        if count % 4 == 0:
            with memory.track() as again:
                step()
                gc.collect()
                assert sum(again.by_category("end").values()) == pool.used_bytes(), f"interrupted at {reached}"
    assert count > 15


def test_an_interrupt_while_a_track_is_asked_changes_no_answer():
    with memory.track("meta") as track, tm.device("meta"):
        step()
    expected = memory.Track.of(track.log).by_category("peak")
    count, reached = 0, ["begin"]
    while reached:
        count, asked = count + 1, memory.Track.of(track.log)
        with interrupted(17 * count, attribution) as reached, contextlib.suppress(KeyboardInterrupt):
            asked.by_category("peak")
        assert asked.by_category("peak") == expected, f"interrupted at {reached}"
    assert count > 10


# --- limits ---------------------------------------------------------------------------------------------------------------


def test_limits_that_overlap_end_in_any_order():
    pool = device("meta").pool
    gc.collect()
    base = pool.used_bytes()
    wide, tight = memory.limit(base + 8 * MIB, "meta"), memory.limit(base + MIB, "meta")
    wide.__enter__()
    tight.__enter__()
    wide.__exit__()
    assert pool.get_limit() == base + MIB, "the other still holds"
    with pytest.raises(OutOfMemoryError):
        tm.empty(MIB, device="meta")
    tight.__exit__()
    assert pool.get_limit() == 0
    pool.set_limit(base + 4 * MIB)
    try:
        with wide:
            assert pool.get_limit() == base + 4 * MIB, "the pool's own limit is tighter"
        assert pool.get_limit() == base + 4 * MIB
    finally:
        pool.set_limit()


def test_one_limit_may_be_entered_again_inside_itself():
    limit = memory.limit("64 MiB", "meta")

    @limit
    def deep(n: int) -> Any:
        return deep(n - 1) if n else device("meta").pool.get_limit()

    assert deep(3) == 64 * MIB
    assert device("meta").pool.get_limit() == 0
    with pytest.raises(RuntimeError, match="this limit is not open"):
        limit.__exit__()


def test_an_interrupt_at_any_point_of_the_pool_leaves_no_block():
    """A malloc that Ctrl-C ends takes nothing, whether a piece was being cut, or a segment taken."""
    point, reached = 0, ["begin"]
    while reached:
        point += 1
        pool = Pool("mine", reserve=False)
        with interrupted(point, pool_module) as reached, contextlib.suppress(KeyboardInterrupt):
            a = pool.malloc(1000)
            b = pool.malloc(3000)
            del a
            c = pool.malloc(500), pool.malloc(500)
            del b
            d = pool.malloc(100_000)
            del c, d
        a = b = c = d = None
        assert not scope.lock._is_owned(), f"interrupted at {reached}"
        assert pool.used_bytes() == 0, f"interrupted at {reached}"
    assert point > 30
