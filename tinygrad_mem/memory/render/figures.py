"""The numbers of a page's figures: the timeline by category, the life of each block, the peak by module."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np

from ..blocks import Block
from ..record import Record
from .palette import phases, sample

POINTS = 3000  # moments of the timeline that are drawn
BLOCKS = 1000  # most blocks whose lives are drawn: the largest
LEAST = 1e-3  # share of the peak: smaller blocks of a module are one tile


def timeline(track: Record) -> dict[str, Any]:
    """Bytes in use by category after each event that is drawn (``at``: its position), the phases, and the peak's position."""
    line = track.timeline()
    at = sample(line, POINTS)
    return {
        "moments": len(line),
        "peak": line.peak(),
        "at": at.tolist(),
        "used": line.used[at].tolist(),
        "bytes": {category.value: line.bytes(category)[at].tolist() for category in line.categories},
        "phases": phases(line, len(line) * 0.008),
    }


def largest(track: Record, most: int = BLOCKS) -> tuple[list[Block], int]:
    """The largest blocks of the whole run in order of allocation, and the number of all blocks."""
    count, kept = 0, []
    for count, block in enumerate(track.blocks(), 1):  # noqa: B007 (the count is of all, not of those that are kept)
        entry = (block.rounded, -block.born, block)
        if len(kept) < most:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    return sorted((block for _, _, block in kept), key=lambda block: block.born), count


def lives(track: Record, found: list[Block]) -> dict[str, list]:
    """A bar for each category of each block: from ``start`` to ``stop``, at the lowest place that is free all its life."""
    line = track.timeline()
    bars: dict[str, list] = {key: [] for key in ("start", "stop", "low", "bytes", "category", "words")}
    for block, place in zip(found, _places(found), strict=True):
        for start, stop, category in _periods(block, len(track.log)):
            first, last = np.searchsorted(line.event, [start, stop]).tolist()
            if last > first:
                bar = first, last, place, block.rounded, category.value, _words(block)
                for column, value in zip(bars.values(), bar, strict=True):
                    column.append(value)
    return bars


def _places(found: list[Block]) -> list[int]:
    """First fit: for each block in order of allocation, the lowest place that is free during its whole life."""
    live: list[tuple[int, int, int]] = []  # (place, end, when it is free again), by place
    places = []
    for block in found:
        live = [entry for entry in live if entry[2] > block.born]
        place = 0
        for start, end, _ in live:
            if start - place >= block.rounded:
                break
            place = max(place, end)
        places.append(place)
        live.append((place, place + block.rounded, block.died if block.died is not None else 1 << 62))
        live.sort()
    return places


def _periods(block: Block, events: int) -> list[tuple[int, int, Any]]:
    """(first event, event after the last, category) of each period in which the block had one category."""
    ends = [*(at for at, _ in block.categories), block.died if block.died is not None else events]
    return [(a, b, category) for (a, b), (_, category) in zip(pairwise(ends), block.categories, strict=True)]


def _words(block: Block) -> str:
    """A block, apart from its bytes and its category, in lines."""
    asked = f"{block.requested:,} B requested" if block.requested != block.rounded else ""
    rows = [block.deduced, block.owner, asked, f"allocated in {block.phase}", block.line]
    return "\n".join(row for row in rows if row)


def peak(track: Record) -> list[tuple[str, str, str, int]]:
    """(module, what, category, bytes) of the blocks at the peak. Small blocks of a module and a category are one."""
    blocks = track.live("peak")
    least = LEAST * sum(block.rounded for block in blocks)
    sizes: Counter[tuple[str, str, str]] = Counter()
    for block in blocks:
        what = block.name.rpartition(".")[2] or block.op or block.owner
        sizes[block.home, "smaller blocks" if block.rounded < least else what, block.category.value] += block.rounded
    return [(*names, size) for names, size in sizes.most_common()]
