"""The pool, visited: what a signal handler, a finalizer or a weak reference's callback asks of it between any two bytecodes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import subprocess
import sys
import threading
import weakref

import pytest

import tinygrad_mem as tm
from tests.profiles import every
from tinygrad_mem import memory, scope
from tinygrad_mem.devices import Pool, chunks
from tinygrad_mem.devices import pool as pool_module
from tinygrad_mem.devices.chunks import chain
from tinygrad_mem.errors import OutOfMemoryError

from ..memory.interrupt import interrupted, visited


def whole(pool: Pool, live: list) -> None:
    """The structures say what the blocks say: each lies in a chunk of its own, and the rest is free, once, and in the index."""
    live_chunks = {block.chunk.address: block for block in live}
    assert pool.used_bytes() == sum(block.chunk.size for block in live)
    assert pool._latest is not None
    assert not pool._pending
    free: list[tuple] = []
    total = 0
    for address, first in pool._firsts.items():
        assert (first.address, first.prev, first.segment.address) == (address, None, address)
        total += first.segment.size
        at = address
        for chunk in chain(first):
            assert chunk.address == at
            assert chunk.next is None or (chunk.next.prev is chunk and not (chunk.free and chunk.next.free))
            assert chunk.free == (at not in live_chunks)
            assert chunk.free or live_chunks.pop(at).chunk is chunk
            at += chunk.size
            if chunk.free:
                free.append((chunk.size, chunk.address, chunk))
        assert at == address + first.segment.size
    assert not live_chunks, "a block that lies in no segment"
    assert (pool.total_bytes(), pool.n_free_blocks()) == (total, len(free))
    assert pool._index == sorted(free)
    assert pool.largest_free() == max([size for size, _, _ in free], default=0)
    assert pool.peak_used >= pool.used_bytes()
    assert pool.peak_total >= total


def scenario(pool: Pool) -> list:
    """Cuts, joins with both neighbours, the latest again, growth, a cache given back, and every question."""
    a, b, c = pool.malloc(1000), pool.malloc(3000), pool.malloc(700)
    a = None
    b = None
    parts = [pool.malloc(500), pool.malloc(500), pool.malloc(1500)]
    del parts[1]
    again = pool.malloc(40)
    again = None
    again = pool.malloc(40)
    pool.free_all_blocks()
    _ = pool.holes(), pool.used_bytes(), pool.total_bytes(), pool.peak_used
    large = pool.malloc(70_000)
    pool.reset_peak()
    return [a, b, c, *parts, again, large]


class Visitor:
    """Takes, keeps and gives back blocks, and asks: every answer must be right there and then."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.kept, self.sizes = pool, [], itertools.cycle([100, 513, 2000, 1, 70_000])

    def ask(self) -> None:
        used, total = self.pool.used_bytes(), self.pool.total_bytes()
        assert 0 <= used <= min(total, self.pool.peak_used)
        assert used == self.pool.used_bytes()
        assert sum(size for _, _, size in self.pool.holes()) == total - used
        assert self.pool.largest_free() <= total - used == self.pool.free_bytes()
        assert bool(self.pool.n_free_blocks()) == (used < total)

    def take(self) -> None:
        used, size = self.pool.used_bytes(), next(self.sizes)
        self.kept.append(self.pool.malloc(size))
        now = used + self.kept[-1].chunk.size
        assert self.pool.used_bytes() == now <= self.pool.peak_used
        assert self.kept[-1].size == size
        if len(self.kept) > 3:
            now -= self.kept.pop(0).chunk.size
            assert self.pool.used_bytes() == now

    def everything(self) -> None:
        self.take()
        self.ask()
        self.pool.free_all_blocks()
        self.ask()


@pytest.mark.parametrize(("visit", "every"), [("ask", 1), ("take", 307), ("everything", 401)])
@pytest.mark.parametrize("listening", [False, True])
def test_visits_between_the_bytecodes_of_the_pool(visit, every, listening, reliability):
    """What takes memory comes now and then: a request does what is pending first, and would never come to its end."""
    pool = Pool("mine", reserve=False)
    visitor = Visitor(pool)
    deaf, live = scope.Listener(), []
    with contextlib.ExitStack() as stack:
        if listening:
            scope.listen(deaf)
            stack.callback(scope.unlisten, deaf)
        with visited(getattr(visitor, visit), pool_module, chunks, every=every) as where:
            for _ in range(1 if every == 1 else 10):
                live += [block for block in scenario(pool) if block is not None]
    whole(pool, [*live, *visitor.kept])
    live.clear()
    visitor.kept.clear()
    whole(pool, [])
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    reliability("runs of other code between two bytecodes of the pool", len(where))


