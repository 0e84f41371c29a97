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
import threading
from bisect import bisect_left, insort
from collections import deque
from typing import Any

import numpy as np

from .. import scope
from ..errors import OutOfMemoryError

ROUND = 512
_SHIFT = 64  # index key = size << _SHIFT | address
_MAPPED = 1 << 16  # segments from this size on are mapped from the machine and go back to it when released
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MAP_ANONYMOUS") else 0)


def round_up(size: int) -> int:
    """Bytes that a request of ``size`` bytes takes in the pool: the next multiple of 512."""
    return -(-size // ROUND) * ROUND


def _take(size: int, *, reserve: bool) -> Any:
    """A writable buffer of ``size`` bytes; with ``reserve=False`` it is address space, which costs nothing untouched."""
    if size < _MAPPED:
        slack = bytearray(size + 64)
        start = -np.frombuffer(slack, np.uint8).ctypes.data % 64
        return memoryview(slack)[start : start + size]
    if reserve or not hasattr(mmap, "MAP_ANONYMOUS"):
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
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

    def __del__(self) -> None:
        pool = getattr(self, "pool", None)  # a view that NumPy made of the block itself owns nothing
        if pool is not None:
            pool._free(self.chunk)


_new_block = np.ndarray.__new__
_uint8 = np.dtype(np.uint8)


class Pool:
    """A memory pool with CuPy's rules and CuPy's names.

    Args:
        device: the device's name, for messages and listeners.
        reserve: False makes every segment untouched address space (device ``meta``).
    """

    def __init__(self, device: str, *, reserve: bool = True) -> None:
        self.device, self.reserve = device, reserve
        self._lock = threading.Lock()
        self._pending: deque[Chunk] = deque()  # freed while the lock was taken (by another thread, or by gc inside malloc)
        self._keys: list[int] = []
        self._chunks: dict[int, Chunk] = {}
        self._used = self._total = self._limit = 0
        self._next_address = ROUND

    def malloc(self, size: int) -> Block:
        """A block of ``size`` > 0 bytes, rounded up to 512.

        Raises:
            OutOfMemoryError: the limit, or the machine, does not allow it. Nothing was changed.
        """
        rounded = -(-size // ROUND) * ROUND
        with self._lock:
            while self._pending:
                self._release(self._pending.popleft())
            chunk = self._best_fit(rounded)
        if chunk is None:
            chunk = self._grow(size, rounded)
        segment = chunk.segment
        block = _new_block(Block, (size,), _uint8, segment.memory, chunk.address - segment.address)
        block.chunk, block.pool = chunk, self
        for listener in scope.listeners:
            listener.malloc(self.device, chunk.address, size, rounded)
        return block

    def _free(self, chunk: Chunk) -> None:
        for listener in scope.listeners:
            listener.free(self.device, chunk.address, chunk.size)
        if self._lock.acquire(blocking=False):
            try:
                self._release(chunk)
            finally:
                self._lock.release()
        else:
            self._pending.append(chunk)

    def _best_fit(self, size: int) -> Chunk | None:
        keys = self._keys
        at = bisect_left(keys, size << _SHIFT)
        if at == len(keys):
            return None
        chunk = self._chunks.pop(keys.pop(at))
        chunk.free = False
        if chunk.size > size:
            rest = Chunk(chunk.segment, chunk.address + size, chunk.size - size)
            rest.prev, rest.next = chunk, chunk.next
            if chunk.next is not None:
                chunk.next.prev = rest
            chunk.next, chunk.size = rest, size
            self._insert(rest)
        self._used += size
        return chunk

    def _insert(self, chunk: Chunk) -> None:
        key = chunk.size << _SHIFT | chunk.address
        chunk.free = True
        insort(self._keys, key)
        self._chunks[key] = chunk

    def _remove(self, chunk: Chunk) -> None:
        key = chunk.size << _SHIFT | chunk.address
        del self._chunks[key], self._keys[bisect_left(self._keys, key)]

    def _release(self, chunk: Chunk) -> None:
        self._used -= chunk.size
        after, before = chunk.next, chunk.prev
        if after is not None and after.free:
            self._remove(after)
            chunk.size += after.size
            chunk.next = after.next
            if chunk.next is not None:
                chunk.next.prev = chunk
        if before is not None and before.free:
            self._remove(before)
            before.size += chunk.size
            before.next = chunk.next
            if before.next is not None:
                before.next.prev = before
            chunk = before
        self._insert(chunk)

    def _grow(self, size: int, rounded: int) -> Chunk:
        """A new segment; before giving up, give cached segments back, then let the garbage collector run."""
        for attempt in range(3):
            if attempt:
                if attempt == 2:
                    gc.collect()
                self.free_all_blocks()
            with self._lock:
                while self._pending:
                    self._release(self._pending.popleft())
                chunk = self._best_fit(rounded) if attempt else None
                if chunk is not None:
                    return chunk
                if self._limit and self._total + rounded > self._limit:
                    continue
                try:
                    memory = _take(rounded, reserve=self.reserve)
                except (MemoryError, OSError, ValueError, OverflowError):
                    continue
                segment = Segment(memory, self._next_address, rounded)
                self._next_address += rounded
                self._total += rounded
                self._used += rounded
                return Chunk(segment, segment.address, rounded)
        raise OutOfMemoryError(self.device, size, self._used, self._total, self._limit)

    def free_all_blocks(self) -> None:
        """Give every segment that is wholly free back to the machine."""
        with self._lock:
            while self._pending:
                self._release(self._pending.popleft())
            for chunk in [c for c in self._chunks.values() if c.prev is None and c.next is None]:
                self._remove(chunk)
                self._total -= chunk.size

    def used_bytes(self) -> int:
        """Bytes in blocks that are alive, each rounded up to 512."""
        with self._lock:
            while self._pending:
                self._release(self._pending.popleft())
            return self._used

    def total_bytes(self) -> int:
        """Bytes taken from the machine: used and cached."""
        return self._total

    def free_bytes(self) -> int:
        """Bytes taken from the machine that no block uses."""
        return self._total - self.used_bytes()

    def n_free_blocks(self) -> int:
        """How many free chunks the pool keeps."""
        return len(self._keys)

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
