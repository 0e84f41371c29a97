"""Moments of a run, and the bytes in use during it, by category, after each event that changed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from .attribution import CATEGORIES, NOWHERE, Attribution, Category
from .log import Log


@dataclass(frozen=True)
class Moment:
    """The pool after one event: bytes by category, with the sum ``used``.

    Attributes:
        index: the event's number in the log.
        time: nanoseconds since the log began.
        phase: the phase of the thread that caused the event.
    """

    index: int
    used: int
    by_category: dict[Category, int]
    phase: str
    time: int = 0


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


class Timeline(Sequence[Moment]):
    """A moment for each event that changed a byte or a category. Use columns for many moments, and an index for one.

    Attributes:
        attribution: the changes of all events that the log had when the timeline was made.
        event: numbers of these events in the log.
        used: bytes in use after each of them.
    """

    def __init__(self, log: Log, attribution: Attribution) -> None:
        self._log, self.texts = log, log.texts
        self.attribution = attribution
        changed = (attribution.before != attribution.after) & (attribution.size != 0)
        self.event = np.flatnonzero(changed).astype(np.int32)
        before, after, size = self._changes()
        self.used = _sum(size, after != NOWHERE, before != NOWHERE)

    def _changes(self, end: int | None = None) -> list[np.ndarray]:
        """The category before, the category after, and the bytes, of each event or of the first ``end``."""
        _, *columns = self.attribution
        return [column[self.event[:end]] for column in columns]

    @cached_property
    def time(self) -> np.ndarray:
        """The time of each event, in nanoseconds since the log began."""
        return self._log.column("time")[self.event]

    @cached_property
    def phase(self) -> np.ndarray:
        """The code of each event's phase; ``texts[code]`` is its name."""
        return self._log.column("phase")[self.event]

    def bytes(self, category: Category) -> np.ndarray:
        """Bytes of one category after each event."""
        code = CATEGORIES.index(category)
        before, after, size = self._changes()
        return _sum(size, after == code, before == code)

    @property
    def categories(self) -> list[Category]:
        """The categories that occur, in the order of :class:`Category`."""
        found = set(np.unique(self._changes()[1]).tolist())
        return [category for code, category in enumerate(CATEGORIES) if code in found]

    def peak(self, since: int = 0) -> int:
        """The position of the first moment with most bytes in use, from event ``since`` on. ValueError: there is none."""
        start = int(np.searchsorted(self.event, since))
        if start == len(self.event):
            raise ValueError("peak: nothing was allocated or freed in that time, so it has no peak: choose a longer time")
        return start + int(np.argmax(self.used[start:]))

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(f"timeline: expected a moment below {len(self)}, found {position}")
        position %= len(self)
        before, after, size = self._changes(position + 1)
        totals = np.zeros(NOWHERE + 1, np.int64)
        np.add.at(totals, after, size)
        np.subtract.at(totals, before, size)
        event = self._log[int(self.event[position])]
        return self._moment(position, totals.tolist(), event.phase, event.time)

    def __iter__(self) -> Iterator[Moment]:
        totals = [0] * (NOWHERE + 1)
        columns = (column.tolist() for column in (*self._changes(), self.phase, self.time))
        for position, (before, after, size, phase, time) in enumerate(zip(*columns, strict=True)):
            totals[before] -= size
            totals[after] += size
            yield self._moment(position, totals, self.texts[phase], time)

    def _moment(self, position: int, totals: list[int], phase: str, time: int) -> Moment:
        found = {category: size for category, size in zip(CATEGORIES, totals, strict=False) if size}
        return Moment(int(self.event[position]), int(self.used[position]), found, phase, time)


def _sum(size: np.ndarray, comes: np.ndarray, goes: np.ndarray) -> np.ndarray:
    """Running sums of the bytes after each event: some events add their bytes, some subtract them. Overwrites ``size``."""
    size *= comes.astype(np.int8) - goes.astype(np.int8)
    return np.cumsum(size, out=size)
