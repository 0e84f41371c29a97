"""The table of :func:`.advise` for a terminal (rich)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import needs
from ..memory.sizes import bytes_text

if TYPE_CHECKING:
    from .advise import Advice, Advised


def table(advice: Advice, width: int = 128) -> str:
    """Bytes and costs of each change; below, the lines to write and what does not apply."""
    needs("rich", "a table")
    from rich.table import Table
    from rich.text import Text

    from ..memory.render.terminal import text

    card = "" if advice.capacity is None else f", on a card with {bytes_text(advice.capacity)}"
    shown = Table(title=Text(f"what would help{card}"), title_justify="left", title_style="bold")
    shown.add_column("change", overflow="fold", ratio=3)
    for name in ("peak", "saved", "reserved", "saved"):
        shown.add_column(name, justify="right", no_wrap=True)
    if advice.capacity is not None:
        shown.add_column("fits", no_wrap=True)
    shown.add_column("cost", overflow="fold", ratio=4)
    groups = ([advice.plain], advice.rows, advice.together, advice.batch)
    for group in groups:
        for row in group:
            shown.add_row(*(Text(cell) for cell in _cells(row, advice.capacity is not None)))
        if group:
            shown.add_section()
    return text(shown, width) + _below(advice)


def _cells(row: Advised, card: bool) -> list[str]:
    if row.refused:
        return [row.name, "", "", "", "", *([""] if card else []), row.refused]
    saved = [bytes_text(row.saved), bytes_text(row.saved_reserved)] if row.names else ["", ""]
    fits = [{True: "yes", False: "no", None: ""}[row.fits]] if card else []
    cost = "; ".join(filter(None, [row.cost, "" if row.numbers == "the same" else f"numbers: {row.numbers}"]))
    return [row.name, bytes_text(row.peak), saved[0], bytes_text(row.peak_reserved), saved[1], *fits, cost]


def _below(advice: Advice) -> str:
    """The lines to write, once each, and the changes that were not tried."""
    lines = ["", "To write:"]
    for row in advice.rows:
        if row.saved > 0 or row.saved_reserved > 0:
            lines += [f"  {row.name}:", *(f"    {line}" for line in row.code.splitlines()), f"    {row.source[0]}"]
    if advice.refused:
        lines += ["", "Not tried, or not possible:"]
        lines += [f"  {row.name}: {row.refused}" for row in advice.refused]
    return "\n".join([*lines, *(f"Note: {note}" for note in advice.notes), ""])
