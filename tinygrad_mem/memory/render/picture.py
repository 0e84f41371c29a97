"""Static pictures (matplotlib): the pool's bytes over a run, stacked by category, and who had them at the peak."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sizes import bytes_text
from ..timeline import Timeline
from . import needs
from .palette import COLOURS, phases

if TYPE_CHECKING:
    from ..track import Track

POINTS = 3000  # moments that are drawn: more than there are dots across the picture
OWNERS = 3  # named at the peak
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))


def plot(track: Track, path: Path | str, *, title: str = "") -> None:
    """Write the track's timeline to ``path`` (png, svg or pdf by its ending): stacked by category, phases shaded and named,
    the peak marked with the modules that had most bytes then.

    Raises:
        ValueError: nothing was allocated while the track ran, or the ending is not a picture's.
    """
    timeline = track.timeline()
    if not len(timeline):
        raise ValueError("plot: the timeline is empty: nothing was allocated while the track was running")
    needs("matplotlib", "report")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    at = timeline.sample(POINTS)
    top = timeline.peak()
    unit, size = next((name, size) for name, size in _UNITS if timeline.used[top] >= size or size == 1)
    figure, axes = pyplot.subplots(figsize=(9, 4.4), dpi=150, layout="constrained")
    shown = timeline.categories
    axes.stackplot(
        at,
        [timeline.bytes(c)[at] / size for c in shown],
        labels=[c.value for c in shown],
        colors=[COLOURS[c] for c in shown],
        step="post",
        linewidth=0,
    )
    height = timeline.used[top] / size
    axes.set(
        xlabel="allocations and frees, in order", ylabel=unit, xlim=(0, max(len(timeline) - 1, 1)), ylim=(0, height * 1.42)
    )
    axes.set_title(title, loc="left", fontweight="bold")
    _shade_phases(axes, timeline)
    _mark_peak(axes, track, top, height, len(timeline))
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def _mark_peak(axes: Any, track: Track, top: int, height: float, moments: int) -> None:
    """A line to the peak, its bytes, and the modules that had most of them."""
    moment = track.timeline()[top]
    owners = list(track.by_module(moment).items())[:OWNERS]
    lines = [f"peak {bytes_text(moment.used)}", *(f"{bytes_text(n)}  {name or 'no module'}" for name, n in owners)]
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


def _shade_phases(axes: Any, timeline: Timeline) -> None:
    """Every other phase on a grey ground; its name above the curve where there is room for it."""
    least = len(timeline) * 0.07
    for dark, (name, start, stop) in enumerate(phases(timeline, least / 7)):
        if dark % 2:
            axes.axvspan(start, stop, color="black", alpha=0.06, linewidth=0, zorder=0)
        if stop - start > least:
            middle = (start + stop) / 2
            axes.text(middle, 0.985, name, transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=9)
