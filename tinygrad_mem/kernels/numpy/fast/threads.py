"""Several cores for one kernel: NumPy releases the interpreter lock in ufuncs, copies and matrix products.

``split`` divides a range into one part per worker and runs the parts at the same time. Small ranges run in the caller. Each
worker waits at its own queue. When the caller has finished its part, it also runs parts that no worker has begun. ``scratch``
is a small buffer per thread for temporaries of a tile's size. It is allocated once, and ``kernels/uncounted.py`` lists it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ....callbacks import finalizer
from ....interrupts import ReentrantLock, drain, may_wait, signal_safe
from ....scope import FRESH, settle_numpy, switched

SCRATCH = 1 << 21  # bytes per thread
TILE = 1 << 18  # elements of a tile: with fewer, waiting for the interpreter costs more than faster caches save
GRAIN = 1 << 19  # elements that are worth a core: waking a thread and waiting for it takes about 80 microseconds


class _Local(threading.local):
    """The scratch of each thread, made when the thread first asks for it."""

    def __init__(self) -> None:
        self.buffer = np.empty(SCRATCH, np.uint8)


_local = _Local()


def threads() -> int:
    """The number of workers that kernels use: the cores that this process may run on, or ``TINYGRAD_MEM_THREADS``.

    One, where no thread can be started.
    """
    return _pool.size


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The number of cores that this process may use. Its affinity and the quota of its container (cgroup 2) limit it."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text(encoding="ascii").split()
        return min(count, max(1, -(-int(most) // int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def scratch(shape: tuple[int, ...], dtype: Any = np.float32, slot: int = 0, slots: int = 1) -> np.ndarray:
    """An uninitialised tile of the running thread. ``slots`` tiles of ``SCRATCH / slots`` bytes may be in use at a time.

    The contents last until the next call with the same slot in this thread.
    """
    return np.ndarray(shape, dtype, _local.buffer, slot * (SCRATCH // slots & -64))  # aligned: else ufuncs copy it first


def count_up(first: int, step: int, count: int, slot: int, slots: int) -> np.ndarray:
    """``count`` int64 numbers from ``first`` on, ``step`` apart, in scratch."""
    line = scratch((count,), np.int64, slot, slots)
    line.fill(step)
    line[:1] = first
    np.add.accumulate(line, out=line)
    return line


class _Job:
    """A task that runs once: in the worker with the queue, or in the thread that made it, whichever begins first."""

    __slots__ = ("_owner", "done", "error", "over", "task")

    def __init__(self, task: Callable[[], object]) -> None:
        self.task: Callable[[], object] | None = task
        self.error: BaseException | None = None
        self.over = False
        self.done = threading.Lock()
        self.done.acquire()
        self._owner: dict[int, object] = {}

    def is_of(self, who: object) -> bool:
        """True if ``who`` runs it: the first that asks. It is one call of C, so atomic; a repeated call returns the same."""
        return self._owner.setdefault(0, who) is who

    def run(self) -> None:
        """Run the task in a worker. Errors are raised in the thread that made it."""
        try:
            assert self.task is not None
            self.task()
        except BaseException as error:
            self.error = error
        self.task = None  # drop its arrays before the other thread continues
        self.over = True
        self.done.release()

    def end(self, giver: object) -> None:
        """Wait until no worker runs it. If none has begun it, none will."""
        if self.is_of(giver):
            self.task = None  # the worker may find it later: it must not keep arrays alive
        else:
            while not self.over:  # if an interrupt comes in between, a finished job is not waited for again
                self.done.acquire()


@signal_safe
def _end(jobs: list[_Job], giver: object) -> None:
    """Wait until all jobs have ended, also if a signal comes meanwhile."""
    try:
        for job in jobs:
            job.end(giver)
    finally:
        for job in jobs:
            job.end(giver)


def _raise(jobs: list[_Job]) -> None:
    """Raise the first error of the jobs, if there is one."""
    for job in jobs:
        error, job.error = job.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame


class _Worker(threading.Thread):
    """Runs the jobs of its queue one after another."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="tinygrad_mem-kernel")
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        with switched(FRESH):  # it belongs to no program, also if its first job comes from a dry run
            self.start()

    def run(self) -> None:
        settle_numpy()
        while True:
            job = self.jobs.get()
            if job.is_of(self):
                job.run()
            del job


class _Pool:
    """The workers of this process. They serve one caller at a time; other callers run their work alone."""

    def __init__(self) -> None:
        asked = os.environ.get("TINYGRAD_MEM_THREADS", "")
        self.size = int(asked) if asked.isdecimal() and int(asked) else cores()
        self._workers: list[_Worker] = []
        self._free = ReentrantLock()  # a finalizer may call this too
        self._user: Callable[[], object] = _no_user

    def take(self, user: object, count: int) -> list[_Worker]:
        """Reserve ``count`` workers for ``user``, until :meth:`leave` or its end. No workers if another user has them, or if
        this thread may not wait for them.
        """
        if not may_wait():
            return []
        with self._free:
            if self._user() is not None:
                return []
            try:
                while len(self._workers) < count:
                    self._workers.append(_Worker())
            except RuntimeError:  # this system starts no (more) threads
                self.size = 1
                return []
            self._user = weakref.ref(user)
            return self._workers[:count]

    def leave(self, user: object) -> None:
        """Free the workers, if ``user`` had them."""
        if self._user() is user:
            self._user = _no_user


