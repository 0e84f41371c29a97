"""The console of commands whose tables have a fixed number of columns."""

from __future__ import annotations

from typing import Any

from rich.console import Console

NARROWEST = 60  # columns in which each table has its numbers whole


def screen(**options: Any) -> Console:
    """Rich's console, of 60 columns at least: in fewer, it would cut numbers. A narrower terminal wraps the lines itself."""
    made = Console(**options)
    made.width = max(made.width, NARROWEST)
    return made
