"""The bytes in use over a run, by category, after every event that changed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np

from .attribution import CATEGORIES, NOWHERE, Attribution, Category
from .log import Log


@dataclass(frozen=True)
class Moment:
    """The pool after one event: bytes by category, which add up to ``used``.

    Attributes:
        index: the event's number in the log.
        time: nanoseconds since the log began.
        phase: of the thread that caused the event.
    """

    index: int
    used: int
    by_category: dict[Category, int]
    phase: str
    time: int = 0


class Timeline(Sequence[Moment]):
    """A moment for each event that changed a byte or its category. Columns are for many, moments for one.

    Attributes:
        event: numbers of these events in the log.
        used: bytes in use after each.
    """

    def __init__(self, log: Log, attribution: Attribution) -> None:
        self._log, self.texts = log, log.texts
        self._columns = attribution.before, attribution.after, attribution.size
        changed = (attribution.before != attribution.after) & (attribution.size != 0)
        self.event = np.flatnonzero(changed).astype(np.int32)
        self.seen = len(attribution.block)  # of the log, when this was made
        before, after, size = self._changes()
        none = len(CATEGORIES)
        size *= (after < none).astype(np.int8) - (before < none).astype(np.int8)
        self.used: np.ndarray = np.cumsum(size, out=size)

    def _changes(self, end: int | None = None) -> list[np.ndarray]:
        """Of each event, or of the first ``end``: the category before and after (as in ``Attribution``), and the bytes."""
        return [column[self.event[:end]] for column in self._columns]

    @cached_property
    def time(self) -> np.ndarray:
        """Nanoseconds of each event since the log began."""
        return self._log.column("time")[self.event]

    @cached_property
    def phase(self) -> np.ndarray:
        """Code of each event's phase; ``texts[code]`` is its name."""
        return self._log.column("phase")[self.event]

    def bytes(self, category: Category) -> np.ndarray:
        """Bytes of one category after each event."""
        code = CATEGORIES.index(category)
        before, after, size = self._changes()
        size *= (after == code).astype(np.int8) - (before == code).astype(np.int8)
        return np.cumsum(size, out=size)

    @property
    def categories(self) -> list[Category]:
        """The categories that occur, in the order of :class:`Category`."""
        found = set(np.unique(self._changes()[1]).tolist())
        return [category for code, category in enumerate(CATEGORIES) if code in found]

    def peak(self, since: int = 0) -> int:
        """The position here of the first moment with most bytes in use, of events from number ``since`` on.

        Raises:
            ValueError: there is none.
        """
        start = int(np.searchsorted(self.event, since))
        if start == len(self.event):
            raise ValueError("peak: nothing was allocated or freed in that time")
        return start + int(np.argmax(self.used[start:]))

    def sample(self, points: int) -> np.ndarray:
        """Positions of at most about ``points`` moments that show the same curve: each stretch's first, highest and lowest.

        The peak is among them.
        """
        if len(self) <= points:
            return np.arange(len(self))
        edges = np.linspace(0, len(self), max(points // 3, 1) + 1).astype(int)
        pairs = [(a, b) for a, b in pairwise(edges) if a < b]
        kept = [(a, a + int(np.argmax(self.used[a:b])), a + int(np.argmin(self.used[a:b]))) for a, b in pairs]
        return np.unique([*np.ravel(kept), len(self) - 1])

    def __len__(self) -> int:
        return len(self.event)

    @overload
    def __getitem__(self, position: int) -> Moment: ...
    @overload
    def __getitem__(self, position: slice) -> list[Moment]: ...
    def __getitem__(self, position: int | slice) -> Moment | list[Moment]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not -len(self) <= position < len(self):
            raise IndexError(f"timeline: moment {position} was asked for, there are {len(self)}")
        end = position % len(self) + 1
        before, after, size = self._changes(end)
        totals = np.zeros(NOWHERE + 1, np.int64)
        np.add.at(totals, after, size)
        np.subtract.at(totals, before, size)
        event = self._log[int(self.event[end - 1])]
        return self._moment(end - 1, totals.tolist(), event.phase, event.time)

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
