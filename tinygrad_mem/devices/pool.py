"""The pool: CuPy's algorithm, in Python, over any memory.

A request is rounded up to 512 bytes and served from the smallest free chunk that is large enough; the rest of the chunk stays
free. A freed chunk merges with its free neighbours in the same segment. If no chunk is large enough, a new segment of exactly
the rounded size is taken from the machine. At a limit, segments that are wholly free are given back first.

Source: CuPy 14.2, ``cupy/cuda/memory.pyx`` (read for its rules; the code is ours). One rule is stricter here: among chunks of
equal size the one with the lowest *pool address* is chosen. Pool addresses are numbers in the order of allocation, the same on
every device. So reserved bytes are deterministic too, and equal on ``cpu`` and ``meta``.
"""

from __future__ import annotations

import gc
import itertools
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import scope
from ..callbacks import raise_after_finalizer
from ..errors import OutOfMemoryError
from ..interrupts import context, lock, lock_was_mine, signal_safe
from . import chunks
from .chunks import NOTHING, ROUND, Aside, Chunk, Counts, Index, Pending, Segment, closed, free_runs, look, merged
from .chunks import round_up as round_up


class Block(np.ndarray):
    """The bytes of one allocation. Arrays are views of it; when the last of them is freed, its chunk returns to the pool."""

    __slots__ = ("chunk", "pool")
    chunk: Chunk
    pool: Any  # None once it is freed

    @signal_safe
    def __del__(self, scope: Any = scope) -> None:  # at exit this module's names may be gone before its blocks
        try:
            pool = self.pool
            self.pool = None  # the garbage collector may still list the block when its chunk belongs to another
            listeners = scope.listeners
        except AttributeError:
            return  # a view that NumPy made of the block owns nothing; when the interpreter ends, scope may be gone
        except BaseException as error:  # a signal that came before the first line
            self.__del__()
            raise_after_finalizer(error)
            return
        try:
            if listeners:
                pool._free(self.chunk)
            else:
                pool._freed(self.chunk)
        except KeyboardInterrupt as error:
            raise_after_finalizer(error)


_new_block = np.ndarray.__new__
_uint8 = np.dtype(np.uint8)


