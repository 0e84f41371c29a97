"""A comparison of two runs: the change of the peak, of the bytes saved for backward, and of temporaries."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ..text import visible
from .attribution import Category
from .record import Record
from .sizes import bytes_text


@dataclass(frozen=True)
class Effect:
    """A number of bytes before and after."""

    before: int
    after: int

    @property
    def change(self) -> int:
        """The difference in bytes; negative if the second has fewer."""
        return self.after - self.before

    def __str__(self) -> str:
        share = f", {self.change / self.before:+.1%}" if self.before else ""
        sign = "+" if self.change > 0 else ""
        return f"{bytes_text(self.before)} -> {bytes_text(self.after)} ({sign}{bytes_text(self.change)}{share})"


@dataclass(frozen=True)
class Change:
    """The bytes of one owner at the two peaks.

    Attributes:
        owner: a parameter's path, or module and op; see :attr:`Block.owner`.
        before, after: its bytes by category; empty if it had none.
    """

    owner: str
    before: dict[Category, int]
    after: dict[Category, int]

    @property
    def bytes(self) -> int:
        """The difference in bytes; negative if the second has fewer."""
        return sum(self.after.values()) - sum(self.before.values())


@dataclass(frozen=True)
class Comparison:
    """The differences between two runs.

    Attributes:
        peak: most bytes in use.
        saved: most bytes that were saved for backward at any moment (``ACTIVATION``).
        temporary: most bytes of temporaries and workspace at any moment. If a technique lowers one of these two and not the
            peak, it freed bytes that were not part of the peak.
        phase: the phases of the two peaks.
        appeared, vanished: owners that only the second or only the first peak has.
        moved: owners that both peaks have, with other bytes or categories.

    Each list has the largest change first.
    """

    peak: Effect
    saved: Effect
    temporary: Effect
    phase: tuple[str, str]
    appeared: list[Change]
    vanished: list[Change]
    moved: list[Change]

    @property
    def effects(self) -> dict[str, Effect]:
        """``peak``, ``saved`` and ``temporary`` by their names."""
        return {"peak": self.peak, "saved": self.saved, "temporary": self.temporary}

    def __str__(self) -> str:
        where = self.phase[0] if self.phase[0] == self.phase[1] else f"{self.phase[0]}, now {self.phase[1]}"
        lines = [f"peak       {self.peak} in {where}", f"saved      {self.saved}", f"temporary  {self.temporary}"]
        for title, changes in (("appeared", self.appeared), ("vanished", self.vanished), ("changed", self.moved)):
            for change in changes[:5]:
                kinds = [", ".join(sorted(side)) for side in (change.before, change.after)]
                what = kinds[1] or kinds[0] if title != "changed" or kinds[0] == kinds[1] else f"{kinds[0]} -> {kinds[1]}"
                lines.append(f"{title:9}  {bytes_text(change.bytes):>12}  {visible(change.owner)}  ({what})")
        return "\n".join(lines)

    def table(self, titles: tuple[str, str] = ("before", "after"), rows: int = 12) -> str:
        """A table to print: the three numbers of both runs, then the owners that changed most; the rest are one row.

        Raises:
            ModuleNotFoundError: rich is missing: ``pip install rich``.
        """
        from .render.terminal import comparison_table, text

        effects = (("peak", self.peak), ("saved for backward", self.saved), ("temporary", self.temporary))
        changes = sorted([*self.appeared, *self.vanished, *self.moved], key=lambda change: -abs(change.bytes))
        owners = [
            (f"{c.owner} ({', '.join(sorted({*c.before, *c.after}))})", sum(c.before.values()), sum(c.after.values()))
            for c in changes
        ]
        numbers = [(name, effect.before, effect.after) for name, effect in effects]
        return text(comparison_table(titles, numbers, owners, rows))


def compare(self: Record, other: Record) -> Comparison:
    """The differences between this run and ``other``."""
    before, after = _owners(self), _owners(other)
    changes = [Change(owner, before.get(owner, {}), after.get(owner, {})) for owner in {**before, **after}]
    changes = sorted((c for c in changes if c.before != c.after), key=lambda c: (-abs(c.bytes), c.owner))
    return Comparison(
        Effect(self.peak, other.peak),
        Effect(*(_most_bytes(t, Category.ACTIVATION) for t in (self, other))),
        Effect(*(_most_bytes(t, Category.TEMPORARY, Category.WORKSPACE) for t in (self, other))),
        (self.at_peak().phase, other.at_peak().phase),
        [c for c in changes if not c.before],
        [c for c in changes if not c.after],
        [c for c in changes if c.before and c.after],
    )


def _owners(track: Record) -> dict[str, dict[Category, int]]:
    """The bytes at the peak by owner and category."""
    found: dict[str, dict[Category, int]] = defaultdict(dict)
    for block in track.live("peak"):
        held = found[block.owner]
        held[block.category] = held.get(block.category, 0) + block.rounded
    return dict(found)


def _most_bytes(track: Record, *categories: Category) -> int:
    timeline = track.timeline()
    return int(np.sum([timeline.bytes(category) for category in categories], axis=0).max(initial=0))
