"""Worker threads of a loader: they fetch batches ahead, in order, and keep no reference to a batch that they have delivered.

They are threads, not processes: reading files and NumPy's decoding release the interpreter's lock, and the same pool counts
what a worker makes.

In a dry run one thread runs at a time: a thread that requests a batch waits until it is ready. So the order of events, and the
peak, is the same each time, as if the workers kept up.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import scope
from ..devices.random import Apart
from ..functional.random import manual_seed
from .fetch import Fetch

__all__ = ("WorkerInfo", "get_worker_info")


@dataclass(frozen=True)
class WorkerInfo:
    """A description of a worker: its number, the number of workers, its seed, and its shallow copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_here = threading.local()
_BEGIN = (None, None, None)  # the first task of a worker


def get_worker_info() -> WorkerInfo | None:
    """The :class:`WorkerInfo` of this thread; ``None`` outside of workers."""
    return getattr(_here, "info", None)


class End:
    """Marks the end of a worker's stream."""


class Message(str):
    """A text of several lines. A ``KeyError`` shows the ``repr`` of its message, which would join them."""

    __slots__ = ()
    __repr__ = str.__str__


class Failure:
    """An exception in a worker: its class, and its traceback as text, so that no frame keeps a batch alive."""

    def __init__(self, error: BaseException, worker: int) -> None:
        self.kind, self.worker = type(error), worker
        self.text = "".join(traceback.format_exception(error))

    def reraise(self) -> None:
        """Raise the error in the thread that waits for the batch."""
        message = f"Caught {self.kind.__name__} in DataLoader worker thread {self.worker}.\nOriginal {self.text}"
        try:
            error = self.kind(Message(message)) if issubclass(self.kind, Exception) else RuntimeError(message)
        except Exception:  # the exception class needs other arguments
            error = RuntimeError(message)
        try:
            raise error from None
        finally:
            del error  # its traceback holds this frame: avoid a cycle, which would keep the caller's batch


@dataclass(frozen=True)
class WorkerTask:
    """The task of all workers of a loader: ``start(dataset)`` returns the function that makes a batch from indices."""

    dataset: Any
    start: Fetch
    worker_init_fn: Callable[[int], None] | None
    count: int
    default_device: Any


class Pass:
    """One pass over a loader: results by batch number. ``closed`` means that they are no longer needed.

    An interrupt may come while it waits: a ``SimpleQueue`` is a C object, and a ``Condition`` could be left without its lock.
    """

    def __init__(self) -> None:
        self.results: dict[int, Any] = {}
        self.closed = False
        self._arrived: queue.SimpleQueue = queue.SimpleQueue()  # has something if a result has come since the last wait

    def put(self, number: int, result: Any) -> None:
        """Deliver batch ``number``."""
        self.results[number] = result
        if self.closed:
            self.results.clear()
        if self._arrived.empty():
            self._arrived.put(None)

    def wait(self, number: int, timeout: float) -> None:
        """Wait for batch ``number``. Raises: RuntimeError: it did not come within ``timeout`` seconds (0: wait for ever)."""
        end = time.monotonic() + timeout
        while number not in self.results:
            try:
                self._arrived.get(timeout=max(end - time.monotonic(), 0.0) if timeout else None)
            except queue.Empty:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout} seconds; raise timeout=, or set it to 0 to wait"
                ) from None

    def close(self) -> None:
        """Drop all batches, including those that are still being fetched."""
        self.closed = True
        self.results.clear()


class Crew:
    """The worker threads of one loader."""

    def __init__(self, plan: WorkerTask, seed: int) -> None:
        self.dry = scope.local.dry
        self._done = None if self.dry is None else threading.Semaphore(0)
        self.queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(plan.count)]
        infos = [WorkerInfo(i, plan.count, seed + i, copy.copy(plan.dataset)) for i in range(plan.count)]
        self.threads = [
            threading.Thread(target=_work, args=(q, self._done, plan, info), daemon=True, name=f"tinygrad_mem-loader-{info.id}")
            for q, info in zip(self.queues, infos, strict=True)
        ]
        for thread, q in zip(self.threads, self.queues, strict=True):
            thread.start()
            self._put(q, _BEGIN)

    def begin(self, run: Pass) -> None:
        """Start a pass in every worker."""
        for q in self.queues:
            self._put(q, (run, None, None))

    def ask(self, run: Pass, number: int, indices: Any, worker: int) -> None:
        """Have ``worker`` fetch the batch ``number`` of ``run``."""
        self._put(self.queues[worker], (run, number, indices))

    def _put(self, q: queue.SimpleQueue, task: tuple) -> None:
        q.put(task)
        if self._done is not None:
            self._done.acquire()

    def is_alive(self) -> bool:
        """False in a child process: a fork copies no threads."""
        return all(thread.is_alive() for thread in self.threads)

    def stop(self) -> None:
        """End the threads, and wait for them."""
        for q, thread in zip(self.queues, self.threads, strict=True):
            q.put(None)
            if self._done is not None:
                _wait(thread)
        for thread in self.threads:
            _wait(thread)


def _wait(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join(timeout=5)


def _work(tasks: queue.SimpleQueue, done: threading.Semaphore | None, plan: WorkerTask, info: WorkerInfo) -> None:
    scope.local.default_device, scope.local.phase = plan.default_device, "data"
    with Apart():  # each worker draws by itself: the order in which they run does not change the numbers
        manual_seed(info.seed)
        _here.info = info
        _serve(tasks, done, plan, info)


def _serve(tasks: queue.SimpleQueue, done: threading.Semaphore | None, plan: WorkerTask, info: WorkerInfo) -> None:
    worker, broken, fetch = info.id, None, None
    while (task := tasks.get()) is not None:
        run, number, indices = task
        del task
        if run is None:
            if plan.worker_init_fn is not None:
                broken = _answer(plan.worker_init_fn, worker, plan, worker)
                broken = broken if isinstance(broken, Failure) else None
        elif number is None:  # a pass begins
            fetch = None
            fetch = _answer(plan.start, info.dataset, plan, worker)
        elif not run.closed:
            problem = next((x for x in (broken, fetch) if isinstance(x, Failure)), None)
            run.put(number, problem or _answer(fetch, indices, plan, worker))
        del run, indices
        if done is not None:
            done.release()


def _answer(function: Any, argument: Any, plan: WorkerTask, worker: int) -> Any:
    try:
        return function(argument)
    except BaseException as error:  # of any kind: the caller waits for an answer
        return End if plan.start.iterable and isinstance(error, StopIteration) else Failure(error, worker)
