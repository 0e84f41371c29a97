"""The front of a plan as a table (rich) and as a picture (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import needs
from ..memory.render.palette import LINES
from ..memory.render.picture import drawing
from ..memory.sizes import bytes_text, unit_of
from .runs import Point

MARKERS = "osD^vP*X<>"
_WIDE = 90  # columns that have room for both forms of a size


def table(front: list[Point], chosen: Point, plain: Point, width: int) -> str:
    """One row for each choice, from the fastest to the smallest. In a narrow table the peaks are bytes alone."""
    needs("rich", "a table")
    from rich.table import Table
    from rich.text import Text

    from ..memory.render.terminal import text

    points = front if chosen in front else [*front, chosen]
    short = [""] if width >= _WIDE else []
    offloaded, sends = any(point.host for point in points), any(point.sent for point in points)
    shown = Table(title=Text("memory against time"), title_justify="left", title_style="bold")
    shown.add_column("", no_wrap=True)
    for name in ("peak, bytes", *short, "reserved", "time", *["on the host"] * offloaded, *["sent"] * sends):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("techniques", overflow="fold")
    for point in sorted(points, key=lambda p: (p.time, -p.peak)):
        mark = "→" if point.choice == chosen.choice else ""
        time = f"{point.time / plain.time:.2f}"
        sizes = [f"{point.peak:,}", *[bytes_text(point.peak) for _ in short], bytes_text(point.reserved)]
        host = [bytes_text(point.host) if point.host else ""] if offloaded else []
        sent = [bytes_text(point.sent)] if sends else []
        shown.add_row(mark, *sizes, time, *host, *sent, Text(str(point.choice)))
    return text(shown, width)


def plot(front: list[Point], chosen: Point, plain: Point, budget: int | None, path: Path | str) -> None:
    """Peak against time, a step for each choice, the budget as a line."""
    front = sorted({*front, plain}, key=lambda p: (p.time, -p.peak))
    unit, size = unit_of(max(plain.peak, 1 << 20))
    times = [point.time / plain.time for point in front]
    peaks = [point.peak / size for point in front]
    with drawing(path, 8, 4.2) as figure:
        axes = figure.subplots()
        axes.plot(times, peaks, drawstyle="steps-post", color=LINES[0], linewidth=1.6)
        shown = front if chosen in front else [*front, chosen]  # off the front where those below it reserve more
        _name(axes, [(point.time / plain.time, point.peak / size, point.choice.names) for point in shown])
        axes.plot(chosen.time / plain.time, chosen.peak / size, "o", color=LINES[1], markersize=9, label="the plan")
        if budget is not None:
            axes.axhline(budget / size, color="#555555", linestyle="--", linewidth=1)
            axes.annotate(
                f"budget {bytes_text(budget)}",
                (1, budget / size),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 4),
                textcoords="offset points",
                ha="right",
                color="#555555",
            )
        axes.set(xlabel="time of a step, plain = 1", ylabel=f"peak, {unit}", ylim=(0, max(peaks) * 1.12))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper right", fontsize=7)


def _name(axes: Any, points: list[tuple[float, float, tuple[str, ...]]]) -> None:
    """Draw a mark for each point, and name its set of techniques in the legend."""
    sets = dict.fromkeys(names for _, _, names in points)
    for i, names in enumerate(sets):
        times, peaks = zip(*[(time, peak) for time, peak, mine in points if mine == names], strict=True)
        label = ", ".join(names) or "plain"
        axes.plot(times, peaks, MARKERS[i % len(MARKERS)], color=LINES[i % len(LINES)], markersize=5, label=label, zorder=3)