def test_a_visit_between_any_two_bytecodes_of_the_pool(reliability):
    """One visit in a run, at each place: what it took is counted, and what it gave back is free, when the request has ended.

    A usual run takes every second place.
    """
    point, step, reached = 1 - every(2), every(2), ["begin"]
    while reached:
        point += step
        pool = Pool("mine", reserve=False)
        visitor = Visitor(pool)
        visitor.kept = [pool.malloc(size) for size in (300, 900, 600)]
        with visited(visitor.everything, pool_module, chunks, only=point) as reached:
            live = [block for block in scenario(pool) if block is not None]
        whole(pool, [*live, *visitor.kept])
    assert point > 1000
    reliability("runs of other code between two bytecodes of the pool", point // step)


def test_an_interrupt_wherever_it_comes_leaves_a_pool_that_is_whole(reliability):
    point, reached = 0, ["begin"]
    while reached:
        point += 1
        pool, live = Pool("mine", reserve=False), []
        with interrupted(point, pool_module, chunks) as reached, contextlib.suppress(KeyboardInterrupt):
            live = scenario(pool)
        live = [block for block in live if block is not None]
        whole(pool, live)
        again = [block for block in scenario(pool) if block is not None]
        whole(pool, [*live, *again])
    assert point > 60
    reliability("interrupts of the pool", 60)


def test_out_of_memory_from_inside_a_request():
    pool = Pool("mine", reserve=False)
    pool.set_limit(8192)
    refused = []

    def visit() -> None:
        try:
            pool.malloc(100_000)
        except OutOfMemoryError as error:
            refused.append(error)

    with visited(visit, pool_module):
        block = pool.malloc(1000)
    assert refused
    assert all(error.requested == 100_000 and error.limit == 8192 >= error.reserved for error in refused)
    whole(pool, [block])


def test_a_finalizer_and_a_callback_that_allocate_run_inside_any_request():
    """The garbage collector runs them where it likes: here at each new object."""
    pool, seen = tm.device("cpu").pool, []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            x = tm.empty(3)
            seen.append(x.numel() + (memory.memory_allocated() >= 512))

    def callback(_: object) -> None:
        seen.append(tm.empty(4).numel())

    before = gc.get_threshold()
    gc.set_threshold(1)
    gc.enable()
    try:
        for size in range(600, 3000, 37):
            cycle = Cycle()
            watch = weakref.ref(cycle, callback)
            del cycle
            blocks = [pool.malloc(size), pool.malloc(70 * size)]
            del blocks, watch
    finally:
        gc.disable()
        gc.set_threshold(*before)
    gc.collect()
    assert len(seen) > 60
    assert set(seen) == {4}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signals here")
def test_a_handler_that_allocates_never_hangs():
    program = """
import signal, faulthandler, itertools, threading
import tinygrad_mem as tm
faulthandler.dump_traceback_later(60, exit=True)
pool, seen = tm.device("cpu").pool, []
def handler(*_):
    x = tm.empty(5)
    assert tm.memory.memory_allocated() >= 512
    seen.append(1)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
stop = threading.Event()
def beside():
    while not stop.is_set():
        tm.ones(100) + 1
thread = threading.Thread(target=beside)
thread.start()
kept = []
for size in itertools.cycle([10, 1000, 30000, 100000]):
    kept.append(pool.malloc(size))
    del kept[:-5]
    if len(seen) > 300:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
thread.join()
del kept[:]
assert pool.used_bytes() == 0, pool.used_bytes()
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_blocks_that_outlive_the_interpreter_say_nothing():
    program = """
import builtins, sys
import tinygrad_mem as tm
x = tm.ones(3, requires_grad=True)
builtins.kept = sys.kept = [x, (x * 2).exp()]
kept = builtins.kept
with tm.memory.track() as track:
    builtins.other = (x * 3).exp()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_thread_waits_for_another_and_not_for_itself():
    """What makes a change from inside different from one of another thread: the lock is held by the one who asks."""
    pool, inside, go = Pool("mine", reserve=False), threading.Event(), threading.Event()
    found = []

    def other() -> None:
        inside.wait()
        go.set()
        found.append(pool.used_bytes())

    thread = threading.Thread(target=other)
    thread.start()
    with pool._alone() as alone:
        assert alone
        inside.set()
        go.wait()
        mine = pool.malloc(1000)
        assert pool.used_bytes() == 1024
    thread.join()
    assert found == [1024]
    whole(pool, [mine])
