"""A published figure about memory, what is found in its place, and the verdict that follows from the two numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from importlib.util import find_spec
from math import floor, log10
from typing import Any

from ..errors import ArgumentError
from ..memory import Category, Track

__all__ = (
    "EXPLAINED", "REFUTED", "REPRODUCED", "RULES", "VERDICTS", "Claim", "Counted", "Extra", "Figure", "Judged", "Publication",
    "Ruling", "by_error", "examine", "judge", "summary",
)  # fmt: skip

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9, "TB": 10**12}
"""Units of bytes. A source that writes GB and means 2**30 bytes is quoted in GiB, and the record says so."""
OTHER_UNITS = {
    "bytes a parameter": Fraction(1),
    "bytes a number": Fraction(1),
    "bits a parameter": Fraction(1, 8),
    "parameters": Fraction(1),
    "million parameters": Fraction(10**6),
    "billion parameters": Fraction(10**9),
    "times": Fraction(1),
    "%": Fraction(1, 100),
    "rows": Fraction(1),
}
_FIGURE = re.compile(r"(about |at most |at least )?(\d[\d,]*(?:\.\d+)?) (.+)")


@dataclass(frozen=True)
class Publication:
    """The place where the figure was published.

    Attributes:
        title: with authors and year, or the number of a thread.
        link: its address.
    """

    title: str
    link: str


def paper(number: str, title: str) -> Publication:
    """A paper by its number on arXiv."""
    return Publication(title, f"https://arxiv.org/abs/{number}")


def thread(repository: str, number: int, kind: str = "issues") -> Publication:
    """A thread on GitHub; ``kind`` is "issues" or "pull"."""
    return Publication(f"{repository}#{number}", f"https://github.com/{repository}/{kind}/{number}")


@dataclass(frozen=True)
class Figure:
    """A figure as its source prints it: ``"31.4 GB"``, ``"about 6 GB"``, ``"at most 48 GB"``, ``"38,654,705,664 B"``.

    Attributes:
        text: as above. ``about``: the source says so; then the last digit that is not zero counts as the last one printed.
    """

    text: str

    @cached_property
    def _parts(self) -> tuple[str, str, str]:
        """(the word before the number or "", the number as printed, the unit)."""
        match = _FIGURE.fullmatch(self.text)
        if match is None or match[3] not in UNITS | OTHER_UNITS:
            units = ", ".join(UNITS | OTHER_UNITS)
            raise ArgumentError(f"{self.text!r} is not a figure: write it as 'about 6 GB', with one of the units {units}")
        return (match[1] or "").strip(), match[2].replace(",", ""), match[3]

    @property
    def unit(self) -> str:
        """The unit, as in the figure."""
        return self._parts[2]

    @property
    def _worth(self) -> Fraction:
        """The number of bytes (or of other things) in one unit."""
        return Fraction((UNITS | OTHER_UNITS)[self.unit])

    @property
    def in_bytes(self) -> bool:
        """True if the unit is one of bytes."""
        return self.unit in UNITS

    @property
    def value(self) -> Fraction:
        """The number in bytes, or in whatever its unit counts."""
        return Fraction(self._parts[1]) * self._worth

    @property
    def exact(self) -> bool:
        """True if the source names each byte, or each of what is counted."""
        return self.unit in ("B", "parameters", "rows") and not self._parts[0]

    def range(self) -> tuple[Fraction, Fraction | None]:
        """All numbers that the figure can mean: from the first up to, and without, the second. ``None``: there is no end.

        A number that is rounded, or cut off, after the last digit that is printed.
        """
        word, number, _ = self._parts
        if self.exact:
            return self.value, self.value + 1
        step = Fraction(1, 10 ** len(number.partition(".")[2]))
        if word == "about" and "." not in number:
            step = Fraction(10 ** (len(number) - len(number.rstrip("0"))))
        low, high = self.value - step * self._worth / 2, self.value + step * self._worth
        return Fraction(0) if word == "at most" else low, None if word == "at least" else high

    def shown(self, value: Fraction) -> str:
        """``value`` in the figure's unit, with two digits more than the figure has, and at least two that are not 0."""
        if self.exact:
            return f"{int(value):,} {self.unit}"
        size = value / self._worth
        small = 0 if not size else max(1 - floor(log10(abs(size))), 0)
        return f"{float(size):,.{max(len(self._parts[1].partition('.')[2]) + 2, small)}f} {self.unit}"


@dataclass(frozen=True)
class Extra:
    """Bytes that the figure has, and the bytes that are found have not, or the other way round (below 0).

    Attributes:
        what: in words.
        least, most: between these two. Equal: it is counted.
    """

    what: str
    least: int | Fraction
    most: int | Fraction


@dataclass(frozen=True)
class Counted:
    """The number that is found in place of the figure.

    Attributes:
        value: bytes, or whatever the figure's unit counts.
        parts: what the figure includes beside them.
        track: the run, if one track has the bytes.
    """

    value: int | Fraction
    parts: tuple[Extra, ...] = ()
    track: Track | None = None


