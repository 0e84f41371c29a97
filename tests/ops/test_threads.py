"""Work on several cores: every task once, a lane with one thread at a time, and BLAS's own threads asleep beside ours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem.kernels.numpy.fast import blas, threads
from tinygrad_mem.nn import functional as F


@pytest.fixture(params=[1, 2, 3])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(threads._pool, "size", request.param)
    return request.param


@pytest.mark.parametrize(("count", "most"), [(0, 2), (1, 2), (5, 0), (5, 1), (5, 2), (97, 8)])
def test_lanes_run_every_number_once_and_share_no_lane(cores: int, count: int, most: int):
    done, busy = [], [threading.Lock() for _ in range(max(most, 1))]

    def run(lane: int, number: int) -> None:
        assert busy[lane].acquire(blocking=False), "two threads in one lane"
        done.append(number)
        busy[lane].release()

    threads.lanes(count, most, run)
    assert sorted(done) == list(range(count))


def test_a_lane_that_begins_late_does_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads._pool, "size", 2)
    others_are_done, numbers, first = threading.Event(), {0: 0, 1: 0}, threading.Lock()

    def run(lane: int, number: int) -> None:
        numbers[lane] += 1
        if first.acquire(blocking=False):
            assert others_are_done.wait(60)
        elif sum(numbers.values()) == 10:
            others_are_done.set()

    threads.lanes(10, 2, run)
    assert sorted(numbers.values()) == [1, 9]


def test_lanes_begin_with_the_parts_of_a_split(monkeypatch: pytest.MonkeyPatch):
    """Then a core finds in its cache what it wrote in an earlier kernel."""
    monkeypatch.setattr(threads._pool, "size", 2)
    both, first = threading.Barrier(2), dict[int, int]()

    def run(lane: int, number: int) -> None:
        if lane not in first:
            first[lane] = number
            both.wait(60)

    threads.lanes(10, 2, run)
    assert first == {0: 0, 1: 5}


def test_an_error_in_a_lane_reaches_the_caller(cores: int):
    def run(lane: int, number: int) -> None:
        if number == 7:
            raise ValueError("of number 7")

    with pytest.raises(ValueError, match="of number 7"):
        threads.lanes(20, 4, run)
    threads.lanes(3, 3, lambda lane, number: None)  # and the threads go on


@pytest.mark.parametrize("after", [0, 1, 2, 5], ids="finish after {}".format)
def test_groups_beside_are_done_once_each_after_the_one_before(cores: int, after: int):
    done: list[tuple[int, int]] = []
    beside = threads.Beside()
    for group in range(6):
        beside.hand_over([partial(done.append, (group, number)) for number in range(4)])
        if group == after:
            beside.finish()
            assert len(done) == 4 * (group + 1)
    beside.finish()
    beside.finish()  # of nothing
    assert sorted(done) == [(group, number) for group in range(6) for number in range(4)]
    assert [group for group, _ in done] == sorted(group for group, _ in done)


def test_tasks_beside_run_while_their_giver_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads._pool, "size", 2)
    goes_on, was_there = threading.Event(), threading.Event()
    beside = threads.Beside()

    def task():
        assert goes_on.wait(60)
        was_there.set()

    beside.hand_over([task])
    goes_on.set()
    assert was_there.wait(60)
    beside.finish()


def test_a_giver_helps_with_the_group_that_is_begun_and_not_with_the_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads._pool, "size", 2)
    begun, others = threading.Event(), threading.Event()
    beside, done = threads.Beside(), []

    def first():
        begun.set()
        assert others.wait(60), "nobody did the rest of the group"
        done.append("first")

    beside.hand_over([first, others.set])
    beside.hand_over([partial(done.append, "next")])
    assert begun.wait(60)
    beside.finish()
    assert done == ["first", "next"]


@pytest.mark.parametrize("late", [False, True], ids="late: {}".format)
def test_a_task_beside_is_never_divided(cores: int, late: bool):
    """Whether a worker or the giver runs it is a question of time, and a product in parts has other last bits."""
    beside, parts, begun, goes_on = threads.Beside(), [], threading.Event(), threading.Event()

    def first():
        begun.set()
        assert goes_on.wait(60)

    def task():
        threads.split(8, lambda start, stop: parts.append((start, stop)), grain=1)

    if late and cores > 1:
        beside.hand_over([first])
        assert begun.wait(60)
        threading.Timer(0.05, goes_on.set).start()
    beside.hand_over([task])
    beside.finish()
    assert parts == [(0, 8)]
    threads.split(8, lambda start, stop: parts.append((start, stop)), grain=1)
    assert len(parts) == 1 + cores  # and all threads are free again


def test_what_the_giver_did_itself_holds_no_array(monkeypatch: pytest.MonkeyPatch):
    """The worker comes to it later, when the giver's memory is somebody else's."""
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threads._pool, "size", 2)

    waiting: list[Any] = []
    monkeypatch.setattr(threads._pool, "_workers", [SimpleNamespace(jobs=SimpleNamespace(put=waiting.append))])
    array = np.ones(4)
    gone = weakref.ref(array)
    threads.split(2, lambda i, j, array=array: None, grain=1)
    del array
    assert len(waiting) == 1
    assert gone() is None


def test_an_error_beside_reaches_the_caller_and_later_groups_are_not_done(cores: int):
    done: list[int] = []

    def wrong():
        raise ValueError("of a task")

    beside = threads.Beside()

    def give():
        beside.hand_over([wrong])
        beside.hand_over([partial(done.append, 1)])
        beside.finish()

    with pytest.raises(ValueError, match="of a task"):
        give()
    assert not done
    beside.hand_over([partial(done.append, 2)])  # and it goes on
    beside.finish()
    assert done == [2]
    threads.lanes(3, 3, lambda lane, number: None)


def test_who_finds_the_threads_busy_does_its_tasks_itself(cores: int):
    done: list[threading.Thread] = []
    one, other = threads.Beside(), threads.Beside()
    waiting = threading.Event()
    one.hand_over([] if cores == 1 else [partial(waiting.wait, 60)])
    other.hand_over([lambda: done.append(threading.current_thread())])
    assert done == [threading.current_thread()]
    waiting.set()
    one.finish()
    other.finish()


@pytest.fixture
def awake(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What called BLAS with so many numbers that it would wake its threads, while it was allowed to."""
    if blas._set_threads is None:
        pytest.skip("NumPy's BLAS is not OpenBLAS: how many threads it uses is its own affair")
    found: list[str] = []

    def spy(real: Any, *arrays: Any, **more: Any) -> Any:
        if blas._get_threads() > 1 and max(a.size for a in arrays[:2]) > 10_000:
            found.append(f"{real.__name__} of {[a.shape for a in arrays[:2]]}")
        return real(*arrays, **more)

    for name in ("matmul", "vecdot"):
        monkeypatch.setattr(np, name, partial(spy, getattr(np, name)))
    before = blas._get_threads()
    blas._set_threads(2)
    yield found
    blas._set_threads(before)


