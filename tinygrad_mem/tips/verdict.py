"""Verdicts from measured numbers: whether a tip saves, when, and why. No tip is treated specially."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..memory import Category, Change
from ..memory.sizes import bytes_text
from ..text import visible
from .measure import Failed, Measured
from .tip import Tip

Row = tuple[Tip, list[Measured | Failed]]
"""A tip and its results."""
NOTICED = 0.02
"""A change below this share of the peak before does not count."""
ROUNDING = 1e-2
"""Relative distances below this are rounding: float32 sums in another order stay below it over a few steps."""


@dataclass(frozen=True)
class Verdict:
    """The result of a tip, in a few words.

    Attributes:
        kind: "saves", "saves only when", "saves, but not at the peak", "costs", "improves accuracy", "myth", "out of memory",
            "does not apply".
        text: the kind, and the cases that it holds for.
    """

    kind: str
    text: str


def verdict(results: Sequence[Measured | Failed]) -> Verdict:
    """The verdict on all cases of a tip together."""
    measured = [result for result in results if isinstance(result, Measured)]
    if not measured:
        kind = next(result.kind for result in results if isinstance(result, Failed))
        return Verdict(kind, kind)
    if any(result.errors for result in measured):
        return _of_numbers(measured)
    kinds = {result.when: kind_of(result) for result in measured}
    saving = [when for when, kind in kinds.items() if kind == "saves"]
    if len(saving) == len(kinds):
        return Verdict("saves", "saves")
    if saving:
        return Verdict("saves only when", f"saves only when: {' or '.join(saving)}")
    kind = Counter(kinds.values()).most_common(1)[0][0]
    return Verdict(kind, kind)


def biggest(rows: Sequence[Row], count: int) -> list[Row]:
    """The ``count`` tips whose best case lowers the peak most, as a share of it; the first lowers it most."""
    return sorted(rows, key=lambda row: min((_share(result) for result in row[1]), default=0.0))[:count]


def _share(result: Measured | Failed) -> float:
    """The change of the peak, as a share of the peak before."""
    if isinstance(result, Failed):
        return 0.0
    peak = result.comparison.peak
    return peak.change / max(peak.before, 1)


def kind_of(found: Measured) -> str:
    """The kind of one case: the peak falls, only something else falls, nothing changes, or the peak grows."""
    effects = found.comparison
    least = NOTICED * max(effects.peak.before, 1)
    if effects.peak.change <= -least:
        return "saves"
    if effects.saved.change <= -least or effects.temporary.change <= -least:
        return "saves, but not at the peak"
    return "costs" if effects.peak.change >= least else "myth"


def _of_numbers(measured: Sequence[Measured]) -> Verdict:
    """The verdict on a tip that promises better numbers, from their distance to the ideal ones."""
    better = [r for r in measured if r.errors is not None and r.errors[1] < r.errors[0] / 2]
    if len(better) == len(measured):
        return Verdict("improves accuracy", "improves accuracy")
    if better:
        return Verdict("improves accuracy", f"improves accuracy only when: {' or '.join(r.when for r in better)}")
    return Verdict("myth", "myth")


def time_words(found: Measured) -> str:
    """The time after, relative to before."""
    return "not measured" if found.time is None else f"x{found.time:.2f}"


def result_words(found: Measured) -> str:
    """The changes of the results, and the accuracy on digits; of several ranks, that nothing ran."""
    if found.ranks > 1:
        return f"predicted, rank 0 of {found.ranks}"
    if found.accuracies is None:
        return _difference_text(found)
    before, after = found.accuracies
    return f"{_difference_text(found)}; digits {before:.1%} to {after:.1%}"


def _difference_text(found: Measured) -> str:
    if found.distance is None:
        return "another model"
    if found.distance == 0:
        return "bit-identical"
    return f"within {found.distance:.0e}" if found.distance <= ROUNDING else f"differs {min(found.distance, 1):.0%}"


def reason(found: Measured) -> str:
    """One sentence of explanation: which categories differ between the two peaks, which owner changed most, and in which phase
    the peak is."""
    effects = found.comparison
    changes = [*effects.appeared, *effects.vanished, *effects.moved]
    totals = _totals(changes)
    parts = []
    if totals:
        shown = ", ".join(f"{category.value} {_signed_bytes(size)}" for category, size in totals[:3])
        parts.append(f"At the peak: {shown}" + (", and smaller changes" if len(totals) > 3 else ""))
        along = [change for change in changes if change.bytes * effects.peak.change > 0] or changes
        largest = max(along, key=lambda change: abs(change.bytes))
        parts.append(f"the largest change is {visible(largest.owner)} ({_signed_bytes(largest.bytes)})")
    elif changes:
        held = sum(max(change.bytes, 0) for change in changes)
        parts.append(f"At the peak each category has the same bytes, {bytes_text(held)} of them with another owner")
    else:
        parts.append("Both peaks consist of the same blocks")
    for name, effect in (("saved", effects.saved), ("temporary", effects.temporary)):
        if effect.change and not _follows(effect.change, effects.peak.change):
            parts.append(f"the peak of {name} bytes alone changes by {_signed_bytes(effect.change)}")
    before, after = effects.phase
    parts.append(f"the peak stays in {after}" if before == after else f"the peak was in {before} and is in {after}")
    if found.reserved.change and not effects.peak.change:
        parts.append(f"at the end the pool has {_signed_bytes(found.reserved.change)} reserved but unused")
    return "; ".join(parts) + "."


def _totals(changes: Sequence[Change]) -> list[tuple[Category, int]]:
    """The categories whose bytes differ between the peaks, largest change first."""
    totals: Counter[Category] = Counter()
    for change in changes:
        totals.update(change.after)
        totals.subtract(change.before)
    return sorted(((category, size) for category, size in totals.items() if size), key=lambda pair: -abs(pair[1]))


def _follows(change: int, peak: int) -> bool:
    return (change < 0) == (peak < 0) and abs(change) <= 2 * abs(peak)


def _signed_bytes(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{bytes_text(abs(size))}"


_COUNTED = {  # of one tip, and of several
    "saves": ("saves", "save"),
    "saves only when": ("saves only in some cases", "save only in some cases"),
    "saves, but not at the peak": ("saves, but not at the peak", "save, but not at the peak"),
    "costs": ("costs memory", "cost memory"),
    "improves accuracy": ("improves accuracy", "improve accuracy"),
    "myth": ("is a myth", "are myths"),
    "out of memory": ("runs out of memory", "run out of memory"),
    "does not apply": ("does not apply", "do not apply"),
}


def summary(rows: Sequence[Row]) -> str:
    """The number of tips of each verdict, and whether the predictions were right to the byte."""
    kinds = Counter(verdict(results).kind for _, results in rows)
    counts = ", ".join(f"{count} {_COUNTED[kind][count != 1]}" for kind, count in kinds.most_common())
    both = [result for _, results in rows for result in results if isinstance(result, Measured)]
    measured = [result for result in both if result.ranks == 1]
    wrong = sum(not result.exact for result in measured)
    said = f"Bytes are exact: all {2 * len(measured)} runs are as predicted, to the byte"
    if wrong:
        said = f"{wrong} of {len(measured)} pairs differ from their prediction, which is a defect: please report it"
    parts = [f"{len(rows)} tip{'s' * (len(rows) != 1)}: {counts}."]
    parts += [f"{said}."] if measured else []
    parts += ["Tips about several ranks were predicted, not run."] if len(both) > len(measured) else []
    return " ".join(parts)
