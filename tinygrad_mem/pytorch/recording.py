"""One device of a snapshot: its events, in columns, and its segments at the end and at the beginning."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .settings import SMALL, Settings


class Action(IntEnum):
    """The kind of an event; the names are PyTorch's."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    OOM = 7
    SNAPSHOT = 8
    OTHER = 9  # annotations, and kinds of later versions: they change no bytes


class RecordedBlock(NamedTuple):
    """A block of a segment."""

    address: int
    size: int
    requested: int  # bytes
    state: str  # active_allocated, active_awaiting_free (another stream uses it), or inactive: free
    stack: int = 0  # number of the stack that allocated it; 0 if unknown


class RecordedSegment(NamedTuple):
    """A segment, or a mapped piece of an expandable one."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: list[RecordedBlock]
    pool: tuple[int, int] = (0, 0)


EVENT = np.dtype(
    [("action", "u1"), ("address", "u8"), ("size", "u8"), ("stream", "u8"), ("pool", "u2"), ("stack", "u4"), ("time", "u8")]
)
"""One event. ``pool`` and ``stack`` are numbers of :attr:`Recording.pools` and of the snapshot's stacks; time is in µs."""


@dataclass
class Recording:
    """One device of a snapshot."""

    device: int  # its number
    events: np.ndarray  # of EVENT, in order; of OOM, size is the request and address the bytes that the driver had left
    segments: list[RecordedSegment]  # when the snapshot was written
    settings: str = ""  # of the allocator, if the snapshot has them
    pools: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # memory pools; events have their numbers

    def older_blocks(self, settings: Settings) -> list[RecordedBlock]:
        """The blocks that existed when the recording began, by address, including those in segments that it does not name."""
        found = self._older_blocks()
        for segment in self.at_beginning(settings)[0]:
            found.update({block.address: block for block in segment.blocks if block.state != "inactive"})
        blocks = (block if block.size else block._replace(size=settings.rounded(block.requested)) for block in found.values())
        return sorted(blocks)

    def at_beginning(self, settings: Settings) -> tuple[list[RecordedSegment], int]:
        """The segments when the recording began, and the number of their blocks that may be longer than is known.

        A block existed then if it was freed, or is alive at the end, and was never allocated. A block that was freed is as
        long as its request; a large one also has the rest behind it, if that is too short to be a free block.
        """
        older = self._older_blocks()
        starts = sorted(older)
        found, unsure = [], 0
        for segment in self.segments_after(-1, settings):
            here = starts[bisect_right(starts, segment.address - 1) : bisect_right(starts, segment.address + segment.size - 1)]
            blocks = [older[start] for start in here]
            ends = [*here[1:], segment.address + segment.size][: len(here)]
            for number, (block, end) in enumerate(zip(blocks, ends, strict=True)):
                if block.size == 0:
                    size, sure = self._length(block, end, segment, settings)
                    blocks[number], unsure = block._replace(size=size), unsure + (not sure)
            blocks = with_gaps(blocks, segment.address, segment.address + segment.size, "inactive")
            found.append(segment._replace(blocks=blocks))
        return found, unsure

    def space_begins(self, pieces: list[RecordedSegment], settings: Settings) -> int:
        """The lowest address of the expandable segment with memory in ``pieces``: pages may be mapped below them later."""
        first = pieces[0]
        pool = self.pools.index(first.pool) if first.pool in self.pools else len(self.pools)
        said = self.events[(self.events["stream"] == first.stream) & (self.events["pool"] == pool)]
        said = said[np.isin(said["action"], [Action.SEGMENT_MAP, Action.SEGMENT_UNMAP])]
        small = said["size"] % settings.large_segment != 0
        said = said[small == first.small]
        change = np.where(said["action"] == Action.SEGMENT_MAP, 1, -1) * said["size"].astype(np.int64)
        left = sum(piece.size for piece in pieces) + np.cumsum(change)
        gone = np.flatnonzero(left == 0)  # then the whole segment was released; a later one is at another address
        said = said[: gone[0]] if len(gone) else said
        return min([first.address, *said["address"].tolist()])

    def _older_blocks(self) -> dict[int, RecordedBlock]:
        """The blocks that were alive at the beginning, by address; size 0 if only the request is known."""
        moved = np.flatnonzero(self.events["action"] <= Action.FREE_COMPLETED).astype(np.int32)
        first = self.events[moved[np.unique(self.events["address"][moved], return_index=True)[1]]]
        born = set(first["address"][first["action"] == Action.ALLOC].tolist())
        older = {
            int(event["address"]): RecordedBlock(
                int(event["address"]), 0, int(event["size"]), "active_allocated", int(event["stack"])
            )
            for event in first[first["action"] != Action.ALLOC]
        }
        for event in first[first["action"] == Action.FREE_COMPLETED]:
            address = int(event["address"])
            older[address] = older[address]._replace(state="active_awaiting_free")
        touched = born | set(older)
        for segment in self.segments:
            for block in segment.blocks:
                if block.state != "inactive" and block.address not in touched:
                    older[block.address] = block
        return older

    def segments_after(self, event: int, settings: Settings) -> list[RecordedSegment]:
        """The segments after an event, -1 for the beginning, without their blocks: those at the end, without those added since,
        and with those released since.
        """
        found = {segment.address: segment._replace(blocks=[]) for segment in self.segments}
        since = self.events[event + 1 :]
        asked = (since["action"] >= Action.SEGMENT_ALLOC) & (since["action"] <= Action.SEGMENT_UNMAP)
        for undone in since[asked][::-1]:
            action, address, size = int(undone["action"]), int(undone["address"]), int(undone["size"])
            if action == Action.SEGMENT_ALLOC:
                found.pop(address, None)
            elif action == Action.SEGMENT_FREE:
                pool = self.pools[undone["pool"]]
                small = size <= 2 * SMALL  # large ones are longer, except under unusual settings
                found[address] = RecordedSegment(address, size, int(undone["stream"]), small, False, [], pool)
            elif action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP):
                _turn_back(found, undone, self.pools, settings.large_segment, mapped=action == Action.SEGMENT_MAP)
        return sorted(found.values())

    def _length(self, block: RecordedBlock, end: int, segment: RecordedSegment, settings: Settings) -> tuple[int, bool]:
        """The length of a block that is freed later, and whether that is sure. ``end`` is the beginning of the next one."""
        size = settings.rounded(block.requested)
        start = block.address + size
        if end <= start or segment.small or segment.expandable:
            return size, True
        if end - start <= SMALL:  # no free block of a large segment is so short: the rest was never split off
            return end - block.address, True
        first = self._first_between(block.address, start, end)
        return (first - block.address, True) if first is not None and first - start <= SMALL else (size, False)

    def _first_between(self, older: int, start: int, end: int) -> int | None:
        """The address of the first block that was allocated from ``start`` to ``end`` while ``older`` was alive."""
        address, number = self._allocations
        here = slice(*np.searchsorted(address, [start, end]))
        if here.start == here.stop:
            return None
        first = number[here].min()
        gone = self._frees.get(older, first)
        return int(self.events["address"][first]) if first <= gone else None

    @cached_property
    def _allocations(self) -> tuple[np.ndarray, np.ndarray]:
        """Allocated addresses, sorted, and the numbers of their events."""
        number = np.flatnonzero(self.events["action"] == Action.ALLOC)
        address = self.events["address"][number].astype(np.int64)
        order = np.argsort(address, kind="stable")
        return address[order], number[order]

    @cached_property
    def _frees(self) -> dict[int, int]:
        """Address -> number of the first event that frees it."""
        number = np.flatnonzero(self.events["action"] == Action.FREE_REQUESTED)[::-1]
        return dict(zip(self.events["address"][number].tolist(), number.tolist(), strict=True))


