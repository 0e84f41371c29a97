"""The pool against a model of brute force, and what a model does not see: threads, forks, limits, failure."""

from __future__ import annotations

import _thread
import contextlib
import gc
import operator
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tinygrad_mem import memory, scope
from tinygrad_mem.devices import Pool, round_up
from tinygrad_mem.errors import OutOfMemoryError


@dataclass
class Interval:
    start: int
    size: int
    free: bool


class Model:
    """Every segment as a list of intervals, searched and merged in the most literal way."""

    def __init__(self) -> None:
        self.segments: list[list[Interval]] = []
        self.next, self.limit = 512, 0

    def total(self) -> int:
        return sum(i.size for s in self.segments for i in s)

    def used(self) -> int:
        return sum(i.size for s in self.segments for i in s if not i.free)

    def holes(self) -> list:
        return sorted(i.size for s in self.segments for i in s if i.free)

    def malloc(self, size: int) -> int | None:
        size = -(-size // 512) * 512
        found = self.fit(size)
        if found is None and self.limit and self.total() + size > self.limit:
            self.release()
            if self.total() + size > self.limit:
                return None
        if found is None:
            self.segments.append([Interval(self.next, size, False)])
            self.next += size
            return self.segments[-1][0].start
        return found

    def fit(self, size: int) -> int | None:
        fits = [(i.size, i.start, s) for s in self.segments for i in s if i.free and i.size >= size]
        if not fits:
            return None
        _, start, segment = min(fits, key=lambda f: f[:2])
        at = next(k for k, i in enumerate(segment) if i.start == start)
        hole = segment[at]
        segment[at : at + 1] = [Interval(start, size, False)]
        if hole.size > size:
            segment.insert(at + 1, Interval(start + size, hole.size - size, True))
        return start

    def free(self, start: int) -> None:
        for segment in self.segments:
            for i in segment:
                if i.start == start:
                    i.free = True
            merged: list[Interval] = []
            for i in segment:
                if merged and merged[-1].free and i.free:
                    merged[-1].size += i.size
                else:
                    merged.append(i)
            segment[:] = merged

    def release(self) -> None:
        self.segments = [s for s in self.segments if not all(i.free for i in s)]


def agree(pool: Pool, model: Model) -> None:
    assert pool.used_bytes() == model.used()
    assert pool.total_bytes() == model.total()
    assert pool.free_bytes() == model.total() - model.used()
    assert pool.n_free_blocks() == len(model.holes())


sizes = st.one_of(st.integers(1, 5000), st.sampled_from([1, 512, 513, 1024, 1536, 4096, 70_000, 200_000]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), sizes),
        st.tuples(st.just("malloc"), sizes),
        st.tuples(st.just("free"), st.integers(0, 99)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("limit"), st.sampled_from([0, 10_000, 300_000])),
    ),
    max_size=60,
)


@settings(max_examples=examples(150))
@given(steps)
def test_the_pool_is_the_model(program):
    pools, model = [Pool("cpu"), Pool("meta", reserve=False)], Model()
    live: list[tuple[int, list]] = []
    for what, n in program:
        if what == "malloc":
            before = [(p.used_bytes(), p.total_bytes()) for p in pools]
            start = model.malloc(n)
            if start is None:
                for pool in pools:
                    with pytest.raises(OutOfMemoryError) as caught:
                        pool.malloc(n)
                    error = caught.value
                    found = (error.requested, error.used, error.reserved, error.limit)
                    assert found == (n, model.used(), model.total(), model.limit)
                assert [b[0] for b in before] == [p.used_bytes() for p in pools]
            else:
                blocks = [pool.malloc(n) for pool in pools]
                assert [b.chunk.address for b in blocks] == [start, start]
                assert all(b.nbytes == n for b in blocks)
                live.append((start, blocks))
        elif what == "free" and live:
            start, blocks = live.pop(n % len(live))
            blocks.clear()
            model.free(start)
        elif what == "release":
            model.release()
            for pool in pools:
                pool.free_all_blocks()
        elif what == "limit":
            model.limit = n
            for pool in pools:
                pool.set_limit(n)
        for pool in pools:
            agree(pool, model)
    blocks = None
    live.clear()
    for pool in pools:
        assert pool.used_bytes() == 0
        pool.free_all_blocks()
        assert pool.total_bytes() == pool.n_free_blocks() == 0


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5)), max_size=40))
def test_live_blocks_never_overlap(requests):
    pool, live = Pool("cpu"), []
    for stamp, (size, drop) in enumerate(requests):
        block = pool.malloc(size)
        block[:] = stamp % 256
        live.append((stamp % 256, block))
        del block
        if drop < len(live):
            live.pop(drop)
        for value, kept in live:
            assert (kept == value).all()


