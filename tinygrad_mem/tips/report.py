"""The report: one self-contained HTML file. Its table sorts and filters; a click shows a tip's timelines."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ..files import replacing
from ..memory import Category, Change, Effect, Track
from ..memory.render.page import asset
from ..memory.render.palette import COLOURS, phases, sample
from ..memory.sizes import bytes_text
from .measure import Failed, Measured
from .tip import Case, Tip
from .verdict import Row, Verdict, reason, result_words, summary, time_words, verdict

OWNERS = 8  # rows of a comparison
POINTS = 120  # points of a timeline
WIDTH, HEIGHT = 1000, 200  # of a drawing, before it is stretched
_WIDTHS = 440, 270  # pixels of a timeline in a wide window, and in one of 400 pixels
_COLUMNS = (("tip", ""), ("peak", "n"), ("saved", "n"), ("transient", "n"), ("time", "n"), ("result", ""), ("verdict", ""))
_TONES = {"saves": "good", "saves only when": "good", "improves accuracy": "good", "myth": "bad", "out of memory": "bad"}


def write(rows: Sequence[Row], path: Path | str) -> None:
    """Write the page to ``path``, whole or not at all.

    Raises:
        OSError: it cannot be written there.
    """
    files = resources.files("tinygrad_mem.tips") / "assets"
    style, script = ((files / name).read_text("utf-8") for name in ("report.css", "report.js"))
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>Every tip, measured</title>
<style>{style}</style></head><body><main>
<h1 id="top">Every tip, measured</h1><p>{html.escape(summary(rows))}</p>
<p class="quiet">Peak: most bytes in use. Saved: most bytes kept for backward. Transient: most bytes of temporaries and
workspaces. Each is the highest at a moment of its own, so saved and transient need not add up to the peak. Times are ratios of
one step, measured on this machine in this run. A click on a tip shows its timelines.</p>
{_table(rows)} {"".join(_section(tip, results) for tip, results in rows)} </main>
<script>{asset("tables.js")}{script}</script></body></html>
"""
    with replacing(path) as file:
        file.write(page.encode(errors="backslashreplace"))


def _table(rows: Sequence[Row]) -> str:
    body = [_row(tip, result, _words(verdict(results))) for tip, results in rows for result in results]
    heads = [f'<th class="{kind}" aria-sort="none"><button type="button">{name}</button></th>' for name, kind in _COLUMNS]
    return f"""<label class="filter">Only rows with <input type="search" placeholder="myth, inference, attention"></label>
<p class="shown quiet" role="status">{len(body)} cases</p><table class="tips"><thead><tr>{"".join(heads)}</tr></thead><tbody>
{"".join(body)}</tbody></table>"""


def _row(tip: Tip, result: Measured | Failed, words: str) -> str:
    link = f'<td><a href="#{tip.name}">{tip.name.replace("_", "_<wbr>")}</a>'
    link += f", {html.escape(result.when)}</td>" if result.when else "</td>"
    if isinstance(result, Failed):
        return f'<tr>{link}<td class="bad">{result.kind}</td>{"<td></td>" * 4}<td>{words}</td></tr>'
    found, said = result.comparison, result.predicted
    effects = [_effect(getattr(found, name), getattr(said, name)) for name in ("peak", "saved", "transient")]
    cells = [_cell(name, *effect) for name, effect in zip(("peak", "saved", "transient"), effects, strict=True)]
    time = _cell("time", 1 if result.time is None else result.time, time_words(result))
    return f'<tr>{link}{"".join(cells)}{time}<td data-name="result">{result_words(result)}</td><td>{words}</td></tr>'


def _cell(name: str, number: float, shown: str, small: str = "") -> str:
    """A number. On narrow screens the page shows the column's name before it."""
    below = f" <small>{small}</small>" if small else ""
    return f'<td class="n" data-name="{name}" data-n="{number}"><span>{html.escape(shown)}{below}</span></td>'


def _effect(found: Effect, predicted: Effect) -> tuple[int, str, str]:
    """The change in bytes, as a number and as text, its share, and the prediction where it was another."""
    share = f"{found.change / found.before:+.1%}" if found.change and found.before else ""
    said = "" if found == predicted else f"predicted {predicted.change:+,}"
    return found.change, f"{found.change:+,}", ", ".join(filter(None, (share, said)))


def _words(judged: Verdict) -> str:
    return f'<span class="verdict {_TONES.get(judged.kind, "other")}">{html.escape(judged.text)}</span>'


def _section(tip: Tip, results: Sequence[Measured | Failed]) -> str:
    cases = "".join(_case(result, case) for result, case in zip(results, tip.cases, strict=True))
    return f"""<section id="{tip.name}"><h2>{tip.name}: {_words(verdict(results))}</h2>
<blockquote>{html.escape(tip.says)}</blockquote>{cases}<p><a href="#top">Back to the table</a></p></section>
"""


