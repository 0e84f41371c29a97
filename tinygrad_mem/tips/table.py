"""The table of tips for a terminal (rich), wide or narrow, and the timelines of one tip before and after."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory import Category, Effect, Track
from ..memory.render.palette import COLOURS
from ..memory.sizes import bytes_text
from .measure import Failed, Measured
from .tip import Tip
from .verdict import Row, Verdict, result_words, verdict

NARROW = 92
"""Columns of a terminal below which the numbers stand one above the other."""
STYLES = {
    "saves": "green",
    "saves only when": "green",
    "improves accuracy": "cyan",
    "moves the peak elsewhere": "yellow",
    "costs": "yellow",
    "myth": "red",
    "out of memory": "red",
    "does not apply": "dim",
}
_BLOCKS = " ▁▂▃▄▅▆▇█"


def table(rows: Sequence[Row], width: int) -> Table:
    """A row a case; the verdict stands under the tip's name."""
    found = Table(box=HORIZONTALS, expand=False, pad_edge=False, show_lines=True)
    found.add_column("tip, verdict", overflow="fold", min_width=18)
    if width < NARROW:
        found.add_column("what changes, bytes", overflow="fold")
    else:
        for name in ("peak", "saved", "transient"):
            found.add_column(f"{name}, bytes", justify="right", no_wrap=True)
        found.add_column("time, result", overflow="fold", min_width=13)
    for tip, results in rows:
        judged = verdict(results)
        for number, result in enumerate(results):
            found.add_row(_name(tip, result, judged if number == 0 else None), *_cells(result, width < NARROW))
    return found


def _name(tip: Tip, result: Measured | Failed, judged: Verdict | None) -> Text:
    text = Text(tip.name, "bold") if judged else Text(f"{tip.name}", "dim")
    if result.when:
        text.append(f", {result.when}", "not bold dim")
    if judged is not None:
        text.append(f"\n{judged.text}", f"not bold {STYLES[judged.kind]}")
    return text


def _cells(result: Measured | Failed, narrow: bool) -> list[Text]:
    if isinstance(result, Failed):
        said = Text(f"{result.kind}: {result.message.partition(': ')[2].partition(';')[0]}", STYLES[result.kind])
        return [said] if narrow else [Text(result.kind, STYLES[result.kind]), Text(), Text(), Text()]
    effects = (result.comparison.peak, result.comparison.saved, result.comparison.transient)
    last = f"x{result.time:.2f}, {result_words(result)}"
    if not result.exact:
        peak = result.predicted.peak.change
        last += f", predicted {peak:+,}" if peak != effects[0].change else ", predicted otherwise at some event"
    if not narrow:
        return [*(Text(f"{effect.change:+,}\n{_share(effect)}") for effect in effects), Text(last.replace(", ", "\n", 1))]
    lines = [f"{name} {effect.change:+,} {_share(effect)}" for name, effect in zip(_NAMES, effects, strict=True)]
    return [Text("\n".join([*lines, f"time {last}"]))]


_NAMES = ("peak", "saved", "transient")


def _share(effect: Effect) -> str:
    return f"{effect.change / effect.before:+.1%}" if effect.before else "was 0" if effect.change else "+0.0%"


def timelines(result: Measured, console: Console, height: int = 8) -> None:
    """Both runs' bytes in use, event by event, on one scale: beside each other, or one above the other where it is narrow."""
    side_by_side = console.width >= 80
    width = (console.width - 28) // 2 if side_by_side else console.width - 13
    top = max(result.before.track.peak, result.after.track.peak, 1)
    drawn = [
        _timeline(title, run.track, width, height, top) for title, run in (("before", result.before), ("after", result.after))
    ]
    if side_by_side:
        grid = Table.grid(padding=(0, 2))
        grid.add_row(*drawn)
        console.print(grid)
    else:
        for each in drawn:
            console.print(each)
    seen = {category for run in (result.before, result.after) for category in run.track.timeline().categories}
    named = [Text.assemble(("█ ", COLOURS[each]), each.value) for each in Category if each in seen]
    console.print(Text("   ").join(named))
    console.print()


def _timeline(title: str, track: Track, width: int, height: int, top: int) -> Text:
    """Columns of eighths of a character, the highest bytes of each stretch, in the colour of what there was most of."""
    line = track.timeline()
    edges = np.linspace(0, len(line), width + 1).astype(int)
    most = [(a + int(np.argmax(line.used[a:b]))) if b > a else min(a, len(line) - 1) for a, b in pairwise(edges.tolist())]
    kinds = line.categories
    columns = np.array([line.bytes(kind)[most] for kind in kinds])  # categories, width
    text = Text(f"{title}: peak {track.peak:,} bytes in {track.at_peak().phase}\n", "bold", no_wrap=True)
    for row in range(height - 1, -1, -1):
        label = f"{bytes_text(top):>10} " if row == height - 1 else f"{'0':>10} " if row == 0 else " " * 11
        text.append(label, "not bold dim")
        for column in range(width):
            text.append(*_cell(columns[:, column] / top * height, row, kinds))
        text.append("\n")
    return text


def _cell(heights: np.ndarray, row: int, kinds: Sequence) -> tuple[str, str]:
    """One character of a stacked column: how full it is, in the colour of the category that fills most of it."""
    tops = np.cumsum(heights)
    full = min(max(tops[-1] - row, 0.0), 1.0)
    inside = np.clip(tops, row, row + 1) - np.clip(tops - heights, row, row + 1)
    return _BLOCKS[round(full * 8)], f"not bold {COLOURS[kinds[int(np.argmax(inside))]]}"
