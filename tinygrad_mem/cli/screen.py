"""The console and the tables of commands."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

NARROWEST = 60  # columns in which each table has its numbers whole


def screen(**options: Any) -> Console:
    """Rich's console, of 60 columns at least: in fewer, it would cut numbers. A narrower terminal wraps the lines itself."""
    made = Console(**options)
    made.width = max(made.width, NARROWEST)
    return made


def table(*columns: str, gap: int = 2) -> Table:
    """A table without edges: see :func:`with_columns`."""
    return with_columns(Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0)), *columns)


def with_columns(made: Table, *columns: str) -> Table:
    """Add columns to a table. Those whose names begin with ``>`` have numbers: at the right, never wrapped."""
    for name in columns:
        if name.startswith(">"):
            made.add_column(name[1:], justify="right", no_wrap=True)
        else:
            made.add_column(name, overflow="fold")
    return made
