"""No two locks of ours are taken in two orders, and who comes inside a change waits for nothing: no thread waits for ever."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import tinygrad_mem as tm
from tests.locks import Book, circle, noted
from tinygrad_mem import memory, nn, scope, techniques
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.utils.checkpoint import checkpoint
from tinygrad_mem.utils.data import DataLoader, TensorDataset


class Work:
    """All that takes a lock: as a program does it, and as a handler or a finalizer might."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        self.rule = tm.optim.Adam(self.net.parameters())
        self.data = TensorDataset(tm.randn(6, 1, 8, 8), tm.tensor([0, 1, 2, 0, 1, 2]))
        self.track = memory.track("cpu")

    def step(self) -> None:
        for x, y in DataLoader(self.data, 3, shuffle=True, num_workers=1):
            self.rule.zero_grad()
            F.cross_entropy(checkpoint(self.net, x, use_reentrant=False), y).backward()
            self.rule.step()

    def offload(self) -> None:
        with techniques.save_on_cpu():
            loss = self.net(tm.randn(2, 1, 8, 8)).sum()
        loss.backward()

    def backward(self) -> None:
        self.net[0](tm.ones(1, 1, 8, 8)).sum().backward()

    def predict(self) -> None:
        assert memory.predict(lambda: nn.Linear(30, 30)(tm.randn(4, 30)).sum().backward()).peak

    def stats(self) -> None:
        assert memory.memory_summary()
        assert memory.memory_stats("meta")

    def limit(self) -> None:
        with memory.limit("1 GiB"):
            tm.zeros(100)
        tm.device("cpu").pool.set_limit(tm.device("cpu").pool.total_bytes() + 1)
        try:
            with pytest.raises(OutOfMemoryError, match="biggest owners"):
                tm.empty(1 << 28)
        finally:
            tm.device("cpu").pool.set_limit()

    def tracks(self) -> None:
        with memory.track("cpu") as track:
            x = tm.randn(50, requires_grad=True)
            (x * 2).sum().backward()
            assert "cpu" in track.explain(x) or track.peak

    def read(self) -> None:
        assert self.track.peak
        assert self.track.live("end")

    def draw(self) -> None:
        tm.manual_seed(3)
        tm.randn(5).add_(1)

    def large(self) -> None:
        (tm.ones(1 << 21) + 1) @ tm.ones(1 << 21)

    def all(self) -> list[Callable[[], None]]:
        return [self.step, self.offload, self.backward, self.predict, self.stats, self.limit, self.tracks, self.read, self.draw]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    monkeypatch.setattr(tm.device("cpu"), "pool", Pool("cpu"))
    return Work()


def test_locks_have_an_order(work: Work, reliability: Callable[[str, int], None]):
    """Of a program, and of what comes inside of a change: there, of all that was asked for, nothing was waited for."""
    inside = 0
    visits = itertools.cycle([*work.all()[1:], work.large])
    book = Book()

    def visit(name: str) -> None:
        nonlocal inside
        if name == "lock" and threading.current_thread() is threading.main_thread():
            inside += 1
            if inside % 29 == 0:
                hooks, scope.local.saved_hooks = scope.local.saved_hooks, ()  # else it were part of a checkpointed function
                try:
                    with tm.enable_grad():  # it may come while parameters are being filled, which is not recorded
                        next(visits)()
                finally:
                    scope.local.saved_hooks = hooks

    with noted(book), work.track:
        for do in (*work.all(), work.large):
            do()
        assert len(book.edges) > 2
        assert circle(book.edges) == []
        book.visit = visit
        for do in work.all():
            do()
        book.visit = None
    assert inside > 29 * 20
    assert circle(book.edges) == []
    assert {asked for held, asked in book.edges if held == "lock"} == set()
    reliability("locks under which other code runs", inside // 29)


def test_who_looks_and_who_asks_inside_a_change_do_not_wait_for_each_other():
    """One thread begins a track, and is to write down what it has found; a finalizer in another's request asks for numbers."""
    program = """
import faulthandler, threading
import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory import alive
faulthandler.dump_traceback_later(60, exit=True)
x, inside, looks, search = tm.ones(10), threading.Event(), threading.Event(), alive.SOURCES[0]
def found(*types):
    if threading.current_thread() is other:
        looks.set()
        inside.wait()
    return search(*types)
def begin():
    with memory.track() as track:
        print(track.live("end")[0].rounded)
alive.SOURCES[:] = [found]
other = threading.Thread(target=begin)
other.start()
looks.wait()
with x.device.pool._alone():
    inside.set()
    print(memory.memory_stats()["allocation.all.current"])
other.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("1\n512\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("who", ["another thread", "the thread itself"])
def test_a_forked_child_finds_every_lock_open(who: str):
    """A fork copies one thread: what another one has locked, nobody in the child would open."""
    program = f"""
import os, signal, threading
import tinygrad_mem as tm
from tinygrad_mem import interrupts
from tinygrad_mem.autograd import core
from tinygrad_mem.devices import base
from tinygrad_mem.kernels.numpy.fast import threads
inside, over = threading.Event(), threading.Event()
def fork():
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        threads.split(10, lambda start, stop: None, grain=1)
        tm.ones(3, requires_grad=True).sum().backward()
        tm.device("meta")
        return True
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
def held(do):
    with core._accumulating, base._opening, threads._pool._free:
        return do()
if {who!r} == "another thread":
    thread = threading.Thread(target=held, args=(lambda: (inside.set(), over.wait()),), daemon=True)
    thread.start()
    inside.wait()
    forked = fork()
else:
    forked = held(fork)
if forked:
    os._exit(0)
over.set()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_while_another_thread_multiplies_comes_back():
    """A fork ends BLAS's threads, and waited for ever for those that shared a product of another thread."""
    program = """
import os, signal, threading
import tinygrad_mem as tm
signal.alarm(90)
a, over = tm.randn(400, 400), threading.Event()
def multiply():
    while not over.is_set():
        a @ a
thread = threading.Thread(target=multiply)
thread.start()
for _ in range(15):
    if not (child := os.fork()):
        signal.alarm(60)
        a @ a
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
thread.join()
print("done")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_two_orders_are_found():
    book = Book()
    with noted(book):
        from tinygrad_mem import interrupts
        from tinygrad_mem.autograd import core

        with core._accumulating, interrupts.lock, interrupts.lock:
            pass
        assert circle(book.edges) == []
        with interrupts.lock, core._accumulating:
            pass
    (first, second) = circle(book.edges)
    assert {first.split(" at ")[0], second.split(" at ")[0]} == {"_accumulating -> lock", "lock -> _accumulating"}
