"""A model of PyTorch's CUDA caching allocator: it computes the address of each request, and the requests to the driver.

PyTorch asks the driver for *segments* and cuts them into *blocks*. A freed block is cached for the next request that fits.
Read :meth:`CachingAllocator.malloc` and :meth:`CachingAllocator.free` first; the other methods are their steps.

- A request takes the smallest free block that is large enough; among equal ones, the one with the lowest address. Each stream
  has its own free blocks, and small requests (up to 1 MiB) have other segments than large ones.
- The rest of the block is split off: it becomes a free block of its own.
- A freed block merges with the free blocks beside it in its segment. Only a segment that is one free block can be released.

Source: PyTorch 2.13, ``c10/cuda/CUDACachingAllocator.cpp``, and "CUDA semantics: Memory management" in its documentation.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from ..errors import ArgumentError, OutOfMemoryError
from .blocks import Home, SegmentBlock, State, could_be, insert, link
from .driver import Driver
from .settings import SMALL, SMALL_SEGMENT, Settings, parse
from .stats import Stats


class CachingAllocator:
    """The allocator of one device, without the device: it has addresses and bytes, and no memory.

    Args:
        settings: as in ``PYTORCH_CUDA_ALLOC_CONF``, such as ``"max_split_size_mb:128"``.
        capacity: bytes that the driver has for this process, or ``"24 GiB"``; with ``None`` it never refuses.
        driver: gives segments and their addresses; by default as an H100's does.

    Attributes:
        stats: the counters of ``torch.cuda.memory_stats``, see :meth:`memory_stats`.
        releasable: bytes that :meth:`empty_cache` would release now.

    Raises:
        ValueError: PyTorch would refuse the settings.
    """

    def __init__(self, settings: str | Settings = "", capacity: int | str | None = None, driver: Driver | None = None) -> None:
        self.settings = parse(settings) if isinstance(settings, str) else settings
        self.driver = driver or Driver(capacity)
        self.stats = Stats(self.settings.max_split_size)
        self.releasable = 0
        self.blocks: dict[int, SegmentBlock] = {}
        self.free_blocks: defaultdict[Home, list[tuple[int, int]]] = defaultdict(list)  # (size, address), sorted
        self._unmapped: defaultdict[Home, list[int]] = defaultdict(list)  # addresses, sorted
        self._waiting: list[SegmentBlock] = []
        self._searches: defaultdict[tuple, int] = defaultdict(int)
        self.limit(self.settings.per_process_memory_fraction)

    def limit(self, share: float | None) -> None:
        """Give the process no more than this share of the card's memory, which has no effect on a card that never refuses."""
        self._allowed = None if share is None or self.driver.capacity is None else int(share * self.driver.capacity)
        self._collects = self._allowed is not None and self.settings.garbage_collection_threshold > 0

    # --- the four calls ---------------------------------------------------------------------------------------------------

    def malloc(self, size: int, stream: int = 0, pool: tuple[int, int] = (0, 0)) -> int:
        """Return the address of a block of at least ``size`` bytes for ``stream``.

        Args:
            pool: the memory pool, such as a CUDA graph's; ``(0, 0)`` is the default pool.

        Raises:
            OutOfMemoryError: the driver has no memory, and releasing cached segments did not help.
            ValueError: ``size`` is not positive: PyTorch never asks for 0 bytes.
        """
        if size <= 0:
            raise ArgumentError(f"malloc: expected a positive number of bytes, found {size}")
        rounded = self.settings.rounded(size)
        home = Home(pool, rounded <= SMALL, stream)
        block = self._find(home, rounded) or self._new(home, rounded, size)
        was_split = block.split
        rest = self._split(block, rounded) if self.settings.splits(block.size, rounded, home.small) else 0
        if not block.expandable:
            self.stats.split_used(home.small, was_split, block.size, rest)
        block.state, block.requested = State.USED, size
        self.stats.allocated(home.small, block.size, size)
        return block.address

    def free(self, address: int) -> None:
        """Free the block at ``address``. A block that other streams use waits for them.

        Raises:
            ValueError: no block in use begins there.
        """
        block = self._used_block(address, "free")
        self.stats.free_requested(block.home.small, block.size)
        if block.streams:
            block.state = State.WAITING
            self._waiting.append(block)
        else:
            self._put_back(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Record that ``stream`` uses the block, as ``Tensor.record_stream`` does. Once freed, it waits for the stream.

        Raises:
            ValueError: no block in use begins there.
        """
        block = self._used_block(address, "record_stream")
        if stream != block.home.stream:
            block.streams.add(stream)

    def synchronize(self) -> None:
        """Finish the work of all streams: the blocks that waited become free."""
        waiting, self._waiting = self._waiting, []
        for block in waiting:
            self._put_back(block)

    def completed(self, address: int) -> None:
        """Finish the work of the streams that used the block at ``address``: it was freed and waited, and becomes free.

        Raises:
            ValueError: no block waits there.
        """
        block = self.blocks.get(address)
        if block is None or block.state is not State.WAITING:
            raise ArgumentError(f"completed: no freed block waits at {address:#x}")
        self._waiting.remove(block)
        self._put_back(block)

    def empty_cache(self) -> None:
        """Release every segment that is wholly free, as ``torch.cuda.empty_cache`` does.

        Private memory pools keep theirs: a CUDA graph may still be replayed in them.
        """
        self.synchronize()
        self.stats.num_sync_all_streams += 1
        for home in sorted(home for home in self.free_blocks if home.pool == (0, 0)):  # the large ones first
            blocks = [self.blocks[address] for _, address in self.free_blocks[home]]
            for block in blocks:
                if not block.expandable and not block.split:
                    self.give_back(block)
            for block in blocks:
                if block.expandable:
                    self.unmap(block)

    def memory_stats(self) -> dict[str, int]:
        """The counters by PyTorch's names, such as ``"allocated_bytes.all.peak"``."""
        return self.stats.by_name()

    # --- finding a free block ---------------------------------------------------------------------------------------------

    def _find(self, home: Home, rounded: int) -> SegmentBlock | None:
        """Take the smallest free block that fits; ``None`` if there is none."""
        if self._collects:
            self._searches[home.pool, home.small] += 1
        free = self.free_blocks[home]
        at = bisect_left(free, (rounded, 0))
        if at == len(free):
            return None
        block = self.blocks[free[at][1]]
        if block.expandable:
            found = self._fits_best(free, at)
            if found is None:
                return None
            at, block = found
        limit = self.settings.max_split_size
        if rounded < limit <= block.size:
            return None  # a block of this size is never split, so it would be wasted on a small request
        if rounded >= limit and block.size >= rounded + self.settings.max_non_split_rounding:
            return None
        del free[at]
        self._count_free(block, -1)
        return block

    def _fits_best(self, free: list[tuple[int, int]], at: int) -> tuple[int, SegmentBlock] | None:
        """The best free block from ``at`` on: the expandable one that could grow least; an ordinary one if that is off."""
        fitting = ((place, self.blocks[free[place][1]]) for place in range(at, len(free)))
        if not self.settings.expandable_segments:
            return next((found for found in fitting if not found[1].expandable), None)
        at, block = next(fitting)
        for place, other in fitting:
            if not block.expandable or could_be(other) >= could_be(block):
                break
            at, block = place, other
        return at, block

    def _split(self, block: SegmentBlock, rounded: int) -> int:
        """Cut ``block`` to ``rounded`` bytes. The rest becomes a free block behind it; its size is returned."""
        address, size = block.address + rounded, block.size - rounded
        rest = SegmentBlock(address, size, block.home, State.FREE, block.expandable, block.origin)
        block.size = rounded
        insert(rest, block, block.after)
        self.make_free(rest)
        return rest.size

    # --- asking the driver ------------------------------------------------------------------------------------------------

    def _new(self, home: Home, rounded: int, size: int) -> SegmentBlock:
        """A block of new memory. If the driver has none, cached segments are released first."""
        self._collect_garbage()
        block = self._from_driver(home, rounded)
        if block is None and self._release_oversize(home, rounded):
            block = self._from_driver(home, rounded)
        if block is None and home.pool == (0, 0):  # while a memory pool is in use, a CUDA graph may be captured: no retry
            self.empty_cache()
            self.stats.num_alloc_retries += 1
            block = self._from_driver(home, rounded)
        if block is None:
            self.stats.num_ooms += 1
            report = f"The driver has {self.driver.available:,} bytes. Use a smaller batch, or other settings of the allocator."
            used, reserved = map(self.stats.current, ("allocated_bytes", "reserved_bytes"))
            limit = self._allowed or self.driver.capacity or 0
            raise OutOfMemoryError("cuda", size, used, reserved, limit, (reserved - used, None), report)
        return block

    def _from_driver(self, home: Home, rounded: int) -> SegmentBlock | None:
        size = self.settings.segment_size(rounded)
        if self._allowed is not None and self.stats.current("reserved_bytes") + size > self._allowed:
            return None
        if self.settings.expandable_segments:
            return self._expand(home, rounded)
        address = self.driver.malloc(size, home.stream)
        if address is None:
            return None
        block = self.blocks[address] = SegmentBlock(address, size, home, State.FREE)
        self.stats.segment(home.small, size)
        return block

    def give_back(self, block: SegmentBlock) -> None:
        """Release a segment, which is one free block."""
        self._take(block)
        del self.blocks[block.address]
        self.driver.free(block.address, block.size, block.home.stream)
        self.stats.segment(block.home.small, -block.size)

    def _release_oversize(self, home: Home, rounded: int) -> bool:
        """With ``max_split_size_mb``: release blocks of at least that size, until ``rounded`` bytes are released."""
        if self.settings.max_split_size >= 1 << 63:
            return False
        wanted = max(rounded, self.settings.max_split_size)
        free = self.free_blocks[home]
        at = bisect_left(free, (wanted, 0))
        if at < len(free):
            self.give_back(self.blocks[free[at][1]])
            return True
        released = 0
        while free and released < wanted and free[-1][0] >= self.settings.max_split_size:
            released += free[-1][0]
            self.give_back(self.blocks[free[-1][1]])
        return released >= wanted

    # --- garbage collection -----------------------------------------------------------------------------------------------

    def _collect_garbage(self) -> None:
        """Release free large segments, those unused for longest first, until the process is below the threshold."""
        if not self._collects or self._allowed is None:
            return
        reserved = self.stats.current("reserved_bytes")
        excess = reserved - int(self.settings.garbage_collection_threshold * self._allowed)
        age = {
            block: self._searches[home.pool, False] - block.searches
            for home, free in sorted(self.free_blocks.items())
            if not home.small and home.pool == (0, 0)
            for block in (self.blocks[address] for _, address in free)
            if not block.split and not block.expandable
        }
        while excess > 0 and age:
            average = sum(age.values()) / len(age)
            old = [block for block in age if age[block] >= average]
            for block in old:
                excess -= block.size
                del age[block]
                self.give_back(block)

    # --- freeing ----------------------------------------------------------------------------------------------------------

    def _put_back(self, block: SegmentBlock) -> None:
        """Make a block free that no stream uses any more."""
        self.stats.free_completed(block.home.small, block.size, block.requested)
        block.streams.clear()
        block.requested = 0
        merged = self._merge(block)
        if not block.expandable:
            self.stats.split_freed(block.home.small, len(merged), sum(merged), block.size if block.split else 0)

    def _merge(self, block: SegmentBlock) -> list[int]:
        """Make a block free, with the free blocks beside it. Returns their bytes."""
        merged = []
        for beside in (block.before, block.after):
            if beside is not None and beside.state is State.FREE:
                self._take(beside)
                merged.append(beside.size)
                self._join(block, beside)
        self.make_free(block)
        return merged

    def _join(self, block: SegmentBlock, beside: SegmentBlock) -> None:
        """Merge a neighbour into ``block``."""
        del self.blocks[max(block.address, beside.address)]
        if beside is block.before:
            block.address, block.before = beside.address, beside.before
        else:
            block.after = beside.after
        block.size += beside.size
        link(block)
        self.blocks[block.address] = block

    def make_free(self, block: SegmentBlock) -> None:
        block.state = State.FREE
        block.searches = self._searches[block.home.pool, block.home.small] if self._collects else 0
        self.blocks[block.address] = block
        insort(self.free_blocks[block.home], (block.size, block.address))
        self._count_free(block, 1)

    def make_unmapped(self, block: SegmentBlock) -> None:
        """Turn a block into address space without memory."""
        block.state = State.UNMAPPED
        self.blocks[block.address] = block
        insort(self._unmapped[block.home], block.address)

    def _take(self, block: SegmentBlock) -> None:
        """Remove a block from the free ones."""
        free = self.free_blocks[block.home]
        del free[bisect_left(free, (block.size, block.address))]
        self._count_free(block, -1)

    def _count_free(self, block: SegmentBlock, sign: int) -> None:
        """Count a free block that appears or disappears in :attr:`releasable`."""
        whole = 0 if block.split else block.size
        if block.expandable:
            start, end = self._whole_pages(block)
            whole = max(end - start, 0)
        if block.home.pool == (0, 0):
            self.releasable += sign * whole

    def _used_block(self, address: int, call: str) -> SegmentBlock:
        block = self.blocks.get(address)
        if block is None or block.state is not State.USED:
            raise ArgumentError(f"{call}: no block in use begins at {address:#x}")
        return block

    # --- expandable segments ----------------------------------------------------------------------------------------------

    def _page(self, home: Home) -> int:
        """The bytes of a page, which are mapped at once."""
        return SMALL_SEGMENT if home.small else self.settings.large_segment

    def _expand(self, home: Home, rounded: int) -> SegmentBlock | None:
        """Map pages until there is a free block of ``rounded`` bytes, at the lowest address with room for it."""
        block: SegmentBlock | None = self._room(home, rounded)
        if block.state is State.UNMAPPED:
            block = self._map(block, min(block.size, rounded))
        while block is not None and block.size < rounded:
            assert block.after is not None
            block = self._map(block.after, min(rounded - block.size, block.after.size))
        if block is not None:
            self._take(block)
        return block

    def _room(self, home: Home, rounded: int) -> SegmentBlock:
        """The first block of a row of free or unmapped ones with ``rounded`` bytes; else the block of a new segment."""
        for address in self._unmapped[home]:
            first = self.blocks[address]
            if first.before is not None and first.before.state is State.FREE:
                first = first.before
            size, block = 0, first
            while size < rounded and block is not None and block.state in (State.FREE, State.UNMAPPED):
                size, block = size + block.size, block.after
            if size >= rounded:
                return first
        address, size = self.driver.reserve(self._page(home), home.stream)
        block = SegmentBlock(address, size, home, State.UNMAPPED, expandable=True)
        self.make_unmapped(block)
        return block

    def _map(self, block: SegmentBlock, size: int) -> SegmentBlock | None:
        """Map ``size`` bytes, in whole pages, at the beginning of an unmapped block. ``None`` if the driver has no memory."""
        page = self._page(block.home)
        size = min(-(-size // page) * page, block.size)
        if not self.driver.map(block.address, size, block.home.stream):
            return None
        self._unmapped[block.home].remove(block.address)
        if size < block.size:
            rest = SegmentBlock(block.address + size, block.size - size, block.home, State.UNMAPPED, True, block.origin)
            block.size = size
            insert(rest, block, block.after)
            self.make_unmapped(rest)
        self._merge(block)
        self.stats.mapped(block.home.small, size)
        return block

    def _whole_pages(self, block: SegmentBlock) -> tuple[int, int]:
        """The range of the pages that a block has to itself; it is empty if its end is not above its start."""
        page, origin = self._page(block.home), block.origin
        start = origin - (origin - block.address) // page * page
        return start, origin + (block.address + block.size - origin) // page * page

    def unmap(self, block: SegmentBlock) -> None:
        """Release the whole pages of a free block."""
        start, end = self._whole_pages(block)
        if start >= end:
            return
        self._take(block)
        for address, size in ((block.address, start - block.address), (end, block.address + block.size - end)):
            if size:  # a page that another block uses too stays mapped
                rest = SegmentBlock(address, size, block.home, State.FREE, True, block.origin)
                insert(rest, *((block.before, block) if address < start else (block, block.after)))
                self.make_free(rest)
        block.address, block.size, block.state = start, end - start, State.UNMAPPED
        self.blocks[start] = block
        self.driver.unmap(start, end - start, block.home.stream)
        self.stats.mapped(block.home.small, start - end)
        for beside in (block.before, block.after):
            if beside is not None and beside.state is State.UNMAPPED:
                self._unmapped[block.home].remove(beside.address)
                self._join(block, beside)
        if block.split:
            insort(self._unmapped[block.home], block.address)
        else:  # no page of the segment is mapped: its address space is released too
            del self.blocks[block.address]
