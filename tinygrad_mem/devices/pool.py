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
import itertools
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np

from .. import scope
from ..errors import OutOfMemoryError
from ..interrupts import context, lock, lock_was_mine
from .chunks import NOTHING, ROUND, Aside, Chunk, Counts, Pending, Segment, closed, free_runs, heaped, look, merged, take
from .chunks import round_up as round_up


class Block(np.ndarray):
    """The bytes of one allocation. Arrays are views of it; when the last of them goes, its chunk returns to the pool."""

    __slots__ = ("chunk", "pool")
    chunk: Chunk
    pool: Any  # None from its end on

    def __del__(self, scope: Any = scope) -> None:  # at exit this module's names may be gone before its blocks
        try:
            pool = self.pool
            self.pool = None  # the garbage collector still shows it, while its chunk may be somebody else's already
            listeners = scope.listeners
        except AttributeError:
            return  # a view that NumPy made of the block itself owns nothing; at the interpreter's end even scope is gone
        if listeners:
            pool._free(self.chunk)
        else:
            pool._freed(self.chunk)


_new_block = np.ndarray.__new__
_uint8 = np.dtype(np.uint8)


class Pool:
    """A memory pool with CuPy's rules and CuPy's names.

    A signal handler, a finalizer or an interrupt may come between any two bytecodes. What is true at each of them: ``_firsts``
    has the first chunk of every segment, from which ``next`` leads to the others; a chunk that is not ``free`` has its size;
    ``_pending`` has, in order, what is still to be done. All else (the index of free chunks, their sizes, ``prev``, counters)
    follows from these. It is changed under the lock only, and ``_latest`` is ``None`` meanwhile. Whoever finds that it is

    - comes from inside the change: counts are read from the chains, and memory is taken aside, in a segment that waits in
      ``_pending`` like what is freed there;
    - or follows one who was interrupted, and makes everything else again from the chains.

    Args:
        device: the device's name, for messages and listeners.
        reserve: False makes every segment untouched address space (device ``meta``).
    """

    def __init__(self, device: str, *, reserve: bool = True) -> None:
        self.device, self.reserve = device, reserve
        # chunks that were freed, by any thread, to be merged when somebody asks, and what was taken aside
        self._pending: Pending = deque()
        self._freed = self._pending.append  # cannot be interrupted
        self._latest: Chunk | None = NOTHING  # what the latest malloc handed out
        self._firsts: dict[int, Chunk] = {}  # by address
        self._aside = itertools.count(1 << 61, 1 << 40)  # addresses of segments taken aside: a file of a track ends at 1 << 62
        # free chunks by address; their addresses by size, as heaps; the sizes in order. A chunk that merges leaves its entry
        # behind in its heap: an entry counts only while the chunk at its address is free and of the heap's size.
        self._free_chunks: dict[int, Chunk] = {}
        self._heaps: dict[int, list[int]] = {}
        self._sizes: list[int] = []
        self._stale = 0
        self._used = self._total = self._peak_used = self._peak_total = self._limit = 0
        self._next_address = ROUND
        self._host: Pool | None = None

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
            pool.malloc = closed
            pool.free_all_blocks()

    def _segment(self, size: int) -> Any:
        """Memory from the machine, as a writable buffer."""
        return take(size, reserve=self.reserve)

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
                        chunk = latest  # all is as before the latest malloc, and the request too: so is the answer
                        del pending[0]
                        self._latest = latest
                    else:
                        if pending:
                            self._commit()
                        chunk = self._best_fit(rounded)
                        self._latest = chunk or latest
            if latest is None:  # asked without the lock: who has it comes from inside a change
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
            for listener in scope.hearing(self):
                listener.malloc(self.device, chunk.address, size, rounded)
        return block

    def _free(self, chunk: Chunk) -> None:
        try:
            for listener in scope.hearing(self):
                listener.free(self.device, chunk.address, chunk.size)
        finally:
            self._pending.append(chunk)

    @context
    def _alone(self) -> Iterator[bool]:
        """Take the lock and do what is pending; ``False``: this thread is inside a change already, and may only look."""
        with lock:
            if self._latest is None and lock_was_mine():
                yield False
                return
            whole, self._latest = self._latest is not None, None
            if not whole:
                self._mend()
            self._commit()
            yield True
            self._latest = NOTHING  # an interrupt leaves None: it may have come anywhere

    def _again(self, size: int, rounded: int) -> Chunk | None:
        """As malloc, where ``_latest`` was ``None``."""
        with self._alone() as alone:
            return self._best_fit(rounded) if alone else self._take_aside(size, rounded)

    def _take_aside(self, size: int, rounded: int) -> Chunk:
        """A segment for whoever asks from inside a change; the next request takes it in."""
        if not self._limit or self._look().total + rounded <= self._limit:
            try:
                segment = Segment(self._segment(rounded), next(self._aside), rounded)
            except (MemoryError, OSError, ValueError, OverflowError):
                pass
            else:
                chunk = Chunk(segment, segment.address, rounded)
                self._pending.append(Aside(chunk))
                for listener in scope.hearing(self):
                    listener.segment(self.device, chunk.address, rounded)
                return chunk
        raise self._refusal(size)

    def _look(self) -> Counts:
        """The counts when nothing is pending any more, read from the chains: nothing is changed, nothing relied on."""
        return look(self._firsts, self._pending, self._peak_used, self._peak_total)

    def counts(self) -> Counts:
        """Bytes in use and reserved, now and at most: all of one moment, whatever other threads ask for meanwhile."""
        with self._alone() as alone:
            return Counts(self._used, self._total, self._peak_used, self._peak_total) if alone else self._look()

    def _mend(self) -> None:
        """Make all that follows from the chains again; it may be interrupted too, and is then begun once more."""
        self._free_chunks, self._used, self._total = merged(self._firsts, self._pending)
        self._index()
        self._note_peak()

    def _index(self) -> None:
        """Make the heaps and their sizes from the free chunks."""
        heaps = heaped(self._free_chunks)
        self._heaps, self._sizes, self._stale = heaps, sorted(heaps), 0

    def _note_peak(self) -> None:
        self._peak_used, self._peak_total = max(self._peak_used, self._used), max(self._peak_total, self._total)

    def _commit(self) -> None:
        """Do what is pending."""
        pending = self._pending
        while pending:
            entry = pending[0]
            if entry.free is None:
                self._take_in(entry.chunk)
            else:
                self._release(entry)
            del pending[0]

    def _take_in(self, chunk: Chunk) -> None:
        """A segment, of one chunk that is in use."""
        self._firsts[chunk.address] = chunk
        self._used += chunk.size
        self._total += chunk.size
        self._note_peak()

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
        chunk.free = False  # at the end: until here it is nobody's
        self._used += size
        if self._used > self._peak_used:
            self._peak_used = self._used
        return chunk

    def _pop(self, size: int) -> Chunk | None:
        """Take the free chunk of exactly ``size`` with the lowest address."""
        heap = self._heaps.get(size)
        while heap:
            address = heappop(heap)
            chunk = self._free_chunks.get(address)
            if chunk is not None and chunk.size == size:
                del self._free_chunks[address]
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
        del self._free_chunks[chunk.address]
        heap = self._heaps[chunk.size]
        if heap[-1] == chunk.address:
            heap.pop()  # the last of a heap may go, and it is often the only one
            return
        self._stale += 1
        if self._stale > len(self._free_chunks) + 1024:
            self._index()

    def _release(self, chunk: Chunk) -> None:
        """Make a chunk free, one with its free neighbours: the first of them is what stays."""
        chunk.free = True
        self._used -= chunk.size
        after = chunk.next
        if after is not None and after.free:
            self._remove(after)
            chunk.size += after.size
            chunk.next = after = after.next
            if after is not None:
                after.prev = chunk
        before = chunk.prev
        if before is not None and before.free:
            self._remove(before)
            before.size += chunk.size
            before.next = after
            if after is not None:
                after.prev = before
            chunk = before
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
                    for listener in scope.hearing(self):  # under the lock: who begins to listen has it counted, or hears of it
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
        """Give every segment that is wholly free back to the machine; nothing, where asked from inside a request."""
        with self._alone() as alone:
            whole = [c for c in self._free_chunks.values() if c.prev is None and c.next is None] if alone else []
            for chunk in whole:
                self._remove(chunk)
                del self._firsts[chunk.address]
                self._total -= chunk.size
            for listener in scope.hearing(self):
                for chunk in whole:
                    listener.segment(self.device, chunk.address, -chunk.size)

    def reset_peak(self) -> None:
        """Let ``peak_used`` and ``peak_total`` begin again from what is used and reserved now."""
        with self._alone() as alone:
            now = (self._used, self._total) if alone else self._look()[:2]
            self._peak_used, self._peak_total = now

    @property
    def peak_used(self) -> int:
        """Most bytes in blocks that were alive at once, since :meth:`reset_peak`."""
        return self.counts().peak_used

    @property
    def peak_total(self) -> int:
        """Most bytes taken from the machine, since :meth:`reset_peak`."""
        return self.counts().peak_total

    def _free_runs(self) -> list[tuple[Segment, int, int]]:
        """Each run of free bytes as (segment, address, size), in the order of addresses."""
        with self._alone():  # some may be pending, where asked from inside a change
            return free_runs(self._firsts, self._pending)

    def largest_free(self) -> int:
        """Bytes of the largest free chunk: what can be had without a new segment."""
        return max((size for _, _, size in self._free_runs()), default=0)

    def holes(self) -> tuple[tuple[int, int, int], ...]:
        """Each free chunk as (segment, offset in it, bytes), in the order of addresses; segments without any do not count.

        Steps that begin with equal holes end with equal ones, where what lives between steps stays where it is (parameters and
        their state do): a training step that finds them as an earlier one did needs no more than the steps between them,
        however often it is repeated.
        """
        runs = self._free_runs()
        starts = sorted({segment.address for segment, _, _ in runs})
        return tuple((starts.index(segment.address), address - segment.address, size) for segment, address, size in runs)

    def used_bytes(self) -> int:
        """Bytes in blocks that are alive, each rounded up to 512."""
        return self.counts().used

    def total_bytes(self) -> int:
        """Bytes taken from the machine: used and cached."""
        return self.counts().total

    def free_bytes(self) -> int:
        """Bytes taken from the machine that no block uses."""
        now = self.counts()
        return now.total - now.used

    def n_free_blocks(self) -> int:
        """The number of free chunks that the pool keeps."""
        return len(self._free_runs())

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
