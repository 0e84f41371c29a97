"""Two or more cores for one kernel: NumPy lets go of the interpreter in ufuncs, copies and matrix products.

``split`` cuts a range into one part a worker and runs the parts at once; small ranges run in the caller. Workers sleep at
a queue of their own; what they have not begun when the caller is done with its part, it does itself. ``scratch`` is a small
buffer of the running thread for tile-sized temporaries; it is made once, and it is listed in ``kernels/uncounted.py``.
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
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ...interrupts import covered, each, may_wait
from ...scope import FRESH, settle_numpy, switched

SCRATCH = 1 << 21  # bytes a thread
TILE = 1 << 18  # elements: with fewer, threads wait longer for the interpreter than faster caches save
GRAIN = 1 << 19  # elements that pay for a core of their own: to wake it and to wait for it takes near 80 microseconds

_local = threading.local()


def threads() -> int:
    """The number of workers that kernels use: the cores that this process may run on, or ``TINYGRAD_MEM_THREADS``."""
    return _pool.size


def scratch(shape: tuple[int, ...], dtype: Any = np.float32, slot: int = 0, slots: int = 1) -> np.ndarray:
    """An uninitialised tile of the running thread; ``slots`` tiles may be in use side by side, each ``SCRATCH / slots`` bytes.

    The contents last until the next call with the same slot in this thread.
    """
    buffer = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = np.empty(SCRATCH, np.uint8)
    return np.ndarray(shape, dtype, buffer, slot * (SCRATCH // slots & -64))  # aligned: else ufuncs copy it first


class _Job:
    """A task that one thread does: the worker in whose queue it is, or its giver, whoever takes it first."""

    __slots__ = ("_owner", "done", "error", "over", "task")

    def __init__(self, task: Callable[[], object]) -> None:
        self.task: Callable[[], object] | None = task
        self.error: BaseException | None = None
        self.over = False
        self.done = threading.Lock()
        self.done.acquire()
        self._owner: dict[int, object] = {}

    def is_of(self, who: object) -> bool:
        """Whether it is ``who``'s: the first to ask has it. One call of C, with the same answer when it is asked again."""
        return self._owner.setdefault(0, who) is who

    def run(self) -> None:
        """Run the task in a worker; errors are for the giver."""
        try:
            assert self.task is not None
            self.task()
        except BaseException as error:
            self.error = error
        self.task = None  # its arrays go before the giver goes on
        self.over = True
        self.done.release()

    def end(self, giver: object) -> None:
        """Return when no worker does it any more; if none has begun it, none will."""
        if self.is_of(giver):
            self.task = None  # the worker may come to it later: it must hold no array
        else:
            while not self.over:  # what was waited for is not waited for again, when a signal has come in between
                self.done.acquire()


@covered
def _end(jobs: list[_Job], giver: object) -> None:
    """Return when all jobs have ended, also where a signal comes meanwhile."""
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
    """Does the jobs of its queue, one after the other."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="tinygrad_mem-kernel")
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        with switched(FRESH):  # of whatever program its first job is, it belongs to none
            self.start()

    def run(self) -> None:
        settle_numpy()
        while True:
            job = self.jobs.get()
            if job.is_of(self):
                job.run()
            del job


class _Pool:
    """The workers of this process; one caller at a time uses them, any other runs its work alone."""

    def __init__(self) -> None:
        asked = os.environ.get("TINYGRAD_MEM_THREADS", "")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.size = int(asked) if asked.isdecimal() and int(asked) else cores
        self._workers: list[_Worker] = []
        self._free = threading.RLock()  # a finalizer may ask too
        self._user: Callable[[], object] = _nobody

    def take(self, user: object, count: int) -> list[_Worker]:
        """So many workers for ``user``, until :meth:`leave` or its end; none where somebody else has them, or where the thread
        may not wait for them.
        """
        if not may_wait():
            return []
        with self._free:
            if self._user() is not None:
                return []
            while len(self._workers) < count:
                self._workers.append(_Worker())
            self._user = weakref.ref(user)
            return self._workers[:count]

    def leave(self, user: object) -> None:
        """The workers are anybody's again, if they were ``user``'s."""
        if self._user() is user:
            self._user = _nobody


def _nobody() -> None:
    return None


class _User:
    """The user of the workers: one call of :func:`split`. When an interrupt ends that anywhere, they are free."""

    __slots__ = ("__weakref__",)


_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _pool.__init__())  # a child has no threads but its own


def split(count: int, run: Callable[[int, int], None], grain: int = GRAIN) -> None:
    """``run(start, stop)`` over parts of ``range(count)``, at once on several cores when ``count`` is at least two grains.

    The parts are the same for the same count, whatever runs them: results do not depend on timing.
    """
    parts = min(_pool.size, count // grain) if grain else _pool.size
    user = _User() if parts > 1 else None
    workers = [] if user is None else _pool.take(user, parts - 1)
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
    """``run(lane, number)`` for all numbers below ``count``, at once, on at most ``most`` lanes.

    A lane is a part of a workspace that one thread at a time uses. It takes number after number, so that all lanes end together
    though some begin late: what a number gives must not depend on its lane.
    """
    left = deque(range(count))

    def some(first: int, last: int) -> None:
        for lane in range(first, last):
            for number in each(left):
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
        self._left: _Tasks = SimpleQueue()
        self._job: _Job | None = None
        self._groups = 0  # handed over
        self._begun = [0]  # the last one of which the worker has begun a task

    def hand_over(self, tasks: Sequence[Callable[[], object]]) -> None:
        self._groups += 1
        if self._job is None and not self._begin():
            _all(tasks)
        else:
            for task in tasks:
                self._left.put((self._groups, task))

    def finish(self) -> None:
        """Return when all that was handed over is done."""
        if self._job is None:
            return
        job, queue, left = self._job, self._left, deque()
        try:
            with suppress(Empty):
                while True:
                    left.append(queue.get_nowait())
            if left and left[0][0] == self._begun[0]:  # then all of the groups before are done
                left.popleft()[1]()
        finally:
            queue.put(None)
            self._job, self._left = None, SimpleQueue()
            _end([job], self)
            _pool.leave(self)
        _raise([job])
        for _, group in groupby(left, itemgetter(0)):
            _all([task for _, task in group])

    def _begin(self) -> bool:
        workers = _pool.take(self, 1) if _pool.size > 1 else []
        if workers:
            self._job = _Job(partial(_work, self._left, self._begun))
            workers[0].jobs.put(self._job)
        return bool(workers)

    def __del__(self) -> None:
        self._left.put(None)  # an interrupt came before finish(): the worker would wait for ever


def _work(queue: _Tasks, begun: list[int]) -> None:
    while (found := queue.get()) is not None:
        begun[0], task = found
        del found
        task()


def _all(tasks: Sequence[Callable[[], object]]) -> None:
    def run(_: int, number: int) -> None:
        tasks[number]()

    lanes(len(tasks), len(tasks), run)
