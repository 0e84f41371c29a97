"""The bytes that are reserved but not allocated. Some can be released, some are stuck beside live blocks.

They follow from the recorded addresses alone. A segment is released as a whole, an expandable one page by page. So the free
bytes of a segment (or page) with a live block are stuck: other requests can use them, but they cannot be released.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .evidence import Evidence
from .recording import Action, Recording
from .settings import SMALL_SEGMENT, parse

_EVERYBODY = (0, 0)
_LATE = "(freed, another stream uses it)"


@dataclass
class Held:
    """Free bytes that are stuck beside blocks of the same lines."""

    line: str  # the line that allocated most bytes of the blocks
    others: int  # further lines
    stuck: int  # free bytes of the segments (or pages) of the blocks
    largest: int  # the largest free piece among them
    blocks: int
    bytes: int  # of the blocks


@dataclass
class Unused:
    """The reserved bytes at one moment; the five kinds add up to ``reserved``."""

    event: int  # the number of the event before the moment
    reserved: int = 0
    allocated: int = 0  # in use
    waiting: int = 0  # freed, and another stream still uses them
    again: int = 0  # of segments (or pages) that are wholly free: torch.cuda.empty_cache releases them
    stuck: int = 0  # free, in segments (or pages) with live blocks
    private: int = 0  # free, in a private pool, such as a CUDA graph's
    held: list[Held] = field(default_factory=list)  # the blocks beside which bytes are stuck, largest first


def unused(evidence: Evidence, event: int) -> Unused:
    """The reserved bytes after an event; -1 for the beginning."""
    found = Unused(event)
    start, end, private = _units(evidence.recording, event)
    alive = evidence.alive(event)
    late, late_size = _waiting(evidence, event)
    address = np.concatenate([evidence.blocks.address[alive].astype(np.int64), late])
    size = np.concatenate([evidence.blocks.size[alive], late_size])
    owner = np.concatenate([evidence.owner[alive], np.full(len(late), len(evidence.owners))])
    order = np.argsort(address, kind="stable")
    address, size, owner = address[order], size[order], owner[order]
    free = (end - start) - _covered(address, size, start, end)
    empty, shared = free == end - start, private == 0
    found.reserved, found.allocated = int((end - start).sum()), int(evidence.blocks.size[alive].sum())
    found.waiting = int(late_size.sum())
    found.again, found.private = int(free[empty & shared].sum()), int(free[empty & ~shared].sum())
    partly = np.flatnonzero(~empty & (free > 0))
    found.stuck = int(free[partly].sum())
    found.held = _held([*evidence.owners, _LATE], partly, (start, end, free), (owner, address, size))
    return found


def _units(recording: Recording, event: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The units that can be released, after an event: first address, end address, and whether its pool is private."""
    units, settings = [], parse(recording.settings)
    for segment in recording.segments_after(event, settings):
        end, private = segment.address + segment.size, segment.pool != _EVERYBODY
        page = segment.size if not segment.expandable else SMALL_SEGMENT if segment.small else settings.large_segment
        units.extend((at, min(at + page, end), private) for at in range(segment.address, end, page))
    return tuple(np.array(units, np.int64).reshape(-1, 3).T)  # type: ignore[return-value]


def _waiting(evidence: Evidence, event: int) -> tuple[np.ndarray, np.ndarray]:
    """The address and bytes of each block that is freed after an event, and waits for another stream."""
    recording = evidence.recording
    said = recording.events[: event + 2]
    if len(said) > event + 1 and not (
        said["action"][-1] == Action.FREE_COMPLETED and np.all(said["address"][-2:-1] == said["address"][-1])
    ):
        said = said[:-1]  # otherwise both were one call
    older = [block for block in recording.older_blocks(parse(recording.settings)) if block.state == "active_awaiting_free"]
    sizes = {block.address: block.size for block in older}
    requested = np.concatenate([np.array([*sizes], np.uint64), said["address"][said["action"] == Action.FREE_REQUESTED]])
    completed = said["address"][said["action"] == Action.FREE_COMPLETED]
    if not np.any(recording.events["action"] == Action.FREE_COMPLETED) and not sizes:
        return np.empty(0, np.int64), np.empty(0, np.int64)  # this recording does not say
    address, place = np.unique(np.concatenate([requested, completed]), return_inverse=True)
    change = np.where(np.arange(len(place)) < len(requested), 1, -1)
    waits = address[np.bincount(place.reshape(-1), change) > 0]
    blocks = evidence.blocks
    freed = np.flatnonzero((blocks.freed <= event) & np.isin(blocks.address, waits))
    sizes |= dict(zip(blocks.address[freed].tolist(), blocks.size[freed].tolist(), strict=True))  # the last one of each address
    return waits.astype(np.int64), np.array([sizes[at] for at in waits.tolist()], np.int64)


def _covered(address: np.ndarray, size: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The bytes of blocks between each start and its end. A block may extend over several of these ranges."""
    upto = np.concatenate([[0], np.cumsum(size)])

    def below(limit: np.ndarray) -> np.ndarray:
        place = np.searchsorted(address, limit)
        before = np.maximum(place - 1, 0)
        beyond = np.maximum(address[before] + size[before] - limit, 0) if len(address) else 0
        return upto[place] - np.where(place > 0, beyond, 0)

    return below(end) - below(start)


def _held(names: list[str], partly: np.ndarray, units: tuple, blocks: tuple) -> list[Held]:
    """The free bytes of the partly used units, by the lines of the blocks in them."""
    (start, end, free), (owner, address, size) = units, blocks
    groups: dict[tuple[int, ...], Held] = {}
    for unit in partly.tolist():
        first = max(int(np.searchsorted(address, start[unit], "right")) - 1, 0)
        here = np.arange(first, np.searchsorted(address, end[unit]))
        here = here[address[here] + size[here] > start[unit]]
        sums = np.bincount(owner[here], size[here])
        lines = tuple(np.flatnonzero(sums).tolist())
        edges = np.concatenate([[start[unit]], np.minimum(address[here] + size[here], end[unit])])
        gaps = np.concatenate([address[here], [end[unit]]]) - edges
        held = groups.setdefault(lines, Held(names[int(np.argmax(sums))], len(lines) - 1, 0, 0, 0, 0))
        held.stuck += int(free[unit])
        held.largest = max(held.largest, int(gaps.max()))
        held.blocks += len(here)
        held.bytes += int(size[here].sum())
    return sorted(groups.values(), key=lambda held: -held.stuck)