@pytest.mark.parametrize("groups", [1, 4], ids=["batch norm", "depthwise convolution"])
def test_sums_of_long_lines_leave_blass_threads_asleep(awake: list[str], groups: int):
    x = tm.ones(2, 4, 112, 112, requires_grad=True)
    weight, bias = (tm.ones(4, requires_grad=True) for _ in range(2))
    if groups == 1:
        y = F.batch_norm(x, None, None, weight, bias, training=True)
    else:
        y = F.conv2d(x, tm.ones(4, 1, 3, 3, requires_grad=True), padding=1, groups=4)
    y.square().sum().backward()
    assert not awake


def test_no_thread_waits_in_a_loop_after_a_product():
    """After a large product the process takes no time of the processor: BLAS's threads would wait in a loop for more work."""
    code = """
import time
import numpy as np
import tinygrad_mem
from tinygrad_mem.kernels.numpy.fast import blas
a = np.ones((1024, 1024), np.float32)
blas.matmul(a, a, np.empty_like(a))
time.sleep(0.01)
start = time.process_time()
time.sleep(0.02)
assert time.process_time() - start < 0.01, time.process_time() - start
"""
    environment = os.environ | {"TINYGRAD_MEM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_large_products_are_shared_by_our_threads(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((600, 400), np.float32), rng.standard_normal((400, 500), np.float32)
    shared: list[int] = []
    monkeypatch.setattr(blas, "split", lambda count, run, grain: (shared.append(count), run(0, count)))
    out = np.empty((600, 500), np.float32)
    blas.matmul(a, b, out)
    assert shared == [600]
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)
