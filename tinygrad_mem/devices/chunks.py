"""Segments, their chunks, and functions of the chains of chunks alone: see :class:`~tinygrad_mem.devices.pool.Pool`."""

from __future__ import annotations

import mmap
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..errors import DeviceError
from ..interrupts import copy_queue

ROUND = 512
_MAPPED = 1 << 16  # segments of this size and above are mapped, so that they go back to the machine when they are freed


def round_up(size: int) -> int:
    """Bytes that a request of ``size`` bytes takes in the pool: the next multiple of 512."""
    return (size + 511) & -512


def closed(size: int) -> Any:
    raise DeviceError(
        f"{size} bytes were requested from a prediction that has ended. Its tensors can be inspected, but ops cannot use them. "
        "Join threads inside the predicted function, and create again the tensors that you use afterwards."
    )


def take(size: int) -> Any:
    """A writable buffer of ``size`` bytes, aligned to 64, that begins with zeros."""
    if size < _MAPPED:
        slack = bytearray(size + 64)
        start = -np.frombuffer(slack, np.uint8).ctypes.data % 64
        return memoryview(slack)[start : start + size]
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    # private: a forked child gets a copy (Python's default is memory that both share)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= 1 << 22 and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Nowhere(np.ndarray):
    """Bytes without memory. A subclass, because a view of a view of a plain array has the array as its base, not the block."""


class _Addresses:
    """The interface of ``size`` bytes at addresses where no program has memory.

    Addresses are used in order; after the last one they begin again. Requests larger than any model all get the same separate
    addresses, so that they do not use up the others.

    Raises:
        MemoryError: more bytes than a process could address.
    """

    _first, _huge = sys.maxsize // 8, sys.maxsize // 2
    _end = _first

    def __init__(self, size: int) -> None:
        begin = self._end if self._end + size <= self._huge else self._first
        if size > self._first // 1024:
            begin = self._huge
            if size > sys.maxsize - begin:
                raise MemoryError(f"{size} bytes")
        else:
            _Addresses._end = begin + size
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (begin, False)}


def pretend(size: int) -> Any:
    """As :func:`take`, without memory: arrays over it have shapes, strides and overlaps. Small ones, which a mistake might
    read, have memory; reading a large one would end the process."""
    return take(size) if size < _MAPPED else np.asarray(_Addresses(size)).view(_Nowhere)


class Segment:
    """One piece of memory taken from the machine, of exactly the size that the pool asked for."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, memory: Any, address: int, size: int) -> None:
        self.memory, self.address, self.size = memory, address, size


class Chunk:
    """A run of bytes of one segment, in use or free; its neighbours are chunks of the same segment."""

    __slots__ = ("address", "free", "next", "prev", "segment", "size")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment, self.address, self.size = segment, address, size
        self.prev: Chunk | None = None
        self.next: Chunk | None = None
        self.free = False


NOTHING = Chunk(Segment(None, 0, 0), 0, 0)  # its size is never requested


class Aside:
    """A chunk, of a segment of its own, that the pool has not counted yet."""

    __slots__ = ("chunk",)
    free = None

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk


Pending = deque[Any]
"""What a pool still has to do: free a :class:`Chunk`, or add an :class:`Aside`."""


Index = list[tuple[int, int, Chunk]]
"""The free chunks of a pool, in order of (size, address): the first one that is large enough is the best fit."""


class Counts(NamedTuple):
    """Bytes of a pool: in use, and taken from the machine, now and at most since :meth:`Pool.reset_peak`."""

    used: int
    total: int
    peak_used: int
    peak_total: int


def chain(chunk: Chunk | None) -> Iterator[Chunk]:
    """A chunk and those after it."""
    while chunk is not None:
        yield chunk
        chunk = chunk.next


def _aside(firsts: dict[int, Chunk], pending: Pending) -> list[Chunk]:
    return [entry.chunk for entry in pending if type(entry) is Aside and entry.chunk.address not in firsts]


def look(firsts: dict[int, Chunk], pending: Pending, peak_used: int, peak_total: int) -> Counts:
    """The counts of a pool with these segments, with all pending changes."""
    pending = copy_queue(pending)  # any thread may add to it
    aside = _aside(firsts, pending)
    used = sum([chunk.size for first in firsts.values() for chunk in chain(first) if not chunk.free])
    total = sum([first.segment.size for first in (*firsts.values(), *aside)])
    for entry in pending:
        if type(entry) is Chunk:
            used -= 0 if entry.free else entry.size
        elif entry.chunk in aside:
            used += entry.chunk.size
            peak_used = max(peak_used, used)
    return Counts(used, total, max(peak_used, used), max(peak_total, total))


def free_runs(firsts: dict[int, Chunk], pending: Pending) -> list[tuple[Segment, int, int]]:
    """Each run of free bytes, with all pending changes, as (segment, address, size), in the order of addresses."""
    runs: list[tuple[Segment, int, int]] = []
    pending = copy_queue(pending)
    for first in (*firsts.values(), *_aside(firsts, pending)):
        begin, end = None, first.segment.address + first.segment.size
        for chunk in chain(first):
            free = chunk.free or chunk in pending
            if free and begin is None:
                begin = chunk.address
            elif not free and begin is not None:
                runs.append((first.segment, begin, chunk.address - begin))
                begin = None
        if begin is not None:
            runs.append((first.segment, begin, end - begin))
    return sorted(runs, key=lambda run: run[1])


def merged(firsts: dict[int, Chunk], pending: Pending) -> tuple[Index, int, int]:
    """Merge free neighbours, and correct sizes and ``prev``. Returns (the free chunks, bytes used, bytes in all)."""
    while pending:  # done first
        entry = pending[0]
        if type(entry) is Aside:
            firsts[entry.chunk.address] = entry.chunk
        else:
            entry.free = True
        del pending[0]
    free: Index = []
    used = total = 0
    for first in firsts.values():
        total += first.segment.size
        for chunk in chain(first):
            after = chunk.next
            if chunk.free:
                while after is not None and after.free:
                    after = after.next
                chunk.next = after
                end = first.address + first.segment.size if after is None else after.address
                chunk.size = end - chunk.address
                free.append((chunk.size, chunk.address, chunk))
            else:
                used += chunk.size
            if after is not None:
                after.prev = chunk
    return sorted(free), used, total
