"""Tables for the terminal (rich)."""

from __future__ import annotations

import io
from collections.abc import Mapping

from . import needs

needs("rich", "cli")
from rich.console import Console  # noqa: E402 (first the sentence that says how to get it)
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from ..sizes import bytes_text  # noqa: E402
from ..timeline import Moment  # noqa: E402


def peak_table(moment: Moment, title: str) -> Table:
    """The bytes at one moment, a row a category, largest share first; the rows add up to the last line."""
    return bytes_table({category.value: size for category, size in moment.by_category.items()}, "category", title)


def bytes_table(sizes: Mapping[str, int], what: str, title: str, rows: int = 20) -> Table:
    """Sizes with their names, largest first; those beyond ``rows`` are one row, so that all add up to the last line."""
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column(what, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    total = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    shown, rest = largest[:rows], largest[rows:]
    if rest:
        shown.append((f"{len(rest):,} smaller ones", sum(size for _, size in rest)))
    for name, size in shown:
        table.add_row(Text(name or "(none)"), f"{size:,}", bytes_text(size), f"{size / total:.1%}" if total else "")
    table.add_section()
    table.add_row("in use", f"{total:,}", bytes_text(total), "100.0%" if total else "", style="bold")
    return table


def text(table: Table, width: int = 100) -> str:
    """The table as plain text."""
    written = io.StringIO()
    Console(file=written, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())
