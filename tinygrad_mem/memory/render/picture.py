"""Static pictures (matplotlib): the pool's bytes over a run, stacked by category."""

from __future__ import annotations

from pathlib import Path

from ..attribution import Category
from ..timeline import Moment
from .terminal import bytes_text

# Okabe and Ito's palette: told apart by every kind of colour vision, and in grey by their lightness
COLOURS = {
    Category.PARAMETER: "#0072B2",
    Category.MASTER_WEIGHT: "#003B5C",
    Category.BUFFER: "#999999",
    Category.OPTIMIZER_STATE: "#56B4E9",
    Category.GRADIENT: "#D55E00",
    Category.INPUT: "#000000",
    Category.ACTIVATION: "#009E73",
    Category.WORKSPACE: "#CC79A7",
    Category.TEMPORARY: "#F0E442",
    Category.UNTRACKED: "#CCCCCC",
    Category.UNCOUNTED: "#E69F00",
}


def plot(timeline: list[Moment], path: Path | str, *, title: str) -> None:
    """Write the timeline to ``path`` (png, svg or pdf by its ending), with phases named and the peak marked.

    Raises:
        ValueError: the timeline is empty, or the ending is not a picture's.
    """
    if not timeline:
        raise ValueError("plot: the timeline is empty: nothing was allocated while the track was running")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [c for c in Category if any(c in m.by_category for m in timeline)]
    unit, size = ("MiB", 1 << 20) if max(m.used for m in timeline) >= 1 << 20 else ("KiB", 1 << 10)
    figure, axes = pyplot.subplots(figsize=(9, 4.2), dpi=150, layout="constrained")
    x = range(len(timeline))
    rows = [[m.by_category.get(c, 0) / size for m in timeline] for c in shown]
    axes.stackplot(x, rows, labels=[c.value for c in shown], colors=[COLOURS[c] for c in shown], step="post", linewidth=0)
    _name_phases(axes, timeline)
    top = max(range(len(timeline)), key=lambda i: timeline[i].used)
    axes.annotate(
        f"peak {bytes_text(timeline[top].used)}",
        (top, timeline[top].used / size),
        xytext=(0, 14),
        textcoords="offset points",
        ha="center",
        arrowprops={"arrowstyle": "-"},
    )
    axes.set(title=title, xlabel="allocations and frees, in order", ylabel=unit, xlim=(0, len(timeline) - 1))
    axes.set_ylim(0, max(m.used for m in timeline) / size * 1.22)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def _name_phases(axes, timeline: list[Moment]) -> None:
    """A thin line where the phase changes and its name above the curve, where there is room for it."""
    start = 0
    for i in range(1, len(timeline) + 1):
        if i < len(timeline) and timeline[i].phase == timeline[start].phase:
            continue
        if start:
            axes.axvline(start, color="black", linewidth=0.6, alpha=0.4)
        if i - start > len(timeline) * 0.06:
            axes.text(
                (start + i) / 2, 0.985, timeline[start].phase, transform=axes.get_xaxis_transform(), ha="center", va="top"
            )
        start = i
