"""A static picture (matplotlib) of several peaks, each a bar that is stacked by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from ..attribution import Category
from ..sizes import bytes_text, unit_of
from .palette import COLOURS
from .picture import drawing

_TITLE = 60  # characters of a line of the title
_LABELS = 40  # bars that get a label; of more, every second, third, ...
_BAR, _REST, _MOST = 0.34, 1.5, 14.0  # inches


def peaks(path: Path | str, labels: Sequence[str], used: Sequence[Mapping[Category, int]], title: str) -> None:
    """Draw the bytes ``used`` by category, a bar for each label, the first at the top.

    Raises: as ``AllRanks.plot``.
    """
    totals = [sum(sizes.values()) for sizes in used]
    if not any(totals):
        raise ValueError("plot: there is nothing to draw: no rank allocated anything")
    unit, size = unit_of(max(totals))
    count, step = len(used), -(-len(used) // _LABELS)
    shown = [category for category in Category if any(sizes.get(category) for sizes in used)]
    with drawing(path, 9, min(_BAR * count + _REST, _MOST)) as figure:
        axes = figure.subplots()
        left = [0.0] * count
        for category in shown:
            widths = [sizes.get(category, 0) / size for sizes in used]
            axes.barh(range(count), widths, left=left, height=0.8, color=COLOURS[category], label=category.value)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(range(0, count, step), labels[::step])
        for i in range(0, count, step):
            place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(bytes_text(totals[i]), (left[i], i), fontsize=8, **place)
        axes.set(xlabel=f"{unit} in use at the peak", xlim=(0, max(left) * 1.14), ylim=(count - 0.4, -0.6))
        axes.set_title("\n".join(wrap(title, _TITLE)), loc="left", fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside lower center", ncols=min(len(shown), 5), frameon=False)
