"""The pool: CuPy's algorithm, in Python, over any memory.

A request is rounded up to 512 bytes and served from the smallest free chunk that holds it; the rest of the chunk stays
free. A freed chunk merges with its free neighbours of the same segment. When no chunk fits, a new segment of exactly the
rounded size is taken from the machine; with a limit reached, whole free segments are given back first.

Source: CuPy 14.2, ``cupy/cuda/memory.pyx`` (read for its rules; the code is ours). One rule is tighter here: chunks of
equal size are chosen by their *pool address*, which is handed out in order and is the same on every device, so that
reserved bytes are deterministic too, and equal on ``cpu`` and ``meta``.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from .. import scope
from ..errors import DeviceError, OutOfMemoryError

ROUND = 512
_MAPPED = 1 << 16  # segments from this size on are mapped from the machine and go back to it when released
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MAP_ANONYMOUS") else 0)


def round_up(size: int) -> int:
    """Bytes that a request of ``size`` bytes takes in the pool: the next multiple of 512."""
    return (size + 511) & -512


def _take(size: int, *, reserve: bool) -> Any:
    """A writable buffer of ``size`` bytes; with ``reserve=False`` it is address space, which costs nothing untouched."""
    if size < _MAPPED:
        slack = bytearray(size + 64)
        start = -np.frombuffer(slack, np.uint8).ctypes.data % 64
        return memoryview(slack)[start : start + size]
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return mmap.mmap(-1, size)
    # private: a forked child gets a copy, as it does of everything else (Python's default is memory that both write)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if reserve else _NORESERVE))
    if reserve and size >= 1 << 22 and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


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


class Block(np.ndarray):
    """The bytes of one allocation. Arrays are views of it; when the last of them goes, its chunk returns to the pool."""

    __slots__ = ("chunk", "pool")
    chunk: Chunk
    pool: Any  # None from its end on

    def __del__(self, scope: Any = scope) -> None:  # at exit this module's names may be gone before its blocks
        try:
            pool = self.pool
        except AttributeError:
            return  # a view that NumPy made of the block itself owns nothing
        self.pool = None  # the garbage collector still shows it, while its chunk may be somebody else's already
        if scope.listeners:
            pool._free(self.chunk)
        else:
            pool._pending.append(self.chunk)


_new_block = np.ndarray.__new__
_uint8 = np.dtype(np.uint8)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_held: list[threading.Lock] = []


def _before_fork() -> None:
    """No other thread is inside a pool while the process forks: the child finds pools whole and locks open."""
    for pool in list(_pools):
        pool._lock.acquire()
        _held.append(pool._lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _closed(size: int) -> Any:
    raise DeviceError(
        f"{size} bytes were asked of the memory of a prediction that has ended. Its tensors can be looked at, but not computed "
        "with, and a thread that it started ends with it: join threads inside, and make again what is used afterwards."
    )


class Pool:
    """A memory pool with CuPy's rules and CuPy's names.

    Args:
        device: the device's name, for messages and listeners.
        reserve: False makes every segment untouched address space (device ``meta``).
    """

    def __init__(self, device: str, *, reserve: bool = True) -> None:
        self.device, self.reserve = device, reserve
        self._lock = threading.Lock()
        self._pending: deque[Chunk] = deque()  # freed, by any thread (or by gc inside malloc), and merged when somebody asks
        self._latest: Chunk | None = None  # what the latest malloc handed out
        # free chunks by address; their addresses by size, as heaps; the sizes in order. A chunk that merges leaves its entry
        # behind in its heap: an entry counts only while the chunk at its address is free and of the heap's size.
        self._free_chunks: dict[int, Chunk] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sizes: list[int] = []
        self._stale = 0
        self._used = self._total = self._limit = 0
        self.peak_used = self.peak_total = 0  # since reset_peak()
        self._next_address = ROUND
        self._host: Pool | None = None
        _pools.add(self)

    def host(self, *, pinned: bool = False) -> Pool:
        """The pool of host memory behind this one: where what is offloaded lies, counted like anything else.

        Behind a GPU's pool that is the machine's memory, pinned or not. Behind the cpu's and meta's it is a second pool beside
        the first, so that what would leave a device can be told, and tested, where there is none; nothing is pinned there.
        """
        if self._host is None:
            self._host = type(self)("host", reserve=self.reserve)
        return self._host

    def close(self) -> None:
        """Hand out nothing from now on: the dry run whose memory it was has ended. What is alive may come back."""
        for pool in filter(None, (self, self._host)):
            pool.malloc = _closed
            pool.free_all_blocks()

    def _segment(self, size: int) -> Any:
        """Memory from the machine, as a writable buffer."""
        return _take(size, reserve=self.reserve)

    def malloc(self, size: int) -> Block:
        """A block of ``size`` > 0 bytes, rounded up to 512.

        Raises:
            OutOfMemoryError: the limit, or the machine, does not allow it. Nothing was changed.
        """
        rounded, chunk = (size + 511) & -512, None
        try:
            with self._lock:
                pending, latest = self._pending, self._latest
                if latest is not None and latest.size == rounded and len(pending) == 1 and pending[0] is latest:
                    chunk = latest  # all is as before the latest malloc, and the request too: so is the answer
                    del pending[0]
                else:
                    if pending:
                        self._commit()
                    chunk = self._best_fit(rounded)
            if chunk is None:
                chunk = self._grow(size, rounded)
            self._latest, segment = chunk, chunk.segment
            block = _new_block(Block, (size,), _uint8, segment.memory, chunk.address - segment.address)
            block.chunk, block.pool = chunk, self
        except BaseException:  # Ctrl-C in the middle
            if chunk is not None:
                self._pending.append(chunk)
            raise
        if scope.listeners:
            for listener in scope.hearing(self):
                listener.malloc(self.device, chunk.address, size, rounded)
        return block

    def _free(self, chunk: Chunk) -> None:
        try:
            for listener in scope.hearing(self):
                listener.free(self.device, chunk.address, chunk.size)
        finally:
            self._pending.append(chunk)

    def _commit(self) -> None:
        """Release the chunks that were freed since the last request; what Ctrl-C ends here, the next one finishes."""
        pending = self._pending
        while pending:
            self._release(pending[0])
            del pending[0]

    def _best_fit(self, size: int) -> Chunk | None:
        """The smallest free chunk that holds ``size``, of those the one with the lowest address, cut to ``size``."""
        chunk = self._pop(size) if self._heaps.get(size) else None
        if chunk is None:
            sizes = self._sizes
            at = bisect_right(sizes, size)
            while chunk is None:
                if at == len(sizes):
                    return None
                chunk = self._pop(sizes[at])
                if chunk is None:
                    del self._heaps[sizes.pop(at)]
            rest = Chunk(chunk.segment, chunk.address + size, chunk.size - size)
            rest.prev, rest.next, rest.free = chunk, chunk.next, True
            if chunk.next is not None:
                chunk.next.prev = rest
            chunk.next, chunk.size = rest, size
            self._insert(rest)
        self._used += size
        if self._used > self.peak_used:
            self.peak_used = self._used
        return chunk

    def _pop(self, size: int) -> Chunk | None:
        """Take the free chunk of exactly ``size`` with the lowest address."""
        heap = self._heaps.get(size)
        while heap:
            address = heappop(heap)
            chunk = self._free_chunks.get(address)
            if chunk is not None and chunk.size == size:
                del self._free_chunks[address]
                chunk.free = False
                return chunk
            self._stale -= 1
        return None

    def _insert(self, chunk: Chunk) -> None:
        size, address = chunk.size, chunk.address
        self._free_chunks[address] = chunk
        heap = self._heaps.get(size)
        if heap is None:
            self._heaps[size] = [address]
            insort(self._sizes, size)
        else:
            heappush(heap, address)

    def _remove(self, chunk: Chunk) -> None:
        """Take a free chunk out of the index; its heap entry goes when it is met, or when half of all entries are such."""
        if self._free_chunks.pop(chunk.address, None) is None:
            return  # Ctrl-C came before its neighbour had it
        heap = self._heaps.get(chunk.size)
        if heap and heap[-1] == chunk.address:  # Ctrl-C may have come before the entry was made
            heap.pop()  # the last of a heap may go, and it is often the only one
            return
        self._stale += 1
        if self._stale > len(self._free_chunks) + 1024:
            heaps: dict[int, list[int]] = {}
            for each in self._free_chunks.values():
                heaps.setdefault(each.size, []).append(each.address)
            for heap in heaps.values():
                heapify(heap)
            self._heaps, self._sizes, self._stale = heaps, sorted(heaps), 0

    def _release(self, chunk: Chunk) -> None:
        """Make a chunk free, one with its free neighbours. Called once more after Ctrl-C, it goes on where it was."""
        if not chunk.free:
            chunk.free = True
            self._used -= chunk.size
        after = chunk.next
        if after is not None and after.free:
            self._remove(after)
            chunk.size += after.size
            chunk.next = after.next
            if after.next is not None:
                after.next.prev = chunk
        before = chunk.prev
        if before is not None and before.free:
            self._remove(before)
            chunk.address = before.address
            chunk.size += before.size
            chunk.prev = before.prev
            if before.prev is not None:
                before.prev.next = chunk
        self._insert(chunk)

    def _grow(self, size: int, rounded: int) -> Chunk:
        """A new segment; before giving up, give cached segments back, then let the garbage collector run."""
        for attempt in range(3):
            chunk = None
            if attempt:
                if attempt == 2:
                    gc.collect()
                self.free_all_blocks()
            try:
                with self._lock:
                    self._commit()
                    chunk = self._best_fit(rounded) if attempt else None
                    if chunk is not None:
                        return chunk
                    if self._limit and self._total + rounded > self._limit:
                        continue
                    try:
                        memory = self._segment(rounded)
                    except (MemoryError, OSError, ValueError, OverflowError):
                        continue
                    chunk = Chunk(Segment(memory, self._next_address, rounded), self._next_address, rounded)
                    self._next_address += rounded
                    self._total += rounded
                    self._used += rounded
                    if self._used > self.peak_used:  # no call of max: a signal is heard after calls, and these go together
                        self.peak_used = self._used
                    if self._total > self.peak_total:
                        self.peak_total = self._total
                for listener in scope.hearing(self):
                    listener.segment(self.device, chunk.address, rounded)
                return chunk
            except BaseException:
                if chunk is not None:
                    self._pending.append(chunk)
                raise
        free = self._total - self._used, self.largest_free()
        raise OutOfMemoryError(self.device, size, self._used, self._total, self._limit, free, scope.ask_autopsy(self, size))

    def free_all_blocks(self) -> None:
        """Give every segment that is wholly free back to the machine."""
        with self._lock:
            self._commit()
            whole = [c for c in self._free_chunks.values() if c.prev is None and c.next is None]
            for chunk in whole:
                self._remove(chunk)
                self._total -= chunk.size
            self._latest = None  # or it would hold its segment
        for listener in scope.hearing(self):
            for chunk in whole:
                listener.segment(self.device, chunk.address, -chunk.size)

    def reset_peak(self) -> None:
        """Let ``peak_used`` and ``peak_total`` begin again from what is used and reserved now."""
        with self._lock:
            self._commit()
            self.peak_used, self.peak_total = self._used, self._total

    def largest_free(self) -> int:
        """Bytes of the largest free chunk: what can be had without a new segment."""
        with self._lock:
            self._commit()
            return max((chunk.size for chunk in self._free_chunks.values()), default=0)

    def holes(self) -> tuple[tuple[int, int, int], ...]:
        """Each free chunk as (segment, offset in it, bytes), in the order of addresses; segments without any do not count.

        Steps that begin with equal holes end with equal ones, where what lives between steps stays where it is (parameters and
        their state do): a training step that finds them as an earlier one did needs no more than the steps between them,
        however often it is repeated.
        """
        with self._lock:
            self._commit()
            chunks = [chunk for _, chunk in sorted(self._free_chunks.items())]
        starts = sorted({chunk.segment.address for chunk in chunks})
        return tuple((starts.index(c.segment.address), c.address - c.segment.address, c.size) for c in chunks)

    def used_bytes(self) -> int:
        """Bytes in blocks that are alive, each rounded up to 512."""
        with self._lock:
            self._commit()
            return self._used

    def total_bytes(self) -> int:
        """Bytes taken from the machine: used and cached."""
        return self._total

    def free_bytes(self) -> int:
        """Bytes taken from the machine that no block uses."""
        return self._total - self.used_bytes()

    def n_free_blocks(self) -> int:
        """How many free chunks the pool keeps."""
        with self._lock:
            self._commit()
            return len(self._free_chunks)

    def set_limit(self, size: int = 0) -> None:
        """Let ``total_bytes()`` grow to ``size`` bytes at most; 0 takes the limit away.

        Raises:
            ValueError: ``size`` is negative.
        """
        if size < 0:
            raise ValueError(f"set_limit: size is {size}; give a number of bytes, or 0 for no limit")
        self._limit = int(size)

    def get_limit(self) -> int:
        """The limit in bytes; 0 where there is none."""
        return self._limit