def _case(result: Measured | Failed, case: Case) -> str:
    title = f"<h3>{html.escape(result.when)}</h3>" if result.when else ""
    if isinstance(result, Failed):
        return f'{title}<p class="bad">{html.escape(result.message)}</p>'
    top = max(result.before.track.peak, result.after.track.peak, 1)
    pair = "".join(timeline(name, run.track, top) for name, run in (("before", result.before), ("after", result.after)))
    code = "".join(f"<pre>{html.escape(source)}</pre>" for source in case.source())
    return f"""{title}<p>{html.escape(reason(result))}</p><div class="pair">{pair}</div>{_legend(result)}{_owners(result)}
<details><summary>the code before and after</summary>{code}</details>"""


def _legend(result: Measured) -> str:
    """The colours of the categories that both timelines of a case show."""
    seen = {category for run in (result.before, result.after) for category in run.track.timeline().categories}
    named = (f'<li><i style="background:{COLOURS[each]}"></i>{each.value}</li>' for each in Category if each in seen)
    return f'<ul class="legend">{"".join(named)}</ul>'


def timeline(name: str, track: Track, top: int) -> str:
    """Bytes in use after each event, stacked by category; ``top`` is the highest of both runs."""
    line = track.timeline()
    at = sample(line, POINTS)
    across = (at * WIDTH // max(len(line) - 1, 1)).tolist()
    paths, floor = [], at * 0
    for category in line.categories:
        heights = floor + line.bytes(category)[at]
        low, high = ((HEIGHT - each * 0.95 * HEIGHT / top).round(1).tolist() for each in (floor, heights))
        paths.append(f'<path fill="{COLOURS[category]}" d="{_area(across, low, high)}"><title>{category.value}</title></path>')
        floor = heights
    peak = HEIGHT - track.peak * 0.95 * HEIGHT / top
    stretches = phases(line, len(line) * 0.01)
    spans = "".join(_span(stretch, (stop - start) / len(line)) for stretch, start, stop in stretches)
    scale = "".join(f"<span>{bytes_text(round(part * top))}</span>" for part in (1, 0.5, 0))
    said = f"{name}: bytes in use after each of {len(line):,} events, at most {track.peak:,} in {track.at_peak().phase}"
    return f"""<figure><figcaption>{name}: peak <b>{track.peak:,}</b> bytes in {track.at_peak().phase}</figcaption>
<div class="scale" aria-hidden="true">{scale}</div>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{said}">
{"".join(paths)}<line class="top" x1="0" x2="{WIDTH}" y1="{peak:.1f}" y2="{peak:.1f}"/></svg>
<div class="phases" aria-hidden="true">{spans}</div>
<div class="across">{len(line):,} mallocs and frees, in order</div></figure>"""


def _area(across: list[int], low: list[float], high: list[float]) -> str:
    """Steps along ``high``, and back along ``low``."""
    there = "".join(f"H{x}V{y:g}" for x, y in zip(across[1:], high[1:], strict=True))
    back = "".join(f"H{x}V{y:g}" for x, y in zip(across[:0:-1], low[-2::-1], strict=True))
    return f"M{across[0]} {high[0]:g}{there}V{low[-1]:g}{back}Z"


def _span(name: str, share: float) -> str:
    """A phase below a timeline, with its name where a window of that width has room for it."""
    shown = html.escape("your code" if name == "user" else name)
    wide, narrow = (share * width > 7 * len(shown) + 4 for width in _WIDTHS)
    return f'<span style="width:{share:.2%}"{"" if narrow else " class=wide"}>{shown if wide else ""}</span>'


def _owners(result: Measured) -> str:
    """The owners whose bytes at the peak changed most; those that vanished come first."""
    found = result.comparison
    kinds = (("vanished", found.vanished), ("appeared", found.appeared), ("moved", found.moved))
    rows = "".join(_owner(kind, change) for kind, changes in kinds for change in changes[:OWNERS])
    left = sum(max(len(changes) - OWNERS, 0) for _, changes in kinds)
    more = f'<p class="quiet">and {left:,} smaller changes</p>' if left else ""
    if not rows:
        return ""
    return f"""<details><summary>the blocks that changed at the peak</summary><table class="owners">
<thead><tr><th>owner</th><th>what</th><th class="n">bytes</th></tr></thead><tbody>{rows}</tbody></table>{more}</details>"""


def _owner(kind: str, change: Change) -> str:
    what = ", ".join(sorted(category.value for category in {*change.before, *change.after}))
    owner = html.escape(change.owner).replace(".", ".<wbr>")
    return f'<tr><td>{owner}</td><td>{kind}: {what}</td><td class="n">{change.bytes:+,}</td></tr>'
