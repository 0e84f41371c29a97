"""Self-contained pages (HTML) with one table, which sorts and filters, and a section for each row, which a click shows."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from ...files import replacing
from ..attribution import Category
from ..compare import Change, Comparison
from ..record import Record
from ..sizes import bytes_text
from .palette import COLOURS, phases, sample

POINTS = 120  # points of a timeline
WIDTH, HEIGHT = 1000, 200  # of a drawing, before it is stretched
_WIDTHS = 440, 270  # pixels of a timeline in a wide window, and in one of 400 pixels


def asset(name: str) -> str:
    """A style sheet or script that this folder holds."""
    return resources.files("tinygrad_mem.memory.render").joinpath("assets", name).read_text(encoding="utf-8")


def document(title: str, body: str, script: str, style: str = "") -> str:
    """A page that loads nothing: ``body`` is HTML; ``style`` is added to that of all sheets."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{html.escape(title)}</title>
<style>{asset("sheet.css")}{style}</style></head><body><main>
<h1 id="top">{html.escape(title)}</h1>{body}</main><script>{script}</script></body></html>
"""


def write(path: Path | str, title: str, intro: Sequence[str], table: str, sections: Iterable[str]) -> None:
    """Write a page to ``path``; if that fails, no partial file is left.

    Args:
        intro: paragraphs of plain text; all but the first are quiet.
        table: see :func:`table`.
        sections: see :func:`section`.

    Raises:
        OSError: it cannot be written there.
    """
    first, *others = (html.escape(text) for text in intro)
    texts = f"<p>{first}</p>" + "".join(f'<p class="quiet">{text}</p>' for text in others)
    text = document(title, f"{texts}{table} {''.join(sections)}", asset("tables.js") + asset("sheet.js"))
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def table(columns: Iterable[tuple[str, str]], rows: Sequence[str], hint: str) -> str:
    """The table of the rows (``<tr>``). ``columns``: names, with "n" for numbers; ``hint``: words to filter by."""
    sort = '<th scope="col" class="{}" aria-sort="none"><button type="button">{}</button></th>'
    heads = [sort.format(kind, name) for name, kind in columns]
    count = f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}"
    return f"""<label class="filter">Only rows with <input type="search" placeholder="{hint}"></label>
<p class="shown quiet" role="status">{count}</p><table class="all"><thead><tr>{"".join(heads)}</tr></thead><tbody>
{"".join(rows)}</tbody></table>"""


def link(name: str) -> str:
    """A link to the section of that name."""
    return f'<a href="#{name}">{name.replace("_", "_<wbr>")}</a>'


def number(column: str, value: float, shown: str, small: str = "") -> str:
    """A cell with a number. On narrow screens the page shows the column's name before it."""
    below = f" <small>{small}</small>" if small else ""
    return f'<td class="n" data-name="{column}" data-n="{value}"><span>{html.escape(shown)}{below}</span></td>'


def section(name: str, verdict: str, body: str) -> str:
    """The part that a click on the link of that name shows; ``verdict`` and ``body`` are HTML."""
    return f"""<section id="{name}"><h2>{name}: {verdict}</h2>{body}<p><a href="#top">Back to the table</a></p></section>
"""


def legend(tracks: Iterable[Record]) -> str:
    """The colours of the categories in the timelines of these tracks."""
    seen = {category for track in tracks for category in track.timeline().categories}
    named = (f'<li><i style="background:{COLOURS[each]}"></i>{each.value}</li>' for each in Category if each in seen)
    return f'<ul class="legend">{"".join(named)}</ul>'


def breakable(path: str) -> str:
    """A name that a browser may break only after a dot or a slash."""
    return html.escape(path).replace(".", ".<wbr>").replace("/", "/<wbr>")


def owners(found: Comparison, most: int) -> str:
    """The owners whose bytes differ between two peaks, at most ``most`` that appeared, vanished and changed; "" for none."""
    changes = [("appeared", found.appeared), ("vanished", found.vanished), ("changed", found.moved)]
    rows = "".join(_owner(kind, change) for kind, every in changes for change in every[:most])
    if not rows:
        return ""
    left = sum(max(len(every) - most, 0) for _, every in changes)
    more = f'<p class="quiet">and {left:,} smaller changes</p>' if left else ""
    return f"""<div class="scroll" tabindex="0"><table class="owners"><thead><tr><th scope="col">owner</th>
<th scope="col" class="n">bytes</th><th scope="col">what</th></tr></thead><tbody>{rows}</tbody></table></div>{more}"""


def _owner(kind: str, change: Change) -> str:
    before, after = (", ".join(sorted(side)) for side in (change.before, change.after))
    what = f"{before} → {after}" if before and after and before != after else before or after
    bytes_ = f'<td class="n">{change.bytes:+,}</td>'
    return f"<tr><td>{breakable(change.owner)}</td>{bytes_}<td>{html.escape(f'{kind}: {what}')}</td></tr>\n"


def timeline(name: str, track: Record, top: int) -> str:
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
<div class="across">{len(line):,} allocations and frees, in order</div></figure>"""


def _area(across: list[int], low: list[float], high: list[float]) -> str:
    """Steps along ``high``, and back along ``low``."""
    there = "".join(f"H{x}V{y:g}" for x, y in zip(across[1:], high[1:], strict=True))
    back = "".join(f"H{x}V{y:g}" for x, y in zip(across[:0:-1], low[-2::-1], strict=True))
    return f"M{across[0]} {high[0]:g}{there}V{low[-1]:g}{back}Z"


def _span(name: str, share: float) -> str:
    """A phase below a timeline, with its name where a window of that width has room for it."""
    shown = html.escape(name)
    wide, narrow = (share * width > 7 * len(shown) + 4 for width in _WIDTHS)
    return f'<span style="width:{share:.2%}"{"" if narrow else " class=wide"}>{shown if wide else ""}</span>'
