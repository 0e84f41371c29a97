"""Bytes over a run for a terminal (rich): stacked bars, side by side or, where the terminal is narrow, one above the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...errors import needs

needs("rich", "a picture in a terminal")
from rich.console import Console  # noqa: E402 (first the sentence that says how to get it)
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

from ..attribution import Category  # noqa: E402
from ..record import Record  # noqa: E402
from ..sizes import bytes_text  # noqa: E402
from .palette import COLOURS  # noqa: E402

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SIDE_BY_SIDE = 80  # columns that a terminal needs for two pictures side by side


@dataclass(frozen=True)
class Bars:
    """One picture."""

    title: str  # the line above it
    layers: Mapping[str, np.ndarray]  # name -> bytes after each event, int64, all of one length; the first is the lowest
    colours: Mapping[str, str]  # by the same names

    @property
    def total(self) -> np.ndarray:
        """The bytes of all layers after each event."""
        return np.sum([*self.layers.values()], axis=0) if self.layers else np.zeros(0, np.int64)


def of_track(track: Record, title: str) -> Bars:
    """The bytes in use of a track, a layer for each category."""
    line = track.timeline()
    kinds = line.categories
    return Bars(title, {kind.value: line.bytes(kind) for kind in kinds}, {kind.value: COLOURS[kind] for kind in kinds})


def draw(bars: Sequence[Bars], console: Console, height: int = 8) -> None:
    """Print pictures on one scale, and below them a legend of the colours."""
    side_by_side = console.width >= _SIDE_BY_SIDE
    width = (console.width - 28) // 2 if side_by_side else console.width - 13
    top = max([1, *(int(each.total.max(initial=0)) for each in bars)])
    drawn = [_picture(each, width, height, top) for each in bars]
    if side_by_side:
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*drawn)
        console.print(grid)
    else:
        for each in drawn:
            console.print(each)
    console.print(_legend({name: colour for each in bars for name, colour in each.colours.items()}, console.width))
    console.print()


def _legend(colours: Mapping[str, str], width: int) -> Text:
    """The name of each colour. A line ends between two names: rich would break it within one, at no-break spaces too."""
    order = {kind.value: number for number, kind in enumerate(Category)}
    text, column = Text(), 0
    for name in sorted(colours, key=lambda name: order.get(name, len(order))):
        gap = "" if not column else "   " if column + 5 + len(name) <= width else "\n"
        column = 2 + len(name) + (column + len(gap) if gap != "\n" else 0)
        text.append(gap).append("█ ", colours[name]).append(name)
    return text


def _picture(bars: Bars, width: int, height: int, top: int) -> Text:
    """A bar for each stretch of events: its most bytes, coloured by layer; where nothing happened, the title alone."""
    text = Text(f"{bars.title}\n", "bold", no_wrap=True)
    used = bars.total
    if not used.size:
        return text
    edges = np.linspace(0, len(used), width + 1).astype(int)
    most = [(a + int(np.argmax(used[a:b]))) if b > a else min(a, len(used) - 1) for a, b in pairwise(edges.tolist())]
    columns = np.array([layer[most] for layer in bars.layers.values()])  # layers, width
    colours = [bars.colours[name] for name in bars.layers]
    for row in range(height - 1, -1, -1):
        label = f"{bytes_text(top):>10} " if row == height - 1 else f"{'0':>10} " if row == 0 else " " * 11
        text.append(label, "not bold dim")
        for column in range(width):
            text.append(*_cell(columns[:, column] / top * height, row, colours))
        text.append("\n")
    return text


def _cell(heights: np.ndarray, row: int, colours: Sequence[str]) -> tuple[str, str]:
    """One character of a stacked bar, in the colour of the layer that fills most of it."""
    tops = np.cumsum(heights)
    full = min(max(tops[-1] - row, 0.0), 1.0)
    inside = np.clip(tops, row, row + 1) - np.clip(tops - heights, row, row + 1)
    return _BLOCKS[round(full * 8)], f"not bold {colours[int(np.argmax(inside))]}"
