"""Judged claims in a terminal (rich): the table, wide or narrow, and one claim in full."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory.render.bars import draw, of_track
from .claim import EXPLAINED, REFUTED, REPRODUCED, Extra, Figure, Judged

_NAME, _SAYS = 26, 30
"""The least columns of a terminal for a claim's name, and for what it says."""
STYLES = {REPRODUCED: "green", EXPLAINED: "yellow", REFUTED: "red"}


def found_text(judged: Judged) -> str:
    """The number that was found: a size in bytes, and in the figure's unit."""
    if judged.found is None:
        return f"not run: {' and '.join(judged.claim.missing)} needed"
    stated, value = judged.claim.stated, Fraction(judged.found.value)
    whole = f"{int(value):,} B, " if stated.in_bytes and not stated.exact else ""
    return f"{whole}{stated.shown(value)}"


def part_text(stated: Figure, part: Extra) -> str:
    """A part in words, with its size in the figure's unit."""
    sizes = [stated.shown(Fraction(size)) for size in (part.least, part.most)]
    return f"{part.what}: " + (sizes[0] if part.least == part.most else f"{sizes[0]} to {sizes[1]}")


def table(rows: Sequence[Judged], width: int) -> Table:
    """A row for each claim. No number is cut: on a narrow terminal, what a claim says is below its name, and the number that is
    found below the figure.
    """
    numbers = [[each.claim.stated.text, found_text(each).replace(", ", "\n")] for each in rows]
    heads = ["figure", "found"]
    columns = [[head, *(row[i] for row in numbers)] for i, head in enumerate(heads)]
    sizes = [max(map(len, "\n".join(column).split("\n"))) for column in columns]
    room = width - sum(sizes) - 3 * (len(sizes) + 1)  # a column has a space on each side, and one between it and the next
    if room < _NAME:
        numbers, heads, sizes = [["\n".join(pair)] for pair in numbers], ["figure, found"], [max(13, *sizes)]
    made = Table(box=HORIZONTALS, pad_edge=False, show_lines=True)
    made.add_column("claim, verdict", overflow="fold")
    if says := room >= _NAME + _SAYS:
        made.add_column("what it says", overflow="fold")
    for head, size in zip(heads, sizes, strict=True):
        made.add_column(head, justify="right", overflow="fold", min_width=min(size, width // 2))
    for each, cells in zip(rows, numbers, strict=True):
        name = Text(each.claim.name, "bold")
        if each.verdict is not None:
            name.append(f"\n{each.verdict.text}", f"not bold {STYLES[each.verdict.kind]}")
        first = [name, Text(each.claim.says)] if says else [name.append("\n").append(each.claim.says, "not bold default")]
        made.add_row(*first, *cells)
    return made


def details(judged: Judged, console: Console) -> None:
    """Print one claim in full: its source, its words, the figure found and how, and where the bytes of the run are."""
    claim, verdict = judged.claim, judged.verdict
    title = Text(f"{claim.name}: ", "bold")
    if verdict is not None:
        title.append(verdict.text, STYLES[verdict.kind])
    console.print(title)
    console.print(Text(f"{claim.says} Figure: {claim.stated.text}."))
    console.print(Text.assemble(("Source. ", "bold"), f"{claim.source.title}: {claim.source.link}"))
    console.print(Text.assemble(("Found. ", "bold"), f"{found_text(judged)}: {claim.how}."))
    for part in () if judged.found is None else judged.found.parts:
        console.print(Text.assemble(("Also included. ", "bold"), f"{part_text(claim.stated, part)}."))
    if claim.why:
        console.print(Text.assemble(("Why. ", "bold"), claim.why))
    track = None if judged.found is None else judged.found.track
    if track is not None:
        draw([of_track(track, f"the run: peak {track.peak:,} bytes in {track.at_peak().phase}")], console)
        console.print(Text(str(track.table())))
    console.print()