class Pool:
    """A memory pool with CuPy's rules and CuPy's names.

    A signal handler, a finalizer or an interrupt may come between any two bytecodes. At each of them this holds: ``_firsts``
    has the first chunk of every segment, from which ``next`` leads to the others; the size of a chunk that is not ``free`` is
    right; ``_pending`` lists, in order, what is still to be done. Everything else (the index of free chunks, their sizes,
    ``prev``, the counters) follows from these. It changes under the lock only, and ``_latest`` is ``None`` during the change.
    If code finds it so, there are two cases. A handler runs inside the change: then it reads counts from the chains, and takes
    memory in a segment of its own, which waits in ``_pending``. Or a change was interrupted: then everything else is made again
    from the chains.

    Args:
        device: the device's name, for messages and listeners.
        reserve: if False, segments have no memory behind them (device ``meta``).
    """

    def __init__(self, device: str, *, reserve: bool = True) -> None:
        self.device, self.reserve = device, reserve
        # chunks that any thread has freed, to be merged at the next request, and segments that were taken inside a change
        self._pending: Pending = deque()
        self._freed = self._pending.append  # cannot be interrupted
        self._latest: Chunk | None = NOTHING  # the chunk of the latest malloc
        self._firsts: dict[int, Chunk] = {}  # by address
        self._aside = itertools.count(1 << 61, 1 << 40)  # addresses of such segments; files of tracks hold those below 1 << 62
        self._index: Index = []
        self._used = self._total = self._peak_used = self._peak_total = self._limit = 0
        self._next_address = ROUND
        self._host: Pool | None = None

    def host(self, *, pinned: bool = False) -> Pool:
        """The pool of host memory for offloaded arrays. For a GPU it is the machine's memory, pinned or not.

        For the cpu and meta it is a second pool beside the first, so that offload can be counted and tested without a GPU.
        """
        if self._host is None:
            self._host = type(self)("host", reserve=self.reserve)
        return self._host

    def close(self) -> None:
        """Refuse all requests from now on, because the dry run has ended. Blocks that are alive may still be freed."""
        for pool in filter(None, (self, self._host)):
            pool.malloc = closed
            pool.free_all_blocks()

    def _segment(self, size: int) -> Any:
        """Memory from the machine, as a writable buffer."""
        return chunks.take(size) if self.reserve else chunks.pretend(size)

    def malloc(self, size: int) -> Block:
        """A block of ``size`` > 0 bytes, rounded up to 512.

        Raises:
            OutOfMemoryError: the limit, or the machine, does not allow it. Nothing was changed.
        """
        rounded, chunk = (size + 511) & -512, None
        try:
            with lock:
                latest = self._latest
                if latest is not None:
                    self._latest, pending = None, self._pending
                    if latest.size == rounded and len(pending) == 1 and pending[0] is latest:
                        chunk = latest  # the pool and the request are as at the latest malloc, so the answer is the same
                        del pending[0]
                        self._latest = latest
                    else:
                        if pending:
                            self._commit()
                        chunk = self._best_fit(rounded)
                        self._latest = chunk or latest
            if latest is None:  # we did not change it: another change is under way, or was interrupted
                chunk = self._again(size, rounded)
            if chunk is None:
                chunk = self._grow(size, rounded)
            segment = chunk.segment
            block = _new_block(Block, size, _uint8, segment.memory, chunk.address - segment.address)
            block.chunk, block.pool = chunk, self
        except BaseException:  # Ctrl-C in the middle
            if chunk is not None:
                self._pending.append(chunk)
            raise
        if scope.listeners:
            for listener in scope.listeners_of(self):
                listener.malloc(self.device, chunk.address, size, rounded)
        return block

    @signal_safe
    def _free(self, chunk: Chunk) -> None:
        try:
            for listener in scope.listeners_of(self):
                listener.free(self.device, chunk.address, chunk.size)
        finally:
            self._pending.append(chunk)

    @context
    def _alone(self) -> Iterator[bool]:
        """Take the lock and do what is pending. Yields ``False`` if this thread is inside a change, and may only read."""
        with lock:
            if self._latest is None and lock_was_mine():
                yield False
                return
            whole, self._latest = self._latest is not None, None
            if not whole:
                self._mend()
            self._commit()
            yield True
            self._latest = NOTHING  # after an interrupt it stays None: the change may be incomplete

    def _again(self, size: int, rounded: int) -> Chunk | None:
        """The rest of :meth:`malloc`, if ``_latest`` was ``None``."""
        chunk = None
        try:
            with self._alone() as alone:
                chunk = self._best_fit(rounded) if alone else self._take_aside(size, rounded)
        except BaseException:
            if chunk is not None:
                self._pending.append(chunk)
            raise
        return chunk

    def _take_aside(self, size: int, rounded: int) -> Chunk:
        """A new segment for a request from inside a change. The next request adds it to the pool."""
        if not self._limit or self._look().total + rounded <= self._limit:
            try:
                segment = Segment(self._segment(rounded), next(self._aside), rounded)
            except (MemoryError, OSError, ValueError, OverflowError):
                pass
            else:
                chunk = Chunk(segment, segment.address, rounded)
                self._pending.append(Aside(chunk))
                for listener in scope.listeners_of(self):
                    listener.segment(self.device, chunk.address, rounded)
                return chunk
        raise self._refusal(size)

    def _look(self) -> Counts:
        """The counts with all pending changes, read from the chains alone. Changes nothing."""
        return look(self._firsts, self._pending, self._peak_used, self._peak_total)

    def counts(self) -> Counts:
        """Bytes in use and reserved, and their peaks, all of the same moment."""
        with self._alone() as alone:
            return Counts(self._used, self._total, self._peak_used, self._peak_total) if alone else self._look()

    def _mend(self) -> None:
        """Make everything again that follows from the chains. If this is interrupted, it starts over next time."""
        self._index, self._used, self._total = merged(self._firsts, self._pending)
        self._note_peak()

    def _note_peak(self) -> None:
        self._peak_used, self._peak_total = max(self._peak_used, self._used), max(self._peak_total, self._total)

    def _commit(self) -> None:
        """Apply the pending changes."""
        pending = self._pending
        while pending:
            entry = pending[0]
            if entry.free is None:
                self._take_in(entry.chunk)
            else:
                self._release(entry)
            del pending[0]

    def _take_in(self, chunk: Chunk) -> None:
        """Add a segment of one chunk, which is in use."""
        self._firsts[chunk.address] = chunk
        self._used += chunk.size
        self._total += chunk.size
        self._note_peak()

    def _best_fit(self, size: int) -> Chunk | None:
        """Take the smallest free chunk of at least ``size`` bytes, the one with the lowest address, and cut it to ``size``."""
        index = self._index
        at = bisect_left(index, (size,))
        if at == len(index):
            return None
        chunk = index.pop(at)[2]
        if chunk.size != size:
            after = chunk.next
            rest = Chunk(chunk.segment, chunk.address + size, chunk.size - size)
            rest.prev, rest.next, rest.free = chunk, after, True
            if after is not None:
                after.prev = rest
            chunk.next, chunk.size = rest, size
            insort(index, (rest.size, rest.address, rest))
        chunk.free = False  # last: until here it is free
        self._used = used = self._used + size
        if used > self._peak_used:
            self._peak_used = used
        return chunk

    def _release(self, chunk: Chunk) -> None:
        """Free a chunk, and merge it with its free neighbours."""
        index = self._index
        chunk.free = True
        self._used -= chunk.size
        after = chunk.next
        if after is not None and after.free:
            del index[bisect_left(index, (after.size, after.address))]
            chunk.size += after.size
            chunk.next = after = after.next
            if after is not None:
                after.prev = chunk
        before = chunk.prev
        if before is not None and before.free:
            del index[bisect_left(index, (before.size, before.address))]
            before.size += chunk.size
            before.next = after
            if after is not None:
                after.prev = before
            chunk = before
        insort(index, (chunk.size, chunk.address, chunk))

    def _grow(self, size: int, rounded: int) -> Chunk:
        """Take a new segment. If that fails, give free segments back and try again; then also run the garbage collector."""
        for attempt in range(3):
            chunk = None
            if attempt:
                if attempt == 2:
                    gc.collect()
                self.free_all_blocks()
            try:
                with self._alone():
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
                    self._take_in(chunk)
                    for listener in scope.listeners_of(self):  # under the lock: a new listener counts it or gets this event
                        listener.segment(self.device, chunk.address, rounded)
                return chunk
            except BaseException:
                if chunk is not None:
                    self._pending.append(chunk)
                raise
        raise self._refusal(size)

    def _refusal(self, size: int) -> OutOfMemoryError:
        now, largest = self.counts(), self.largest_free()
        free = now.total - now.used, largest
        return OutOfMemoryError(self.device, size, now.used, now.total, self._limit, free, scope.ask_autopsy(self, size))

    def free_all_blocks(self) -> None:
        """Give every segment that is wholly free back to the machine. Inside a change this does nothing."""
        with self._alone() as alone:
            whole = [c for _, _, c in self._index if c.prev is None and c.next is None] if alone else []
            for chunk in whole:
                self._index.remove((chunk.size, chunk.address, chunk))
                del self._firsts[chunk.address]
                self._total -= chunk.size
            for listener in scope.listeners_of(self):
                for chunk in whole:
                    listener.segment(self.device, chunk.address, -chunk.size)

    def reset_peak(self) -> None:
        """Reset ``peak_used`` and ``peak_total`` to the bytes that are used and reserved now."""
        with self._alone() as alone:
            now = (self._used, self._total) if alone else self._look()[:2]
            self._peak_used, self._peak_total = now

    @property
    def peak_used(self) -> int:
        """Most bytes in live blocks since :meth:`reset_peak`."""
        return self.counts().peak_used

    @property
    def peak_total(self) -> int:
        """Most bytes taken from the machine, since :meth:`reset_peak`."""
        return self.counts().peak_total

    def _free_runs(self) -> list[tuple[Segment, int, int]]:
        """Each run of free bytes as (segment, address, size), in the order of addresses."""
        with self._alone():  # inside a change, some chunks may be pending
            return free_runs(self._firsts, self._pending)

    def largest_free(self) -> int:
        """Bytes of the largest free chunk: the largest request that needs no new segment."""
        return max((size for _, _, size in self._free_runs()), default=0)

    def holes(self) -> tuple[tuple[int, int, int], ...]:
        """Each free chunk as (segment, offset in it, bytes), in the order of addresses; full segments are skipped.

        If two steps of training begin with equal holes, and parameters have not moved, later steps repeat the ones between.
        """
        runs = self._free_runs()
        starts = sorted({segment.address for segment, _, _ in runs})
        return tuple((starts.index(segment.address), address - segment.address, size) for segment, address, size in runs)

    def used_bytes(self) -> int:
        """Bytes in live blocks, each rounded up to 512."""
        return self.counts().used

    def total_bytes(self) -> int:
        """Bytes taken from the machine: used and cached."""
        return self.counts().total

    def free_bytes(self) -> int:
        """Bytes that are reserved but unused."""
        now = self.counts()
        return now.total - now.used

    def n_free_blocks(self) -> int:
        """The number of free chunks that the pool keeps."""
        return len(self._free_runs())

    def set_limit(self, size: int = 0) -> None:
        """Limit ``total_bytes()`` to ``size`` bytes; 0 removes the limit. Raises: ValueError: ``size`` is negative."""
        if size < 0:
            raise ValueError(f"set_limit: size is {size}; give a number of bytes, or 0 for no limit")
        self._limit = int(size)

    def get_limit(self) -> int:
        """The limit in bytes; 0 where there is none."""
        return self._limit
