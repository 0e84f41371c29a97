"""Two or more cores for one kernel: NumPy lets go of the interpreter in ufuncs, copies and matrix products.

``split`` cuts a range into one part a worker and runs the parts at once; small ranges run in the caller. Workers sleep on
a lock of their own. ``scratch`` is a small buffer of the running thread for tile-sized temporaries; it is made once, and it
is listed in ``kernels/uncounted.py``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ...scope import settle_numpy

SCRATCH = 1 << 21  # bytes a thread
TILE = 1 << 18  # elements: with fewer, threads wait longer for the interpreter than faster caches save
GRAIN = 1 << 19  # elements that pay for a core of their own: to wake it and to wait for it takes near 80 microseconds

_local = threading.local()


def threads() -> int:
    """How many workers kernels use: the cores that this process may run on, or ``TINYGRAD_MEM_THREADS``."""
    return _pool.size


def scratch(shape: tuple[int, ...], dtype: Any = np.float32, slot: int = 0, slots: int = 1) -> np.ndarray:
    """An uninitialised tile of the running thread; ``slots`` tiles may be in use side by side, each ``SCRATCH / slots`` bytes.

    The contents last until the next call with the same slot in this thread.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = np.empty(SCRATCH, np.uint8)
    return np.ndarray(shape, dtype, buffer, slot * (SCRATCH // slots & -64))  # aligned: else ufuncs copy it first


class _Worker(threading.Thread):
    """Waits for a task, runs it, says that it is done; errors travel to the caller."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="tinygrad_mem-kernel")
        self.go, self.done = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.done.acquire()
        self.task: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        settle_numpy()
        while True:
            self.go.acquire()
            try:
                assert self.task is not None
                self.task()
            except BaseException as error:
                self.error = error
            self.task = None
            self.done.release()

    def begin(self, task: Callable[[], None]) -> None:
        self.task = task
        self.go.release()

    def wait(self) -> None:
        self.done.acquire()
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame


class _Pool:
    """The workers of this process; one caller at a time uses them, any other runs its work alone."""

    def __init__(self) -> None:
        asked = os.environ.get("TINYGRAD_MEM_THREADS", "")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = int(asked) if asked.isdecimal() and int(asked) else cores
        self.workers: list[_Worker] = []
        self.busy = threading.Lock()


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _pool.__init__())  # a child has no threads but its own


def split(count: int, run: Callable[[int, int], None], grain: int = GRAIN) -> None:
    """``run(start, stop)`` over parts of ``range(count)``, at once on several cores when ``count`` is at least two grains.

    The parts are the same for the same count, whatever runs them: results do not depend on timing.
    """
    parts = min(_pool.size, count // grain) if grain else _pool.size
    if parts < 2 or not _pool.busy.acquire(blocking=False):
        run(0, count)
        return
    try:
        while len(_pool.workers) < parts - 1:
            _pool.workers.append(_Worker())
        bounds = [count * i // parts for i in range(parts + 1)]
        helpers = _pool.workers[: parts - 1]
        for worker, start, stop in zip(helpers, bounds[1:-1], bounds[2:], strict=True):
            worker.begin(lambda start=start, stop=stop: run(start, stop))
        try:
            run(bounds[0], bounds[1])
        finally:
            for worker in helpers:
                worker.wait()
    finally:
        _pool.busy.release()


def lanes(count: int, most: int, run: Callable[[int, int], None]) -> None:
    """``run(lane, number)`` for all numbers below ``count``, at once, on at most ``most`` lanes.

    A lane is a part of a workspace that one thread at a time uses. It takes number after number, so that all lanes end together
    though some begin late: what a number gives must not depend on its lane.
    """
    left = iter(range(count))

    def some(first: int, last: int) -> None:
        for lane in range(first, last):
            for number in left:
                run(lane, number)

    split(max(min(_pool.size, most, count), 1), some, grain=1)


_Tasks = SimpleQueue[tuple[int, Callable[[], object]] | None]  # with the number of their group; None is the end


class Beside:
    """Tasks that another thread does while this one goes on; ``finish`` does with all threads what is left.

    Tasks come in groups. Those of a group may be done at once, but only after all of the groups before. Where there is no other
    thread, or another caller has it, they are done when they are handed over. An error of a task is raised by ``finish``; the
    groups after it are not done.
    """

    def __init__(self) -> None:
        self.left: _Tasks = SimpleQueue()
        self.worker: _Worker | None = None
        self.groups = self.begun = 0  # handed over, and the last one of which the worker has begun a task

    def hand_over(self, tasks: Sequence[Callable[[], object]]) -> None:
        self.groups += 1
        if self.worker is None and not self._begin():
            _all(tasks)
        else:
            for task in tasks:
                self.left.put((self.groups, task))

    def finish(self) -> None:
        """Return when all that was handed over is done."""
        if self.worker is None:
            return
        worker, queue, left = self.worker, self.left, deque()
        try:
            with suppress(Empty):
                while True:
                    left.append(queue.get_nowait())
            if left and left[0][0] == self.begun:  # then all of the groups before are done
                left.popleft()[1]()
        finally:
            queue.put(None)
            self.worker, self.left = None, SimpleQueue()
            try:
                worker.wait()
            finally:
                _pool.busy.release()
        for _, group in groupby(left, itemgetter(0)):
            _all([task for _, task in group])

    def _begin(self) -> bool:
        if _pool.size < 2 or not _pool.busy.acquire(blocking=False):
            return False
        if not _pool.workers:
            _pool.workers.append(_Worker())
        self.worker = _pool.workers[0]
        self.worker.begin(partial(self._work, self.left))
        return True

    def _work(self, queue: _Tasks) -> None:
        while (found := queue.get()) is not None:
            self.begun, task = found
            task()


def _all(tasks: Sequence[Callable[[], object]]) -> None:
    def run(_: int, number: int) -> None:
        tasks[number]()

    lanes(len(tasks), len(tasks), run)
