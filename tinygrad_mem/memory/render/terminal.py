"""Tables for the terminal (rich)."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import needs

needs("rich", "a table")
from rich.console import Console  # noqa: E402 (first the sentence that says how to get it)
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from ...text import PLAINLY, visible  # noqa: E402
from ..record import Record  # noqa: E402
from ..sizes import bytes_text  # noqa: E402
from ..timeline import Moment  # noqa: E402


def peak_table(moment: Moment, title: str) -> Table:
    """The bytes at one moment by category, largest first. The rows add up to the last line."""
    return bytes_table({category.value: size for category, size in moment.by_category.items()}, "category", title)


def bytes_table(sizes: Mapping[str, int], what: str, title: str, rows: int = 20) -> Table:
    """Sizes with their names, largest first. Those beyond ``rows`` are one row, so that all add up to the last line."""
    table = _empty(title, what, ("bytes", "", "share"))
    total = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    shown, rest = largest[:rows], largest[rows:]
    if rest:
        shown.append((f"{len(rest):,} smaller ones", sum(size for _, size in rest)))
    for name, size in shown:
        table.add_row(Text(visible(name) or "(none)"), f"{size:,}", bytes_text(size), f"{size / total:.1%}" if total else "")
    table.add_section()
    table.add_row("in use", f"{total:,}", bytes_text(total), "100.0%" if total else "", style="bold")
    return table


def marks_table(track: Record, title: str) -> Table:
    """One row for each mark: the bytes in use there, and the peak since the mark before."""
    table = _empty(title, "mark", ("in use", "peak until there", ""))
    line, start = track.timeline(), 0
    for mark in track.marks:
        end = int(np.searchsorted(line.event, mark.index))  # moments before the mark
        used = int(line.used[end - 1]) if end else 0
        most = int(line.used[start:end].max(initial=used))
        table.add_row(Text(visible(mark.text) or "(no text)"), f"{used:,}", f"{most:,}", bytes_text(most))
        start = end
    return table


def comparison_table(
    titles: tuple[str, str], numbers: Sequence[tuple[str, int, int]], owners: Sequence[tuple[str, int, int]], rows: int
) -> Table:
    """Names with their bytes before and after: first ``numbers``, then ``owners``. Owners beyond ``rows`` are one row."""
    table = _empty(f"{titles[0]} and {titles[1]}", "", (*titles, "change"))
    for name, before, after in numbers:
        table.add_row(name, f"{before:,}", f"{after:,}", f"{after - before:+,}", style="bold")
    table.add_section()
    shown, rest = list(owners[:rows]), owners[rows:]
    if rest:
        shown.append((f"{len(rest):,} smaller changes", sum(before for _, before, _ in rest), sum(after for *_, after in rest)))
    for name, before, after in shown:
        table.add_row(Text(visible(name)), f"{before:,}", f"{after:,}", f"{after - before:+,}")
    return table


def _empty(title: str, first: str, numbers: Sequence[str]) -> Table:
    """A table with a column of names and columns of numbers."""
    one_line = min(len(title), 80)  # rich would break the title of a narrow table
    table = Table(title=Text(visible(title)), title_justify="left", title_style="bold", min_width=one_line)
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(Text(visible(name)), justify="right", no_wrap=True)
    return table


def text(table: Table, width: int = 100) -> str:
    """The table as plain text, with characters that the standard output can show."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding, PLAINLY, newline="")
    Console(file=file, width=width, color_system=None).print(table)
    file.flush()
    return "\n".join(line.rstrip() for line in written.getvalue().decode(encoding).rstrip().split("\n"))
