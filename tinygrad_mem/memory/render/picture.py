"""Static pictures (matplotlib): the pool's bytes over a run, stacked by category, and their owners at the peak."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import needs
from ...files import replacing
from ...interrupts import context
from ...text import visible
from ..attribution import Category
from ..record import Record
from ..sizes import bytes_text, unit_of
from ..timeline import Timeline
from .palette import COLOURS, name_of, phases, sample

POINTS = 3000  # drawn moments: more than the picture has columns of pixels
OWNERS = 3  # named at the peak


def plot(self: Record, path: Path | str, other: Record | None = None, *, title: str = "") -> None:
    """Write the timeline as a picture (png, svg or pdf by the ending of ``path``), stacked by category.

    Phases are shaded and named. The peak is marked, with the modules that had most bytes then.

    Args:
        other: a second run, drawn beside this one on the same scale, as before and after.
        title: by default what ran and where.

    Raises:
        ValueError: nothing was allocated while a track ran, or no picture format has the ending.
        ModuleNotFoundError: matplotlib is missing: ``pip install matplotlib``.
    """
    runs = [self] if other is None else [self, other]
    if not all(len(run.timeline()) for run in runs):
        raise ValueError("plot: the timeline is empty: nothing was allocated while the track was running")
    title, peak = title or name_of(self), max(run.peak for run in runs)
    unit, size = unit_of(peak)
    with drawing(path, 9 if other is None else 13, 4.4) as figure:
        (row,) = figure.subplots(1, len(runs), sharey=True, squeeze=False)
        for axes, run in zip(row, runs, strict=True):
            _draw(axes, run, size, letter=0.0105 if other is None else 0.0125)
        row[0].set(ylabel=unit, ylim=(0, peak / size * 1.42))
        if other is None:
            row[0].set_title(title, loc="left", fontweight="bold")
        else:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
            for axes, name in zip(row, ("before", "after"), strict=True):
                axes.set_title(name, loc="left")
        labelled = dict(pair[::-1] for axes in row for pair in zip(*axes.get_legend_handles_labels(), strict=True))
        order = [category.value for category in Category if category.value in labelled][::-1]
        handles = [labelled[name] for name in order]
        row[-1].legend(handles, order, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@context
def drawing(path: Path | str, width: float, height: float) -> Iterator[Any]:
    """A figure to draw on (sizes in inches). The end of the block writes it to ``path``, in the format of its ending or as png.

    Texts are shown unchanged: ``$`` begins no formula. A character that the font lacks is a box.

    Raises:
        ValueError: no picture format has the ending.
        OSError: the file cannot be written.
    """
    needs("matplotlib", "a picture")
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    place, ending = os.path.splitext(os.fspath(path))
    written = io.BytesIO()
    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(?s).*Glyph .* missing from")
        figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
        yield figure
        for text in figure.findobj(Text):
            text.set_text(visible(text.get_text(), keep="\n"))
        figure.savefig(written, format=ending[1:] or "png")
    with replacing(place + (ending or ".png")) as file:
        file.write(written.getbuffer())


def _draw(axes: Any, track: Record, size: int, letter: float) -> None:
    """Draw one run, in units of ``size`` bytes. ``letter``: the share of the width that a letter of a phase's name takes."""
    timeline = track.timeline()
    at, top, shown = sample(timeline, POINTS), timeline.peak(), timeline.categories
    axes.stackplot(
        at,
        [timeline.bytes(c)[at] / size for c in shown],
        labels=[c.value for c in shown],
        colors=[COLOURS[c] for c in shown],
        step="post",
        linewidth=0,
    )
    axes.set(xlabel="allocations and frees, in order", xlim=(0, max(len(timeline) - 1, 1)))
    _shade_phases(axes, timeline, len(timeline) * letter)
    _mark_peak(axes, track, top, timeline.used[top] / size, len(timeline))
    axes.spines[["top", "right"]].set_visible(False)


def _mark_peak(axes: Any, track: Record, top: int, height: float, moments: int) -> None:
    """Draw a line to the peak, its bytes, and the modules, or else the source lines, that had most of them."""
    moment = track.timeline()[top]
    sizes, unowned = track.by_module(moment), "no module"
    if not any(sizes):  # a recording that knows no modules
        sizes, unowned = track.by_line(moment), "no line"
    owners = list(sizes.items())[:OWNERS]
    lines = [f"peak {bytes_text(moment.used)}", *(f"{bytes_text(n)}  {visible(name) or unowned}" for name, n in owners)]
    right = top > moments * 0.6
    axes.annotate(
        "\n".join(lines),
        (top, height),
        xytext=(-10 if right else 10, 10),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom",
        fontsize=8,
        linespacing=1.25,
        arrowprops={"arrowstyle": "-", "linewidth": 0.8},
        bbox={"facecolor": "white", "edgecolor": "#888888", "linewidth": 0.5, "alpha": 0.9, "pad": 2.5},
    )
    axes.plot([top], [height], marker="o", markersize=4, color="black", clip_on=False)


def _shade_phases(axes: Any, timeline: Timeline, letter: float) -> None:
    """Shade every other phase in grey, with its name above the curve if there is room."""
    for dark, (name, start, stop) in enumerate(phases(timeline, len(timeline) * 0.01)):
        if dark % 2:
            axes.axvspan(start, stop, color="black", alpha=0.06, linewidth=0, zorder=0)
        if stop - start > letter * len(name):
            middle = (start + stop) / 2
            axes.text(middle, 0.985, name, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=9)
