"""The blocks of a recording: the events that allocated and freed each, its size, and its stacks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .recording import Action, Recording
from .settings import SMALL, Settings, parse

_ASKED = np.uint8(Action.ALLOC)
_BATCH = 1 << 16  # events that are converted to Python numbers at once


@dataclass
class Lifetimes:
    """Columns with one entry for each block: first those that are older than the recording, then the others in order of
    allocation."""

    born: np.ndarray  # number of the event that allocated the block; -1 if it is older than the recording
    freed: np.ndarray  # number of the event that freed it; the number of all events if it is alive at the end
    address: np.ndarray
    requested: np.ndarray  # bytes
    size: np.ndarray  # allocated bytes, as torch.cuda.memory_allocated counts them
    stack: np.ndarray  # number of the stack that allocated it; 0 if unknown
    end_stack: np.ndarray  # number of the stack that freed it; 0 if unknown

    def __len__(self) -> int:
        return len(self.born)


def lifetimes(recording: Recording) -> Lifetimes:
    """The blocks of a recording. A block ends when the program frees it, even if another stream still uses it."""
    events, settings = recording.events, parse(recording.settings)
    older = [block for block in recording.older_blocks(settings) if block.state == "active_allocated"]
    asked = np.flatnonzero(events["action"] == _ASKED).astype(np.int32)
    born = np.concatenate([np.full(len(older), -1, np.int32), asked])
    address = _column([block.address for block in older], events["address"][asked])
    requested = _column([block.requested for block in older], events["size"][asked])
    size = _column([block.size for block in older], sizes(recording, settings).astype(np.uint64))
    freed = _ends(events, born, address)
    ended = freed < len(events)
    end_stack = (
        np.where(ended, events["stack"][np.where(ended, freed, 0)], 0) if len(events) else np.zeros(len(born), np.uint32)
    )
    # a block in use has the stack that allocated it; a freed block has only the stack that freed it
    stack = _column([0 if gone else block.stack for block, gone in zip(older, ended, strict=False)], events["stack"][asked])
    return Lifetimes(born, freed, address, requested, size, stack, end_stack)


def _column(older: list[int], newer: np.ndarray) -> np.ndarray:
    return np.concatenate([np.array(older, newer.dtype), newer])


def _ends(events: np.ndarray, born: np.ndarray, address: np.ndarray) -> np.ndarray:
    """For each block, the number of the event that ends it: the next free or malloc at its address."""
    frees = Action.FREE_REQUESTED  # recordings may leave out kinds of events
    if not np.any(events["action"] == frees):
        frees = Action.FREE_COMPLETED
    end = np.flatnonzero((events["action"] == _ASKED) | (events["action"] == frees)).astype(np.int32)
    at = events["address"][end]
    order = np.argsort(at, kind="stable").astype(np.int32)
    end, at = end[order], at[order]
    rank = np.empty(len(events), np.int32)
    rank[end] = np.arange(len(end), dtype=np.int32)
    known = born >= 0
    place = np.empty(len(born), np.int32)
    place[known] = rank[born[known]] + 1
    place[~known] = np.searchsorted(at, address[~known])
    found = np.full(len(born), len(events), np.int32)
    here = np.flatnonzero(place < len(end))
    here = here[at[place[here]] == address[here]]
    found[here] = end[place[here]]
    return found


def sizes(recording: Recording, settings: Settings) -> np.ndarray:
    """The allocated bytes of each requested block, in order.

    This is the request, rounded up, plus the rest of the free block if the rest was too short to be a block of its own.
    """
    events = recording.events
    asked = events["action"] == _ASKED
    distinct, which = np.unique(events["size"][asked], return_inverse=True)
    size = np.array([settings.rounded(each) for each in distinct.tolist()], np.int64)[which.reshape(-1)]
    if settings.expandable_segments or not np.any(size > SMALL):
        return size  # only large blocks of ordinary segments can stay whole
    return _Chunks(recording, settings).sizes(size)


class _Chunks:
    """The large segments and their free chunks, while a recording is read. The recording gives the address of each block."""

    def __init__(self, recording: Recording, settings: Settings) -> None:
        self._recording, self._settings = recording, settings
        self._free: dict[int, int] = {}  # address -> bytes
        self._before: dict[int, int] = {}  # end of a free chunk -> its address
        self._used: dict[int, int] = {}
        self._walls: set[int] = set()  # addresses at which segments begin
        for segment in recording.at_beginning(settings)[0]:
            if not segment.small and not segment.expandable:
                self._walls.add(segment.address)
                for block in segment.blocks:
                    if block.state == "inactive":
                        self._add_free(block.address, block.size)
                    else:
                        self._used[block.address] = block.size

    def sizes(self, rounded: np.ndarray) -> np.ndarray:
        """The bytes of each block. ``rounded``: the requested bytes, rounded up."""
        events, sizes = self._recording.events, rounded.copy()
        action, number = events["action"], np.cumsum(events["action"] == _ASKED, dtype=np.int32) - 1
        asked = np.flatnonzero(action == _ASKED)[rounded > SMALL]
        large = np.unique(np.append(events["address"][asked], np.array([*self._used], np.uint64)))
        ended = np.flatnonzero(action == Action.FREE_COMPLETED)
        place = np.searchsorted(large, events["address"][ended])
        ended = ended[np.append(large, np.uint64(0))[place] == events["address"][ended]]
        moved = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_FREE)
        moved = np.flatnonzero(moved & (events["size"] > 2 * SMALL))
        about = np.sort(np.concatenate([asked, ended, moved]).astype(np.int32))
        for start in range(0, len(about), _BATCH):
            part = about[start : start + _BATCH]
            columns = (events[name][part].tolist() for name in ("action", "address", "size"))
            for kind, address, size, block in zip(*columns, number[part].tolist(), strict=True):
                if kind == Action.ALLOC:
                    sizes[block] = self._take(address, int(rounded[block]))
                elif kind == Action.FREE_COMPLETED:
                    self._give(address)
                elif kind == Action.SEGMENT_ALLOC:
                    self._walls.add(address)
                    self._add_free(address, size)
                else:
                    self._walls.discard(address)
                    self._remove_free(address)
        return sizes

    def _take(self, address: int, rounded: int) -> int:
        size = self._remove_free(address)
        if size is None or size < rounded:
            return rounded  # the size of the free chunk is not known
        if self._settings.splits(size, rounded, False):
            self._add_free(address + rounded, size - rounded)
            size = rounded
        self._used[address] = size
        return size

    def _give(self, address: int) -> None:
        """Free a block, and merge it with its free neighbours."""
        size = self._used.pop(address, None)
        if size is None:
            return
        if address + size not in self._walls:
            size += self._remove_free(address + size) or 0
        before = self._before.get(address)
        if before is not None and address not in self._walls:
            size += self._remove_free(before) or 0
            address = before
        self._add_free(address, size)

    def _add_free(self, address: int, size: int) -> None:
        self._free[address] = size
        self._before[address + size] = address

    def _remove_free(self, address: int) -> int | None:
        size = self._free.pop(address, None)
        if size is not None:
            del self._before[address + size]
        return size
