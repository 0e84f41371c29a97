"""The counters of PyTorch's CUDA caching allocator, with the meaning of ``torch.cuda.memory_stats``."""

from __future__ import annotations

_KINDS = ("all", "large_pool", "small_pool")
_COUNTED = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


class Counter:
    """One counter: what it is now, its peak, and all that was ever added and taken away."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        """Count ``amount`` up, or down where it is negative."""
        self.current += amount
        if amount < 0:
            self.freed -= amount
        else:
            self.allocated += amount
            if self.current > self.peak:
                self.peak = self.current


class Stats:
    """All counters of an allocator, each for small requests, for large ones, and for all.

    *Allocated* bytes are in blocks that the program uses; *active* ones also in blocks that it freed and that wait for another
    stream; *requested* ones are what was asked for, before rounding; *reserved* ones were asked of the driver; *inactive split*
    ones are in free blocks that are a part of a segment, so that they cannot be given back.

    Attributes:
        num_alloc_retries: how often the driver refused and was asked again after everything cached was given back.
        num_ooms: how often that did not help.
        num_sync_all_streams: how often the streams were waited for, to give back what is cached.
        num_device_alloc, num_device_free: how often the driver was asked for memory, and given some back.
    """

    def __init__(self) -> None:
        self._counters = {name: (Counter(), Counter(), Counter()) for name in _COUNTED}
        self._oversize = Counter()
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0

    def current(self, name: str) -> int:
        """The counter ``name`` of all requests, now."""
        return self._counters[name][0].current

    def peak(self, name: str) -> int:
        """The most that the counter ``name`` of all requests ever was."""
        return self._counters[name][0].peak

    def reset_peak(self) -> None:
        """Start the peaks again, as ``torch.cuda.reset_peak_memory_stats``."""
        for counter in (self._oversize, *(each for counters in self._counters.values() for each in counters)):
            counter.peak = counter.current

    def by_name(self) -> dict[str, int]:
        """Every counter by PyTorch's name."""
        found = {
            f"{name}.{kind}.{what}": getattr(counter, what)
            for name, counters in self._counters.items()
            for kind, counter in zip(_KINDS, counters, strict=True)
            for what in ("current", "peak", "allocated", "freed")
        }
        found |= {f"oversize_segments.{what}": getattr(self._oversize, what) for what in Counter.__slots__}
        return found | {name: value for name, value in vars(self).items() if name.startswith("num_")}

    def _count(self, name: str, small: bool, amount: int) -> None:
        counters = self._counters[name]
        for counter in (counters[0], counters[1 + small]):
            current = counter.current = counter.current + amount
            if amount < 0:
                counter.freed -= amount
            else:
                counter.allocated += amount
                if current > counter.peak:
                    counter.peak = current

    # --- what happens -----------------------------------------------------------------------------------------------------

    def allocated(self, small: bool, size: int, requested: int) -> None:
        """A block is in use."""
        self._count("allocation", small, 1)
        self._count("allocated_bytes", small, size)
        self._count("active", small, 1)
        self._count("active_bytes", small, size)
        self._count("requested_bytes", small, requested)

    def free_requested(self, small: bool, size: int) -> None:
        """The program has freed a block."""
        self._count("allocation", small, -1)
        self._count("allocated_bytes", small, -size)

    def free_completed(self, small: bool, size: int, requested: int) -> None:
        """No stream uses the freed block any more."""
        self._count("active", small, -1)
        self._count("active_bytes", small, -size)
        self._count("requested_bytes", small, -requested)

    def split_used(self, small: bool, was_split: bool, size: int, rest: int) -> None:
        """A block of ``size`` bytes serves a request; ``rest`` bytes behind it were split off, if not 0.

        As in PyTorch, a free part of a segment that gets smaller goes on being one: none comes, and none goes.
        """
        if was_split:
            self._count("inactive_split", small, 0 if rest else -1)
            self._count("inactive_split_bytes", small, -size)
        elif rest:
            self._count("inactive_split", small, 1)
            self._count("inactive_split_bytes", small, rest)

    def split_freed(self, small: bool, joined: int, absorbed: int, size: int) -> None:
        """A free block joined ``joined`` others of ``absorbed`` bytes; ``size``: of the result, 0 if it is a whole segment.

        As in PyTorch, only the difference is counted.
        """
        self._count("inactive_split", small, (size > 0) - joined)
        self._count("inactive_split_bytes", small, size - absorbed)

    def segment_alloc(self, small: bool, size: int, oversize: bool) -> None:
        """The driver gave a segment."""
        self._segment(small, size, 1, oversize)
        self.num_device_alloc += 1

    def segment_free(self, small: bool, size: int, oversize: bool) -> None:
        """A segment was given back."""
        self._segment(small, -size, -1, oversize)
        self.num_device_free += 1

    def mapped(self, small: bool, size: int) -> None:
        """The driver mapped pages into an expandable segment, or (negative) took them back; PyTorch counts no segment."""
        self._count("reserved_bytes", small, size)
        if size > 0:
            self.num_device_alloc += 1
        else:
            self.num_device_free += 1

    def _segment(self, small: bool, size: int, count: int, oversize: bool) -> None:
        self._count("segment", small, count)
        self._count("reserved_bytes", small, size)
        if oversize:
            self._oversize.add(count)
