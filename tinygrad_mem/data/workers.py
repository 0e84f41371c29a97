"""Worker threads of a loader: they fetch batches ahead, in order, and let go of every batch that they hand over.

Threads, not processes: samples are read and decoded by NumPy and file reads, which let go of the interpreter, and what a
worker makes is counted by the same pool as everything else.

In a dry run one thread runs at a time: who asks for a batch goes on when it is there. So the order of events, and with it the
peak, is the same each time: that of workers who keep up.
"""

from __future__ import annotations

import copy
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import scope


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's description: its number, how many there are, its seed, and its (shallow) copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_here = threading.local()
_BEGIN = (None, None, None)  # the first task of a worker


def get_worker_info() -> WorkerInfo | None:
    """In a worker of a loader, which one it is; ``None`` in the main thread."""
    return getattr(_here, "info", None)


class End:
    """A worker's answer when its stream of an iterable dataset has ended."""


class Failure:
    """An exception of a worker: its class and its traceback as text, so that no frame keeps a batch alive."""

    def __init__(self, error: BaseException, worker: int) -> None:
        self.kind, self.worker = type(error), worker
        self.text = "".join(traceback.format_exception(error))

    def reraise(self) -> None:
        """Raise it in the thread that waits for the batch."""
        message = f"Caught {self.kind.__name__} in DataLoader worker thread {self.worker}.\nOriginal {self.text}"
        try:
            error = self.kind(message)
        except Exception:  # an exception class that wants other arguments
            error = RuntimeError(message)
        try:
            raise error from None
        finally:
            del error  # its traceback holds this frame: no cycle, and no batch of the caller's is kept


@dataclass(frozen=True)
class WorkerTask:
    """The task of every worker of a loader: ``start(dataset)`` gives the function that makes a batch of indices."""

    dataset: Any
    start: Callable[[Any], Callable[[Any], Any]]
    worker_init_fn: Callable[[int], None] | None
    count: int
    default_device: Any


class Pass:
    """One iteration over a loader: results by batch number. ``closed`` means that nobody waits for them any more."""

    def __init__(self) -> None:
        self.ready = threading.Condition()
        self.results: dict[int, Any] = {}
        self.closed = False

    def put(self, number: int, result: Any) -> None:
        """Hand over batch ``number``."""
        with self.ready:
            if not self.closed:
                self.results[number] = result
            self.ready.notify_all()

    def get(self, number: int, timeout: float) -> Any:
        """Wait for batch ``number``.

        Raises:
            RuntimeError: it did not come within ``timeout`` seconds (0: wait for ever).
        """
        with self.ready:
            if not self.ready.wait_for(lambda: number in self.results, timeout or None):
                raise RuntimeError(f"DataLoader timed out after {timeout} seconds; raise timeout=, or set it to 0 to wait")
            return self.results.pop(number)

    def close(self) -> None:
        """Drop what was fetched, and what is still being fetched when it comes."""
        with self.ready:
            self.closed = True
            fetched, self.results = self.results, {}
        del fetched  # here: what it frees asks for other locks


class Crew:
    """The worker threads of one loader."""

    def __init__(self, plan: WorkerTask, seed: int) -> None:
        self.dry = scope.local.dry
        self._done = None if self.dry is None else threading.Semaphore(0)
        self.queues: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in range(plan.count)]
        self.threads = [
            threading.Thread(target=_work, args=(q, self._done, plan, i, seed), daemon=True, name=f"tinygrad_mem-loader-{i}")
            for i, q in enumerate(self.queues)
        ]
        for thread, q in zip(self.threads, self.queues, strict=True):
            thread.start()
            self._tell(q, _BEGIN)

    def begin(self, run: Pass) -> None:
        """Tell every worker that a pass begins."""
        for q in self.queues:
            self._tell(q, (run, None, None))

    def ask(self, run: Pass, number: int, indices: Any, worker: int) -> None:
        """Have ``worker`` fetch the batch ``number`` of ``run``."""
        self._tell(self.queues[worker], (run, number, indices))

    def _tell(self, q: queue.SimpleQueue, task: tuple) -> None:
        q.put(task)
        if self._done is not None:
            self._done.acquire()

    def stop(self) -> None:
        """End the threads, and wait until they have let go of everything."""
        for q, thread in zip(self.queues, self.threads, strict=True):
            q.put(None)
            if self._done is not None:
                _wait(thread)
        for thread in self.threads:
            _wait(thread)


def _wait(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join(timeout=5)


def _work(tasks: queue.SimpleQueue, done: threading.Semaphore | None, plan: WorkerTask, worker: int, seed: int) -> None:
    scope.local.default_device, scope.local.phase = plan.default_device, "data"
    dataset = copy.copy(plan.dataset)
    _here.info = WorkerInfo(worker, plan.count, seed + worker, dataset)
    broken: Any = None
    fetch: Any = None
    while (task := tasks.get()) is not None:
        run, number, indices = task
        del task
        if run is None:
            if plan.worker_init_fn is not None:
                broken = _answer(plan.worker_init_fn, worker, worker)
                broken = broken if isinstance(broken, Failure) else None
        elif number is None:  # a pass begins
            fetch = None
            fetch = _answer(plan.start, dataset, worker)
        elif not run.closed:
            problem = next((x for x in (broken, fetch) if isinstance(x, Failure)), None)
            run.put(number, problem or _answer(fetch, indices, worker))
        del run, indices
        if done is not None:
            done.release()


def _answer(function: Callable, argument: Any, worker: int) -> Any:
    try:
        return function(argument)
    except StopIteration:
        return End
    except Exception as error:
        return Failure(error, worker)
