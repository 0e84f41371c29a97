"""The blocks that PyTorch's allocator cuts its segments into, and how they hang together."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """The state of a block."""

    USED = 0
    WAITING = 1  # freed, but another stream may still work on it
    FREE = 2
    UNMAPPED = 3  # address space of an expandable segment without memory


class Home(NamedTuple):
    """The blocks that may serve a request: those of one memory pool and stream, for small requests or for large ones."""

    pool: tuple[int, int]
    small: bool
    stream: int


class SegmentBlock:
    """A piece of a segment.

    Attributes:
        address, size: in bytes.
        requested: the bytes that were asked for.
        home: of the segment.
        state: see :class:`State`.
        before, after: its neighbours in the segment; a block without any is the whole segment.
        expandable: whether the segment is one that grows by mapped pages.
        origin: the address at which the segment begins.
        streams: the other streams that use it.
        searches: how many requests its home had seen when it became free; for garbage collection.
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
        """True if it is less than its segment."""
        return self.before is not None or self.after is not None


def could_be(block: SegmentBlock) -> int:
    """The bytes that a free block has with the unmapped space behind it."""
    after = block.after
    return block.size + (after.size if after is not None and after.state is State.UNMAPPED else 0)


def insert(block: SegmentBlock, before: SegmentBlock | None, after: SegmentBlock | None) -> None:
    block.before, block.after = before, after
    link(block)


def link(block: SegmentBlock) -> None:
    """Let the neighbours know the block."""
    if block.before is not None:
        block.before.after = block
    if block.after is not None:
        block.after.before = block