def test_rounding():
    assert [round_up(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_blocks_are_aligned_and_writable():
    pool = Pool("cpu")
    for size in (1, 100, 512, 70_000, 5_000_000):
        block = pool.malloc(size)
        assert block.ctypes.data % 64 == 0
        block[:] = 1
        assert block[-1] == 1


def test_a_view_keeps_its_block_alive():
    pool = tm.device("cpu").pool
    before = pool.used_bytes()
    array = tm.device("cpu").empty((100, 100), np.dtype(np.float32))
    view = array[3:, ::2].T.reshape(-1, 1)[5:6]
    kept = array.T[1:2]
    del array
    assert pool.used_bytes() == before + round_up(40_000)
    del kept
    assert view.shape == (1, 1)  # a copy by NumPy
    assert pool.used_bytes() == before


def test_zero_sized_arrays_cost_nothing():
    for name in ("cpu", "meta"):
        pool = tm.device(name).pool
        before = pool.used_bytes(), pool.total_bytes()
        empty = tm.device(name).empty((3, 0, 2), np.dtype(np.float64))
        assert empty.shape == (3, 0, 2)
        assert (pool.used_bytes(), pool.total_bytes()) == before


def resident() -> int:
    """KiB that the process has now; not its highest peak, which an earlier test may have set."""
    status = Path("/proc/self/status")
    said = re.search(r"VmRSS:\s+(\d+) kB", status.read_text() if status.exists() else "")
    return int(said[1]) if said else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_address_space_costs_no_memory():
    pool = Pool("meta", reserve=False)
    before = resident()
    block = pool.malloc(1 << 44)
    assert pool.used_bytes() == 1 << 44
    assert resident() - before < 1 << 14
    real = Pool("cpu").malloc(1 << 25)
    real.fill(1)
    assert resident() - before > 1 << 14, "it sees what memory costs"
    del real
    del block
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_what_no_machine_has_is_out_of_memory_and_changes_nothing():
    pool = Pool("cpu")
    kept = pool.malloc(1000)
    with pytest.raises(OutOfMemoryError, match=r"out of memory on cpu: asked for 1,152,921,504,606,846,976 bytes") as caught:
        pool.malloc(1 << 60)
    assert (caught.value.used, caught.value.reserved, caught.value.limit) == (1024, 1024, 0)
    assert pool.used_bytes() == 1024
    assert "the machine has no more" in str(caught.value)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(1 << 70)
    assert kept.size == 1000


def test_holes_are_alike_where_other_segments_came_and_went():
    pool = Pool("meta", reserve=False)

    def program() -> list:
        whole = pool.malloc(4096)
        del whole
        kept = [pool.malloc(1024), pool.malloc(512), pool.malloc(512)]
        del kept[1]
        return kept

    kept = program()
    holes = pool.holes()
    assert holes == ((0, 1024, 512), (0, 2048, 2048))
    del kept
    assert pool.holes() == ((0, 0, 4096),)
    pool.free_all_blocks()
    assert pool.holes() == ()
    between = pool.malloc(512)  # a segment of its own, without a hole
    kept = program()
    assert pool.holes() == holes
    del between
    assert pool.holes() != holes
    assert len(kept) == 2


def test_limits():
    pool = Pool("cpu")
    assert pool.get_limit() == 0
    pool.set_limit(2048)
    assert pool.get_limit() == 2048
    first = pool.malloc(1024)
    del first
    second = pool.malloc(2000)  # only fits when the cached segment goes back first
    assert pool.total_bytes() == 2048
    with pytest.raises(OutOfMemoryError, match="the pool's limit is 2,048 bytes"):
        pool.malloc(1)
    del second
    pool.set_limit()
    assert pool.get_limit() == 0
    with pytest.raises(ValueError, match="set_limit: size is -1"):
        pool.set_limit(-1)


def test_garbage_is_collected_before_giving_up():
    pool = Pool("cpu")
    pool.set_limit(1 << 20)
    cycle: list = [pool.malloc(1 << 20)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert pool.malloc(1 << 20).nbytes == 1 << 20
    finally:
        gc.enable()


def test_frees_of_other_threads_are_counted():
    pool = Pool("cpu")
    blocks = [pool.malloc(1000) for _ in range(100)]
    thread = threading.Thread(target=blocks.clear)
    thread.start()
    thread.join()
    assert pool.used_bytes() == 0


def test_a_free_while_the_pool_is_busy_waits_its_turn():
    pool = Pool("cpu")
    block = pool.malloc(1000)
    with scope.lock:
        del block  # as gc would, inside malloc
    assert pool.used_bytes() == 0
    again = pool.malloc(1000)
    assert again.chunk.address == 512


def test_what_came_last_and_went_at_once_comes_again_and_holds_no_memory_that_was_given_back():
    pool = Pool("cpu")
    kept = pool.malloc(1 << 20)
    freed = pool.malloc(1 << 20)
    chunk, segment = freed.chunk, freed.chunk.segment
    del freed
    again = pool.malloc((1 << 20) - 5)
    assert again.chunk is chunk
    assert pool.used_bytes() == 2 << 20
    del again, chunk
    pool.free_all_blocks()
    only_named = object()
    assert sys.getrefcount(segment) == sys.getrefcount(only_named), "it has the name here, and no other owner"
    assert pool.used_bytes() == pool.total_bytes() == kept.size


def test_many_threads_at_once():
    pool, errors = Pool("cpu"), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        live = []
        try:
            for _ in range(400):
                if live and rng.random() < 0.5:
                    stamp, block = live.pop(rng.integers(len(live)))
                    assert (block == stamp).all()
                else:
                    block = pool.malloc(int(rng.integers(1, 3000)))
                    block[:] = seed
                    live.append((seed, block))
                    del block
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert pool.used_bytes() == 0
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


class Log(scope.Listener):
    def __init__(self) -> None:
        self.events: list[tuple] = []

    def malloc(self, device, address, requested, rounded):
        self.events.append(("malloc", device, address, requested, rounded))

    def free(self, device, address, rounded):
        self.events.append(("free", device, address, rounded))


def test_listeners_hear_every_block():
    pool, log = Pool("cpu"), Log()
    scope.listen(log)
    try:
        block = pool.malloc(700)
        del block
    finally:
        scope.unlisten(log)
    assert log.events == [("malloc", "cpu", 512, 700, 1024), ("free", "cpu", 512, 1024)]
    pool.malloc(1)
    assert len(log.events) == 2
    with pytest.raises(ValueError, match="not listening"):
        scope.unlisten(log)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_pool_of_its_own():
    program = """
import os, threading
import tinygrad_mem as tm
pool = tm.device("cpu").pool
x, big = tm.ones(1000), tm.ones(1 << 20)
used = pool.used_bytes()
child = os.fork()
if child == 0:
    y = tm.ones(100_000) * 2.0
    big.fill_(7)
    ok = pool.used_bytes() == used + 400_384 and y.sum().item() == 200_000 and x.sum().item() == 1000
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert pool.used_bytes() == used
assert big.sum().item() == 1 << 20, "the child wrote its parent's memory"
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="each dict and each queue has a lock there, and a thread that the child does not have may be the one that has it",
)
def test_a_child_forked_while_other_threads_allocate_can_still_allocate():
    program = """
import os, threading
import tinygrad_mem as tm
pool, done = tm.device("cpu").pool, threading.Event()
def busy():
    while not done.is_set():
        pool.malloc(700)
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        tm.ones(10)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
done.set()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_same_run_takes_the_same_addresses_on_cpu_and_meta():
    def run(device: str) -> list:
        pool, log = tm.device(device).pool, Log()
        with tm.device(device):
            w = tm.ones(50, 40, requires_grad=True)
            start = pool.used_bytes()
            scope.listen(log)
            try:
                y = (w * 3.0).exp()
                z = (y * w[:, :1]).sum()
                z.backward()
                del y, z
            finally:
                scope.unlisten(log)
            assert pool.used_bytes() == start + round_up(50 * 40 * 4)
        return [(e[0], *e[3:]) for e in log.events]

    assert run("cpu") == run("meta")


class Failing:
    """The ``k``-th allocation from now on fails, as if the machine had no more."""

    def __init__(self, pool: Pool, k: int) -> None:
        self.pool, self.k, self.count = pool, k, 0

    def __enter__(self) -> Failing:
        original = type(self.pool).malloc

        def malloc(size: int):
            self.count += 1
            if self.count == self.k:
                raise OutOfMemoryError("cpu", size, self.pool.used_bytes(), self.pool.total_bytes(), 0)
            return original(self.pool, size)

        self.pool.malloc = malloc  # type: ignore[method-assign]
        return self

    def __exit__(self, *exc: object) -> None:
        del self.pool.malloc


def step(w):
    y = (w * 3.0).exp()
    z = (y * w[:, :1]).sum() + (y * y).mean()
    z.backward()


def test_wherever_an_allocation_fails_nothing_is_left_and_the_next_step_works():
    pool = tm.device("cpu").pool
    w = tm.full((20, 30), 0.1, requires_grad=True)
    step(w)
    expected, w.grad = w.grad.numpy().copy(), None
    before, k = pool.used_bytes(), 0
    gc.disable()
    try:
        while True:
            k += 1
            with Failing(pool, k) as failing:
                try:
                    step(w)
                except OutOfMemoryError:
                    pass
                else:
                    break
            assert failing.count >= k
            w.grad = None
            assert pool.used_bytes() == before, f"allocation {k} failed and left something"
        assert k > 10
    finally:
        gc.enable()
    np.testing.assert_array_equal(w.grad.numpy(), expected)


def test_a_block_that_outlives_the_modules_names_says_nothing(monkeypatch: pytest.MonkeyPatch):
    """At exit, in builds without the interpreter's lock, blocks may go after the names that their end would look for."""
    said: list = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    pool = Pool("test")
    block = pool.malloc(512)
    with monkeypatch.context() as exit:
        exit.setattr(sys.modules[Pool.__module__], "scope", None)
        del block
    assert not said
    assert pool.used_bytes() == 0


def test_memory_is_used_again_after_an_interrupt(monkeypatch: pytest.MonkeyPatch):
    """Whoever goes on after Ctrl-C asks for memory first, and not for the pool's numbers: that request mends the pool."""
    pool, best_fit = Pool("cpu"), Pool._best_fit

    def interrupted(self: Pool, size: int) -> None:
        monkeypatch.setattr(Pool, "_best_fit", best_fit)
        raise KeyboardInterrupt

    pool.malloc(512)
    monkeypatch.setattr(Pool, "_best_fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.malloc(5000)
    for _ in range(100):
        pool.malloc(5000)  # which nobody keeps
    assert pool.total_bytes() == 512 + 5120


def test_a_second_interrupt_loses_no_block(monkeypatch: pytest.MonkeyPatch):
    """The request that mends the pool after an interrupt is interrupted too, as it leaves the lock with what it has taken."""
    pool, alone = Pool("cpu"), Pool._alone
    pool.malloc(5000)
    pool._latest = None  # type: ignore[assignment]  # a change was interrupted

    @contextlib.contextmanager
    def interrupted(self: Pool) -> Iterator[bool]:
        with alone(self) as really:
            yield really
        monkeypatch.setattr(Pool, "_alone", alone)
        raise KeyboardInterrupt

    monkeypatch.setattr(Pool, "_alone", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.malloc(5000)
    assert pool.used_bytes() == 0


@pytest.mark.parametrize("tracked", [False, True])
def test_an_interrupt_as_a_block_is_freed_loses_no_block(tracked: bool, monkeypatch: pytest.MonkeyPatch):
    """C code sends the signal and drops the tensor, so that the first bytecode of a finalizer is where Python hears it. There
    Python would print the interrupt and go on: it is raised when the finalizer has ended."""
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: heard.append(args.exc_type))
    pool = tm.device("cpu").pool
    before, kept = pool.used_bytes(), [tm.ones(3)]
    with memory.track() if tracked else contextlib.nullcontext(), pytest.raises(KeyboardInterrupt):
        deque(map(operator.call, (_thread.interrupt_main, kept.clear, lambda: time.sleep(60))), 0)
    assert heard == []
    assert pool.used_bytes() == before


def _own(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, _own])
def test_an_interrupt_in_the_middle_of_a_free_is_raised_after_it(handler: Any, monkeypatch: pytest.MonkeyPatch):
    """A handler of the user's has done its work: it is not called twice, and Python prints its error as ever."""
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: heard.append(args.exc_type))
    pool, kept = tm.device("cpu").pool, [tm.ones(3)]
    used, before, freed = pool.used_bytes(), signal.signal(signal.SIGINT, handler), pool._freed

    def interrupted(chunk: Any) -> None:
        freed(chunk)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_freed", interrupted)
    try:
        with contextlib.nullcontext() if handler is _own else pytest.raises(KeyboardInterrupt):
            deque(map(operator.call, (kept.clear, lambda: time.sleep(0.1 if handler is _own else 60))), 0)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [KeyboardInterrupt] * (handler is _own)
    assert pool.used_bytes() == used - 512