def with_gaps(blocks: list[RecordedBlock], start: int, end: int, state: str) -> list[RecordedBlock]:
    """The blocks from ``start`` to ``end``, with blocks of this state in the gaps."""
    found = []
    for block in blocks:
        if block.address > start:
            found.append(RecordedBlock(start, block.address - start, 0, state))
        found.append(block)
        start = block.address + block.size
    if start < end:
        found.append(RecordedBlock(start, end - start, 0, state))
    return found


def _turn_back(
    found: dict[int, RecordedSegment], event: np.void, pools: list[tuple[int, int]], page: int, mapped: bool
) -> None:
    """Undo one mapping, or unmapping, of pages; ``page``: bytes of one of a large segment."""
    address, size = int(event["address"]), int(event["size"])
    if mapped:
        holder = next((s for s in found.values() if s.address <= address and address + size <= s.address + s.size), None)
        if holder is None:
            return  # the recording does not name its address
        del found[holder.address]
        for start, end in ((holder.address, address), (address + size, holder.address + holder.size)):
            if start < end:
                found[start] = holder._replace(address=start, size=end - start)
        return
    piece = RecordedSegment(address, size, int(event["stream"]), size % page != 0, True, [], pools[event["pool"]])
    before = next((s for s in found.values() if s.expandable and s.address + s.size == address), None)
    after = found.get(address + size)
    if before is not None:
        piece = before._replace(size=before.size + size)
    if after is not None and after.expandable:
        del found[after.address]
        piece = piece._replace(size=piece.size + after.size)
    found[piece.address] = piece
