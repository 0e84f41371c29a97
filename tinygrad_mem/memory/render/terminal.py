"""Tables for the terminal (rich)."""

from __future__ import annotations

from rich.table import Table

from ..attribution import Category
from ..sizes import bytes_text as bytes_text
from ..timeline import Moment


def peak_table(moment: Moment, title: str) -> Table:
    """The bytes at one moment, a row a category, largest share first; the rows add up to the last line."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("category")
    table.add_column("bytes", justify="right")
    table.add_column("", justify="right")
    table.add_column("share", justify="right")
    for category, size in sorted(moment.by_category.items(), key=lambda item: -item[1]):
        table.add_row(Category(category).value, f"{size:,}", bytes_text(size), f"{size / moment.used:.1%}")
    table.add_section()
    table.add_row("in use at the peak", f"{moment.used:,}", bytes_text(moment.used), "100.0%", style="bold")
    return table