def bytes_at(mark: str, track: Track, categories: Collection[Category]) -> int:
    """Bytes of these categories at a mark."""
    return sum(size for category, size in track.by_category(mark).items() if category in categories)


@dataclass(frozen=True)
class Claim:
    """One published figure.

    Attributes:
        name: on the command line.
        source: where it was published.
        says: what the figure is of, in our words.
        stated: the figure.
        how: how the bytes are found here.
        find: finds them.
        why: why figure and bytes differ, or, where they agree, what else the run shows; may be empty then.
        needs: modules that must be installed.
        seconds: about how long it takes on two cores; the fast ones run first.
    """

    name: str
    source: Publication
    says: str
    stated: Figure
    how: str
    find: Callable[[], Counted | int | Fraction]
    why: str = ""
    needs: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


REPRODUCED, EXPLAINED, REFUTED = VERDICTS = ("reproduced", "explained", "refuted")


RULES = (
    "Each verdict is computed from the published figure and the number that is found. Reproduced: the number, rounded or cut "
    "to the printed digits, is the figure, or it is within the bound that the figure gives. Explained: the number and parts "
    "that are named and bounded add up to the figure. Refuted: neither. The largest errors come first."
)
"""What the verdicts mean, for readers of a table."""


@dataclass(frozen=True)
class Ruling:
    """The verdict that follows from a claim's figure and from what was found.

    Attributes:
        kind: ``"reproduced"``, ``"explained"`` or ``"refuted"``.
        text: the same, and how exactly.
        off: how many times the figure is too large, or too small; 1 if it is reproduced.
    """

    kind: str
    text: str
    off: float


def judge(stated: Figure, found: Counted) -> Ruling:
    """Derive the verdict, by :data:`RULES`. If the source names each byte, a single byte refutes it."""
    low, high = stated.range()
    value = Fraction(found.value)
    if low <= value and (high is None or value < high):
        bound = stated.text.startswith("at ")
        whole = "to the byte" if stated.unit == "B" else "exactly"
        exactly = "within its bound" if bound else whole if stated.exact else "to its last digit"
        return Ruling(REPRODUCED, f"reproduced {exactly}", 1.0)
    off = float(max(value, stated.value) / min(value, stated.value)) if min(value, stated.value) > 0 else float("inf")
    digits = next(shown for bound, shown in ((1.001, 4), (1.1, 3), (10, 2), (float("inf"), 0)) if off <= bound)
    size = f"{off:,.{digits}f} times too {'large' if stated.value > value else 'small'}"
    least, most = (value + sum(getattr(part, end) for part in found.parts) for end in ("least", "most"))
    if found.parts and most >= low and (high is None or least < high):
        return Ruling(EXPLAINED, f"explained: {size} without the named parts", off)
    return Ruling(REFUTED, f"refuted: {size}", off)


@dataclass(frozen=True)
class Judged:
    """A claim after its run.

    Attributes:
        claim: the record.
        found: what was found; ``None`` if something that it needs is not installed.
        verdict: what follows; ``None`` as above.
    """

    claim: Claim
    found: Counted | None
    verdict: Ruling | None

    def data(self) -> dict[str, Any]:
        """As JSON."""
        claim, found, verdict = self.claim, self.found, self.verdict
        row: dict[str, Any] = {
            "claim": claim.name, "source": claim.source.title, "link": claim.source.link, "says": claim.says,
            "stated": claim.stated.text, "how": claim.how, "why": claim.why, "missing": claim.missing,
        }  # fmt: skip
        if found is not None and verdict is not None:
            parts = [{"what": part.what, "least": float(part.least), "most": float(part.most)} for part in found.parts]
            row |= {"found": float(found.value), "shown": claim.stated.shown(Fraction(found.value)), "beside": parts}
            row |= {"verdict": verdict.kind, "text": verdict.text, "off": None if verdict.off == float("inf") else verdict.off}
        return row


def examine(claim: Claim) -> Judged:
    """Find the bytes, and judge. Nothing is run if a module that the claim needs is not installed."""
    if claim.missing:
        return Judged(claim, None, None)
    found = claim.find()
    found = found if isinstance(found, Counted) else Counted(found)
    return Judged(claim, found, judge(claim.stated, found))


def by_error(judged: list[Judged]) -> list[Judged]:
    """Sort: refuted figures first, then explained ones, then reproduced ones; in each group the least exact figure first."""
    order = {kind: place for place, kind in enumerate((REFUTED, EXPLAINED, REPRODUCED))}
    return sorted(judged, key=lambda each: (order[each.verdict.kind], -each.verdict.off) if each.verdict else (len(order), 0.0))


def summary(judged: list[Judged]) -> str:
    """The number of each verdict, in a sentence."""
    numbers = [f"{sum(each.verdict is not None and each.verdict.kind == kind for each in judged)} {kind}" for kind in VERDICTS]
    left = sum(each.verdict is None for each in judged)
    return f"{len(judged)} figures: {', '.join(numbers)}" + (f", {left} not run." if left else ".")
