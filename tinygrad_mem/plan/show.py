"""The front of a plan as a table (rich)."""

from __future__ import annotations

from ..errors import needs
from ..memory.sizes import bytes_text
from .runs import Point

_WIDE = 90  # columns that have room for both forms of a size


def table(front: list[Point], chosen: Point, plain: Point, width: int) -> str:
    """One row for each choice, from the fastest to the smallest. In a narrow table the peaks are bytes alone."""
    needs("rich", "a table")
    from rich.table import Table
    from rich.text import Text

    from ..memory.render.terminal import text

    shown = Table(title=Text("memory against time"), title_justify="left", title_style="bold")
    shown.add_column("", no_wrap=True)
    short = [""] if width >= _WIDE else []
    for name in ("peak, bytes", *short, "reserved", "time"):
        shown.add_column(name, justify="right", no_wrap=True)
    points = front if chosen in front else [*front, chosen]
    offloaded = any(point.host for point in points)
    if offloaded:
        shown.add_column("on the host", justify="right", no_wrap=True)
    sends = any(point.sent for point in points)
    if sends:
        shown.add_column("sent", justify="right", no_wrap=True)
    shown.add_column("techniques", overflow="fold")
    for point in sorted(points, key=lambda p: (p.time, -p.peak)):
        mark = "→" if point.choice == chosen.choice else ""
        time = f"{point.time / plain.time:.2f}"
        sizes = [f"{point.peak:,}", *[bytes_text(point.peak) for _ in short], bytes_text(point.reserved)]
        host = [bytes_text(point.host) if point.host else ""] if offloaded else []
        sent = [bytes_text(point.sent)] if sends else []
        shown.add_row(mark, *sizes, time, *host, *sent, Text(str(point.choice)))
    return text(shown, width)
