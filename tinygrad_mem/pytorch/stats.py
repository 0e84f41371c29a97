"""The counters of PyTorch's CUDA caching allocator, with the meaning of ``torch.cuda.memory_stats``."""

from __future__ import annotations

_KINDS = ("all", "large_pool", "small_pool")
_VALUES = ("current", "peak", "allocated", "freed")
_COUNTED = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip


class Counter:
    """One counter: its current value, its peak, and the sum of all increases."""

    __slots__ = ("allocated", "current", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = 0

    @property
    def freed(self) -> int:
        """The sum of all decreases."""
        return self.allocated - self.current


def _add(counters: tuple[Counter, ...], amount: int) -> None:
    """Add ``amount``, which may be negative, to each of these counters."""
    for counter in counters:
        counter.current += amount
        if amount > 0:
            counter.allocated += amount
            if counter.current > counter.peak:
                counter.peak = counter.current


class Stats:
    """All counters of an allocator, each for small requests, for large ones, and for all.

    *Allocated* bytes: blocks that the program uses. *Active*: these, and freed blocks that wait for another stream.
    *Requested*: requests before rounding. *Reserved*: what came from the driver. *Inactive split*: free blocks that are only a
    part of a segment, so that they cannot be released.

    Args:
        oversize: the size from which a block or a segment is *oversize*, a setting.

    Attributes:
        num_alloc_retries: the number of times that the driver refused and was asked again after the cache was released.
        num_ooms: the number of times that this did not help.
        num_sync_all_streams: the number of times that the allocator waited for all streams, to release the cache.
        num_device_alloc, num_device_free: the number of times that the driver gave memory, and got it back.
    """

    def __init__(self, oversize: float) -> None:
        self._counters = {name: (Counter(), Counter(), Counter()) for name in _COUNTED}
        large = {name: counters[:2] for name, counters in self._counters.items()}
        small = {name: counters[::2] for name, counters in self._counters.items()}
        self._of = large, small  # the counters that a request changes
        self._least = oversize
        self._oversize = {name: Counter() for name in ("oversize_allocations", "oversize_segments")}
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def current(self, name: str) -> int:
        """The current value of the counter ``name`` for all requests."""
        return self._counters[name][0].current

    def peak(self, name: str) -> int:
        """The peak of the counter ``name`` for all requests."""
        return self._counters[name][0].peak

    def reset_peak(self) -> None:
        """Set all peaks to the current values, as ``torch.cuda.reset_peak_memory_stats`` does."""
        for counter in (*self._oversize.values(), *(each for counters in self._counters.values() for each in counters)):
            counter.peak = counter.current

    def by_name(self) -> dict[str, int]:
        """All counters by PyTorch's names."""
        found = {
            f"{name}.{kind}.{what}": getattr(counter, what)
            for name, counters in self._counters.items()
            for kind, counter in zip(_KINDS, counters, strict=True)
            for what in _VALUES
        }
        for name, counter in self._oversize.items():
            found |= {f"{name}.{what}": getattr(counter, what) for what in _VALUES}
        return found | {name: value for name, value in vars(self).items() if name.startswith("num_")}

    def _count_oversize(self, name: str, size: int) -> None:
        if abs(size) >= self._least:
            _add((self._oversize[name],), 1 if size > 0 else -1)

    # --- events -----------------------------------------------------------------------------------------------------------

    def allocated(self, small: bool, size: int, requested: int) -> None:
        """Count a block that is now in use."""
        counters = self._of[small]
        _add(counters["allocation"], 1)
        _add(counters["allocated_bytes"], size)
        _add(counters["active"], 1)
        _add(counters["active_bytes"], size)
        _add(counters["requested_bytes"], requested)
        self._count_oversize("oversize_allocations", size)

    def free_requested(self, small: bool, size: int) -> None:
        """Count a block that the program has freed."""
        counters = self._of[small]
        _add(counters["allocation"], -1)
        _add(counters["allocated_bytes"], -size)
        self._count_oversize("oversize_allocations", -size)

    def free_completed(self, small: bool, size: int, requested: int) -> None:
        """Count a freed block that no stream uses any more."""
        counters = self._of[small]
        _add(counters["active"], -1)
        _add(counters["active_bytes"], -size)
        _add(counters["requested_bytes"], -requested)

    def split_used(self, small: bool, was_split: bool, size: int, rest: int) -> None:
        """Count a block of ``size`` bytes that serves a request. ``rest`` bytes behind it were split off, if not 0.

        As in PyTorch, a free part of a segment that becomes smaller still counts as the same part.
        """
        counters = self._of[small]
        if was_split:
            _add(counters["inactive_split"], 0 if rest else -1)
            _add(counters["inactive_split_bytes"], -size)
        elif rest:
            _add(counters["inactive_split"], 1)
            _add(counters["inactive_split_bytes"], rest)

    def split_freed(self, small: bool, joined: int, absorbed: int, size: int) -> None:
        """Count a free block that merged with ``joined`` others of ``absorbed`` bytes into one of ``size`` bytes, 0 for a
        whole segment.

        As in PyTorch, only the difference is counted.
        """
        counters = self._of[small]
        _add(counters["inactive_split"], (size > 0) - joined)
        _add(counters["inactive_split_bytes"], size - absorbed)

    def segment(self, small: bool, size: int) -> None:
        """Count a segment of ``size`` bytes that the driver gave, or (negative) that was released."""
        _add(self._of[small]["segment"], 1 if size > 0 else -1)
        self.mapped(small, size)
        self._count_oversize("oversize_segments", size)

    def mapped(self, small: bool, size: int) -> None:
        """Count pages that were mapped into an expandable segment, or (negative) unmapped. PyTorch counts no segment."""
        _add(self._of[small]["reserved_bytes"], size)
        if size > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1
