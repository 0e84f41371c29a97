"""The pool's segments at the end of a log, and the blocks in them.

A log records each segment that the pool reserved while it ran. Of older segments it has only the sum of their bytes, and the
addresses of blocks in them. So adjacent blocks count as one segment, and the rest of the sum as another one, at an unused
address. CuPy does not report which segments it returns: segments without live blocks are assumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..log import Kind

_APART = 1 << 21
_SMALL = 1 << 20  # PyTorch keeps blocks up to this size in segments of their own


class LiveBlock(NamedTuple):
    """A block that is alive at the end."""

    address: int
    rounded: int
    requested: int
    frames: list


class Segments:
    """Reads the log's records, a chunk at a time; then :meth:`settle` computes the segments.

    Attributes:
        reserved: bytes that the pool has reserved.
        found: address -> size of the segments at the end, once settled.
        emptied: segments that were returned at an unknown time.
        rest: the address used for blocks whose addresses the log does not know; 0 if there are none.
    """

    def __init__(self) -> None:
        self.reserved, self.rest = 0, 0
        self.found: dict[int, int] = {}
        self.emptied: dict[int, int] = {}
        self._gone: list[tuple[int, int]] = []  # (begin, end) of older ones that were returned
        self._ever: list[tuple[int, int]] = []
        self._outside: set[tuple[int, int]] = set()
        self._silent = 0  # bytes that the pool returned at unknown addresses

    def read(self, records: np.ndarray) -> None:
        """Read the next events."""
        kind, address, size = records["kind"], records["address"], records["rounded"]
        for i in np.flatnonzero((kind == Kind.RESERVE) | (kind == Kind.RELEASE)):
            (self._take if kind[i] == Kind.RESERVE else self._give)(int(address[i]), int(size[i]))
        placed = ((kind == Kind.MALLOC) | (kind == Kind.FREE) | (kind == Kind.OLDER)) & (address > 0)
        begin = address[placed].astype(np.int64)
        spans = np.array(self._ever or [(0, 0)], np.int64)
        last = np.searchsorted(spans[:, 0], begin, "right") - 1
        outside = (last < 0) | (begin >= spans[last, 1])
        end = begin + size[placed].astype(np.int64)
        self._outside.update(zip(begin[outside].tolist(), end[outside].tolist(), strict=True))

    def _take(self, address: int, size: int) -> None:
        self.reserved += size
        if address:
            for begin in [a for a in self.found if self._silent and a < address + size and address < a + self.found[a]]:
                self._silent -= self.found.pop(begin)  # returned already
            self.found[address] = size
            self._ever = _merged([*self._ever, (address, address + size)])

    def _give(self, address: int, size: int) -> None:
        self.reserved -= size
        if not address:
            self._silent += size
        elif self.found.pop(address, None) is None:
            self._gone.append((address, address + size))

    def settle(self, living: Iterable[int], loose: int) -> None:
        """Compute the segments at the end.

        Args:
            living: addresses of the live blocks.
            loose: bytes in blocks whose addresses the log does not know.
        """
        older = [(a, b) for a, b in self._outside if not any(begin <= a < end for begin, end in self._gone)]
        self.found.update({begin: end - begin for begin, end in _merged(older)})
        starts = np.sort(np.array(list(living), np.int64))
        for begin, size in list(self.found.items()):
            empty = np.searchsorted(starts, begin) == np.searchsorted(starts, begin + size)
            if empty and size <= self._silent:
                self._silent -= size
                self.emptied[begin] = self.found.pop(begin)
        rest = max(self.reserved - sum(self.found.values()), loose)
        if rest > 0:
            top = max((end for _, end in [*self._ever, *self._gone, *self._outside]), default=0)
            unused = -(-top // _APART) * _APART + _APART
            self.found[unused] = rest
            self.rest = unused if loose > 0 else 0

    def described(self, living: Iterable[LiveBlock]) -> list[dict[str, Any]]:
        """The segments in the form of PyTorch's snapshot, with their live blocks and the gaps between."""
        starts = sorted(self.found)
        inside: dict[int, list[LiveBlock]] = {start: [] for start in starts}
        for block in sorted(living, key=lambda block: block.address):
            at = int(np.searchsorted(starts, block.address, "right")) - 1
            if at >= 0:
                inside[starts[at]].append(block)
        return [_segment(start, self.found[start], inside[start]) for start in starts]


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same addresses in the fewest possible spans, in order."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _segment(start: int, size: int, living: list[LiveBlock]) -> dict[str, Any]:
    blocks, at = [], start
    for block in living:
        if block.address < at or block.address + block.rounded > start + size:
            continue  # the log missed a free: two blocks cannot overlap
        if block.address > at:
            blocks.append(_block(at, block.address - at, 0, [], "inactive"))
        blocks.append(_block(block.address, block.rounded, block.requested, block.frames, "active_allocated"))
        at = block.address + block.rounded
    if at < start + size:
        blocks.append(_block(at, start + size - at, 0, [], "inactive"))
    used = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": start,
        "total_size": size,
        "allocated_size": used,
        "active_size": used,
        "requested_size": sum(block["requested_size"] for block in blocks),
        "stream": 0,
        "segment_type": "small" if size <= _SMALL else "large",
        "segment_pool_id": (0, 0),
        "frames": [],
        "blocks": blocks,
    }


def _block(address: int, size: int, requested: int, frames: list, state: str) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": requested, "frames": frames, "state": state}