def _no_user() -> None:
    return None


class _User:
    """The user of the workers: one call of :func:`split`. If an interrupt ends the call, the workers are free again."""

    __slots__ = ("__weakref__",)


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _pool.__init__())  # a forked child has none of these threads


def split(count: int, run: Callable[[int, int], None], grain: int = GRAIN) -> None:
    """``run(start, stop)`` over parts of ``range(count)``, on several cores if ``count`` is at least two grains.

    The parts depend on the count only, so results do not depend on timing.
    """
    parts = min(_pool.size, count // grain) if grain else _pool.size
    if parts < 2:
        run(0, count)
        return
    user = _User()
    workers = _pool.take(user, parts - 1)
    if not workers:
        run(0, count)
        return
    bounds = [count * i // parts for i in range(parts + 1)]
    jobs = [_Job(partial(run, start, stop)) for start, stop in pairwise(bounds[1:])]
    try:
        for worker, job in zip(workers, jobs, strict=True):
            worker.jobs.put(job)
        run(0, bounds[1])
        for job, (start, stop) in zip(jobs, pairwise(bounds[1:]), strict=True):
            if job.is_of(user):
                run(start, stop)
    finally:
        _end(jobs, user)
        _pool.leave(user)
    _raise(jobs)


def lanes(count: int, most: int, run: Callable[[int, int], None]) -> None:
    """``run(lane, number)`` for all numbers below ``count``, on at most ``most`` lanes at the same time.

    A lane is a part of a workspace that one thread at a time uses. It begins with numbers of its own, as in :func:`split`: what
    a core has written in one kernel it reads in the next, for another core's cache is far away. Then it takes numbers that
    are left in other lanes, so that all lanes end at about the same time. A result must not depend on the lane.
    """
    at_once = min(_pool.size, most, count)
    if at_once < 2:
        for number in range(count):
            run(0, number)
        return
    bounds = [count * i // at_once for i in range(at_once + 1)]
    left = [deque(range(start, stop)) for start, stop in pairwise(bounds)]

    def some(first: int, last: int) -> None:
        for lane in range(first, last):
            for numbers in (left[lane], *left):
                for number in drain(numbers):
                    run(lane, number)

    split(at_once, some, grain=1)


_Task = tuple[int, Callable[[], object]]


class _Line:
    """Tasks that wait for a worker, with the numbers of their groups.

    Attributes:
        begun: the last group of which the worker has begun a task.
        over: set before the giver takes what is left. The worker may then hold a task that comes after one of the giver's, and
            gives it back.
    """

    __slots__ = ("back", "begun", "over", "waiting")

    def __init__(self) -> None:
        self.waiting: SimpleQueue[_Task | None] = SimpleQueue()  # None: the end
        self.back: list[_Task] = []
        self.begun, self.over = 0, False

    def work(self) -> None:
        """Run the tasks, in a worker."""
        while (found := self.waiting.get()) is not None:
            if self.over:
                self.back.append(found)
                return
            self.begun, task = found
            del found
            task()


class Beside:
    """Tasks that another thread runs while this thread continues; ``finish`` runs the remaining ones on all threads.

    Tasks come in groups. Tasks of a group may run at the same time, but only after all groups before. If there is no other
    thread, or another caller uses it, tasks run when they are given. ``finish`` raises the error of a task; later groups do not
    run.
    """

    def __init__(self) -> None:
        self._line = _Line()
        self._job: _Job | None = None
        self._groups = 0  # given so far

    def hand_over(self, tasks: Sequence[Callable[[], object]]) -> None:
        self._groups += 1
        if self._job is None and not self._begin():
            _all(tasks)
        else:
            for task in tasks:
                self._line.waiting.put((self._groups, task))

    def finish(self) -> None:
        """Wait until all given tasks are done."""
        if self._job is None:
            return
        job, line, left = self._job, self._line, deque()
        try:
            line.over = True
            with suppress(Empty):
                while True:
                    left.append(line.waiting.get_nowait())
            if left and left[0][0] == line.begun:  # so all earlier groups are done
                left.popleft()[1]()
        finally:
            line.waiting.put(None)
            self._job, self._line = None, _Line()
            _end([job], self)
            _pool.leave(self)
        _raise([job])
        for _, group in groupby(sorted([*left, *line.back], key=itemgetter(0)), itemgetter(0)):
            _all([task for _, task in group])

    def _begin(self) -> bool:
        workers = _pool.take(self, 1) if _pool.size > 1 else []
        if workers:
            self._job = _Job(self._line.work)
            workers[0].jobs.put(self._job)
        return bool(workers)

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_line"):
            self._line.waiting.put(None)  # an interrupt came before finish(): the worker would wait forever


def _all(tasks: Sequence[Callable[[], object]]) -> None:
    """Run the tasks on all threads. No task is divided further: its result would depend on how many are left."""

    def run(_: int, number: int) -> None:
        tasks[number]()

    alone = _User()
    if len(tasks) == 1:
        _pool.take(alone, 0)
    try:
        lanes(len(tasks), len(tasks), run)
    finally:
        _pool.leave(alone)
