"""Moments of a run, and the pool's numbers at one."""

from __future__ import annotations

from typing import NamedTuple

from .timeline import Moment


class Mark(NamedTuple):
    """A moment that the user named."""

    index: int
    time: int
    text: str


class PoolState(NamedTuple):
    """Bytes at one moment.

    Attributes:
        requested: what callers asked for, in all live blocks.
        rounded: these, each rounded up to 512.
        used: what the pool counts as in use: ``rounded``, and on ``cuda`` blocks older than the track.
        reserved: what the pool has taken from the machine.
    """

    requested: int
    rounded: int
    used: int
    reserved: int

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that no block uses."""
        return 1 - self.used / self.reserved if self.reserved else 0.0


When = int | Mark | Moment | str | None
"""A moment: an event's number, a mark or its text, a ``Moment``, ``"peak"``, ``"end"``; ``None`` is the peak."""
