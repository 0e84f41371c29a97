"""The table of tips for a terminal (rich), wide or narrow, and the timelines of one tip before and after."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory import Effect
from ..memory.render.bars import draw, of_track
from .measure import Failed, Measured
from .tip import Tip
from .verdict import Row, Verdict, result_words, time_words, verdict

NARROW = 92
"""On terminals with fewer columns, the numbers of a case are listed one below the other."""
STYLES = {
    "saves": "green",
    "saves only when": "green",
    "improves accuracy": "cyan",
    "saves, but not at the peak": "yellow",
    "costs": "yellow",
    "myth": "red",
    "out of memory": "red",
    "does not apply": "dim",
}


def table(rows: Sequence[Row], width: int) -> Table:
    """One row for each case, with the verdict below the tip's name."""
    found = Table(box=HORIZONTALS, expand=False, pad_edge=False, show_lines=True)
    found.add_column("tip, verdict", overflow="fold", min_width=18)
    if width < NARROW:
        found.add_column("what changes, bytes", overflow="fold")
    else:
        for name in ("peak", "saved", "temporary"):
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
    effects = result.comparison.effects
    last = f"{time_words(result)}, {result_words(result)}"
    if not result.exact:
        peak = result.predicted.peak.change
        last += f", predicted {peak:+,}" if peak != effects["peak"].change else ", predicted otherwise at some event"
    if not narrow:
        return [*(Text(f"{each.change:+,}\n{_share(each)}") for each in effects.values()), Text(last.replace(", ", "\n", 1))]
    lines = [f"{name} {each.change:+,} {_share(each)}" for name, each in effects.items()]
    return [Text("\n".join([*lines, f"time {last}"]))]


def _share(effect: Effect) -> str:
    return f"{effect.change / effect.before:+.1%}" if effect.before else "was 0" if effect.change else "+0.0%"


def timelines(result: Measured, console: Console) -> None:
    """Both runs' bytes in use over events, on one scale: side by side, or one above the other on narrow terminals."""
    runs = (("before", result.before.track), ("after", result.after.track))
    draw([of_track(track, f"{name}: {track.peak:,} bytes in {track.at_peak().phase}") for name, track in runs], console)
