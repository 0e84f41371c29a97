"""The bytes in use over a run, by category, after every event that changed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
        time: their nanoseconds since the log began.
        used: bytes in use after each.
        phase: code of each one's phase; ``texts[code]`` is its name.
    """

    def __init__(self, log: Log, attribution: Attribution) -> None:
        changed = np.flatnonzero((attribution.before != attribution.after) & (attribution.size != 0))
        self.event = changed
        self.seen = len(attribution.block)  # of the log, when this was made
        self.texts = log.texts
        self.time, self.phase = log.column("time")[changed], log.column("phase")[changed]
        self._before, self._after = attribution.before[changed], attribution.after[changed]
        self._size = attribution.size[changed]
        none = len(CATEGORIES)
        delta = np.where(self._after < none, self._size, 0) - np.where(self._before < none, self._size, 0)
        self.used: np.ndarray = np.cumsum(delta)

    def bytes(self, category: Category) -> np.ndarray:
        """Bytes of one category after each event."""
        code = CATEGORIES.index(category)
        delta = np.where(self._after == code, self._size, 0)
        delta -= np.where(self._before == code, self._size, 0)
        return np.cumsum(delta, out=delta)

    @property
    def categories(self) -> list[Category]:
        """The categories that occur, in the order of :class:`Category`."""
        found = set(np.unique(self._after).tolist())
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
        totals = np.zeros(NOWHERE + 1, np.int64)
        np.add.at(totals, self._after[:end], self._size[:end])
        np.subtract.at(totals, self._before[:end], self._size[:end])
        return self._moment(end - 1, totals.tolist())

    def __iter__(self) -> Iterator[Moment]:
        totals = [0] * (NOWHERE + 1)
        for position, (before, after, size) in enumerate(zip(self._before, self._after, self._size.tolist(), strict=True)):
            totals[before] -= size
            totals[after] += size
            yield self._moment(position, totals)

    def _moment(self, position: int, totals: list[int]) -> Moment:
        return Moment(
            int(self.event[position]),
            int(self.used[position]),
            {category: size for category, size in zip(CATEGORIES, totals, strict=False) if size},
            self.texts[self.phase[position]],
            int(self.time[position]),
        )
