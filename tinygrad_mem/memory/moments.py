"""Moments of a run, and the pool's numbers at a moment."""

from __future__ import annotations

from typing import NamedTuple

from .timeline import Moment


class Mark(NamedTuple):
    """A moment that the user named."""

    index: int
    time: int
    text: str


class PoolState(NamedTuple):
    """Bytes at one moment."""

    requested: int  # bytes that callers asked for, in all live blocks
    rounded: int  # the same, each block rounded up to 512
    used: int  # in use: ``rounded``, and on ``cuda`` blocks older than the track
    reserved: int  # reserved by the pool

    @property
    def fragmentation(self) -> float:
        """The share of reserved bytes that is unused."""
        return 1 - self.used / self.reserved if self.reserved else 0.0


When = int | Mark | Moment | str | None
"""A moment: an event number, a mark or its text, a ``Moment``, ``"peak"`` or ``"end"``; ``None`` is the peak."""
