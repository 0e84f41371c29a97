"""The loader: a dataset, an order, a way to collate, and threads that fetch ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic

from .. import scope
from ..callbacks import finalizer
from ..devices import Generator, device
from ..interrupts import uninterrupted
from .collate import default_collate, default_convert
from .dataset import IterableDataset, T
from .fetch import Fetch
from .sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler
from .workers import Crew, End, Failure, Pass, WorkerTask

__all__ = ("DataLoader",)


class _Endless(Sampler):
    """``None`` without end, in place of indices, which an iterable dataset does not have."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


_FIXED = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})


class DataLoader(Generic[T]):
    """Batches of a dataset, with PyTorch's arguments. The loader keeps no reference to a batch that it has returned.

    Args:
        num_workers: threads that fetch ahead; 0 fetches in the caller. A prediction assumes that workers keep up: ``num_workers
            * prefetch_factor`` batches are ready while a step runs. A real run has fewer if the workers are slow, and at most
            ``num_workers`` unfinished batches more. Each worker has its own state of tinygrad_mem's generators, seeded with
            ``get_worker_info().seed``, so the same seed gives the same batches. ``random`` and ``np.random`` have one state for
            all threads.
        prefetch_factor: the number of batches that each worker prepares ahead, 2 by default.
        pin_memory: accepted for compatibility; batches stay where ``collate_fn`` made them.
        persistent_workers: keep the threads between passes.
        in_order: accepted for compatibility; batches always come in order.

    Raises:
        ValueError: arguments that exclude each other, in PyTorch's words.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable | None = None,
        batch_sampler: Iterable | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        if multiprocessing_context is not None:
            raise ValueError(
                f"multiprocessing_context={multiprocessing_context!r}: workers are threads here, and no process is started; "
                "leave it out"
            )
        self.iterable = isinstance(dataset, IterableDataset)
        _check_order(self.iterable, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset, self.generator = dataset, generator
        self.num_workers, self.timeout, self.worker_init_fn = num_workers, timeout, worker_init_fn
        self.prefetch_factor = prefetch_factor if prefetch_factor is not None or not num_workers else 2
        self.persistent_workers, self.pin_memory, self.in_order = persistent_workers, pin_memory, in_order
        if batch_sampler is not None:
            batch_size = None
        if sampler is None:
            if self.iterable:
                sampler = _Endless()
            else:
                sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        if batch_size is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)  # type: ignore[arg-type]
        self.batch_size, self.drop_last, self.sampler, self.batch_sampler = batch_size, drop_last, sampler, batch_sampler
        self.batched = batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if self.batched else default_convert)
        self._crew: Crew | None = None
        self._dry = scope.local.dry  # persistent workers belong to the dry run in which the loader was made, if any
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_made" in self.__dict__:  # setting it would have no effect
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return _Ahead(self) if self.num_workers else _InCaller(self)

    def __len__(self) -> int:
        if not self.iterable:
            return len(self.batch_sampler if self.batched else self.sampler)  # type: ignore[arg-type]
        count = len(self.dataset)
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def _indices(self) -> Iterator[Any]:
        return iter(self.batch_sampler if self.batched else self.sampler)  # type: ignore[arg-type]

    def _fetch(self) -> Fetch:
        return Fetch(self.iterable, self.batched, self.drop_last, self.collate_fn)

    def _base_seed(self) -> int:
        """The seed of the first worker; drawn in every pass, so that the order does not depend on the number of workers."""
        seed, calls = (self.generator or device("cpu").generator).ticket()
        return (seed + (calls << 20)) % (1 << 63)

    @finalizer
    def __del__(self) -> None:
        crew = getattr(self, "_crew", None)
        if crew is not None:
            crew.stop()


def _check_workers(num_workers: int, timeout: float, prefetch_factor: int | None, persistent_workers: bool) -> None:
    if num_workers < 0:
        raise ValueError("num_workers option should be non-negative; use num_workers=0 to disable worker threads.")
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if num_workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor option could only be specified with workers; set num_workers > 0.")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"prefetch_factor option should be positive, found {prefetch_factor}")
    if persistent_workers and num_workers == 0:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_order(iterable: bool, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    if iterable:
        for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            if value:
                raise ValueError(f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}")
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
    elif batch_size is None and drop_last:
        raise ValueError("batch_size=None option disables auto-batching and is mutually exclusive with drop_last")


class _InCaller:
    """A pass without workers. As with workers, it goes on with the next batch if the program catches an exception."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._indices = loader, loader._indices()
        loader._base_seed()
        self._fetch = loader._fetch()(loader.dataset)

    def __iter__(self) -> _InCaller:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        indices = next(self._indices)
        with scope.phase("data"):
            return self._fetch(indices)


class _Ahead:
    """A pass with workers. Batch ``n`` comes from worker ``n`` modulo their number; batches are returned in order.

    When the pass ends, or the loop is left early, the workers stop, and batches that were fetched ahead are dropped.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader, self._run = loader, Pass()
        self._next, self._asked = 0, 0
        self._where: dict[int, int] = {}  # batch number -> worker
        self._ended: set[int] = set()
        self._indices = loader._indices()
        self._own: Crew | None = None
        crew, seed = loader._crew, loader._base_seed()
        if crew is None or crew.dry is not scope.local.dry or not crew.is_alive():
            where = scope.local.default_device
            crew = Crew(WorkerTask(loader.dataset, loader._fetch(), loader.worker_init_fn, loader.num_workers, where), seed)
            if loader.persistent_workers and crew.dry is loader._dry:
                loader._crew = crew
            else:
                self._own = crew
        self._crew = crew
        crew.begin(self._run)
        for _ in range(loader.num_workers * (loader.prefetch_factor or 2)):
            self._ask()

    def __iter__(self) -> _Ahead:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def _ask(self) -> None:
        """Ask the next worker whose stream has not ended for one more batch."""
        count = self._loader.num_workers
        if len(self._ended) == count:
            return
        try:
            indices = next(self._indices)
        except StopIteration:
            return
        worker = (self._where[self._asked - 1] + 1) % count if self._asked - 1 in self._where else self._asked % count
        while worker in self._ended:
            worker = (worker + 1) % count
        uninterrupted(self._ask_worker, indices, worker)

    def _ask_worker(self, indices: Any, worker: int) -> None:
        self._where[self._asked] = worker
        self._crew.ask(self._run, self._asked, indices, worker)
        self._asked += 1

    def _take(self) -> tuple[Any, int]:
        """The next batch, and the worker that made it. Not interrupted: no later call waits for the same batch."""
        number, self._next = self._next, self._next + 1
        self._where.pop(number - 1, None)
        return self._run.results.pop(number), self._where[number]

    def __next__(self) -> Any:
        while self._next < self._asked:
            self._run.wait(self._next, self._loader.timeout)
            batch, worker = uninterrupted(self._take)
            if batch is End:
                self._ended.add(worker)
                self._ask()
                continue
            self._ask()
            if isinstance(batch, Failure):
                del self  # the traceback holds this frame, and would hold the batches that were fetched ahead
                batch.reraise()
            return batch
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Drop what was fetched ahead, and end threads that belong to this pass only."""
        self._run.close()
        self._asked = self._next
        crew, self._own = self._own, None
        if crew is not None:
            crew.stop()

    @finalizer
    def __del__(self) -> None:
        if hasattr(self, "_run"):
            self.close()
