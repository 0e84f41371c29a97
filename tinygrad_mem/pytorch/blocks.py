"""The blocks of PyTorch's allocator: the pieces of its segments, each linked to its neighbours."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """The state of a block."""

    USED = 0
    WAITING = 1  # freed, but another stream may still use it
    FREE = 2
    UNMAPPED = 3  # address space of an expandable segment without memory


class Home(NamedTuple):
    """The kind of a segment: its memory pool, its stream, and whether it is for small or large requests. A block serves
    requests of its own kind."""

    pool: tuple[int, int]
    small: bool
    stream: int


class SegmentBlock:
    """A piece of a segment.

    Attributes:
        address, size: in bytes.
        requested: the requested bytes.
        home: the kind of its segment.
        state: see :class:`State`.
        before, after: its neighbours in the segment; a block without neighbours is the whole segment.
        expandable: True if its segment grows by mapped pages.
        origin: the address at which the segment begins.
        streams: other streams that use it.
        searches: the number of requests of its kind up to the moment when it became free; for garbage collection.
    """

    __slots__ = (
        "address", "after", "before", "expandable", "home", "origin", "requested", "searches", "size", "state", "streams",
    )  # fmt: skip

    def __init__(
        self, address: int, size: int, home: Home, state: State, expandable: bool = False, origin: int | None = None
    ) -> None:
        self.address, self.size, self.home, self.state, self.expandable = address, size, home, state, expandable
        self.origin = address if origin is None else origin
        self.requested = self.searches = 0
        self.before: SegmentBlock | None = None
        self.after: SegmentBlock | None = None
        self.streams: set[int] = set()

    @property
    def split(self) -> bool:
        """True if the block is only a part of its segment."""
        return self.before is not None or self.after is not None


def could_be(block: SegmentBlock) -> int:
    """The bytes of a free block together with the unmapped space behind it."""
    after = block.after
    return block.size + (after.size if after is not None and after.state is State.UNMAPPED else 0)


def insert(block: SegmentBlock, before: SegmentBlock | None, after: SegmentBlock | None) -> None:
    block.before, block.after = before, after
    link(block)


def link(block: SegmentBlock) -> None:
    """Link the neighbours to the block."""
    if block.before is not None:
        block.before.after = block
    if block.after is not None:
        block.after.before = block
