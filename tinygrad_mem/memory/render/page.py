"""An interactive page of one run, or of two side by side: figures, and a table to search and sort."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...files import replacing
from ..blocks import Block
from ..compare import Comparison, compare
from ..record import Record
from ..sizes import bytes_text
from . import figures
from .palette import COLOURS, name_of
from .sheet import asset, breakable, document, owners

ROWS = 500  # blocks of the peak with a row each in the table; the rest are one row per category
CHANGES = 12  # most owners in a comparison
_COLUMNS = ("bytes", "requested", "category", "owner", "op", "phase", "line")


def to_html(
    self: Record, path: Path | str, other: Record | None = None, *, titles: Sequence[str] = (), summary: str = ""
) -> None:
    """Write an interactive page: the timeline, the life of each block, the peak by module, a table to sort and search.

    The page is one file, of about 150 KB for two training steps of ResNet-20, that loads no other file. It follows the reader's
    light or dark setting.

    Args:
        other: a second run to show beside this one, with all changes between the two.
        titles: one for each run; by default what ran and where, or "before" and "after".
        summary: plain text of lines up to 80 characters, shown above the figures.

    Raises:
        ValueError: nothing was allocated while a track ran, or there is not one title for each run.
    """
    runs = [self] if other is None else [self, other]
    whole = " and ".join(titles) or name_of(self) + ("" if other is None else ", before and after")
    titles = titles or ((whole,) if other is None else ("before", "after"))
    if len(titles) != len(runs):
        raise ValueError(f"to_html: {len(runs)} runs have {len(runs)} titles, found {list(titles)}")
    for run, title in zip(runs, titles, strict=True):
        if not len(run.timeline()):
            raise ValueError(f"to_html: nothing was allocated while the track {title!r} was running")
    drawn: list[dict[str, Any]] = []
    sections = [_run(run, title if other is not None else "", drawn) for run, title in zip(runs, titles, strict=True)]
    body = f"""{f'<div class="summary"><pre tabindex="0">{html.escape(summary)}</pre></div>' if summary else ""}
{"" if other is None else _comparison(compare(self, other), titles)}
<div class="runs" data-runs="{len(runs)}">{"".join(sections)}</div>
<script type="application/octet-stream" id="figures">{packed({"colours": COLOURS, "runs": drawn})}</script>"""
    text = document(whole, body, asset("numbers.js") + asset("tables.js") + asset("page.js"), asset("page.css"))
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))


def packed(value: Any) -> str:
    """JSON, deflated, in base64: ``unpacked`` of the asset ``numbers.js`` reads it."""
    return base64.b64encode(zlib.compress(json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), 9)).decode()


def _run(track: Record, title: str, drawn: list[dict[str, Any]]) -> str:
    """The part of one run. The numbers of its figures are added to ``drawn``."""
    name = f"run{len(drawn)}"
    found, count = figures.largest(track)
    drawn.append({"timeline": figures.timeline(track), "lives": figures.lives(track, found), "peak": figures.peak(track)})
    moment, pool = track.at_peak(), track.pool("peak")
    facts = {
        "peak": _bytes(moment.used),
        "phase": moment.phase,
        "requested": _bytes(pool.requested),
        "reserved": f"{_bytes(pool.reserved)}, {pool.fragmentation:.1%} of it reserved but unused",
        "device": track.device,
    }
    smallest = min((block.rounded for block in found), default=0)
    every = f"All {count:,} blocks" if count == len(found) else f"The {len(found):,} largest of {count:,} blocks"
    rest = "" if count == len(found) else f" None of the others is larger than {_bytes(smallest)}."
    moments = f"{len(track.timeline()):,} allocations and frees"
    return f"""<div class="run" id="{name}">{f"<h2>{html.escape(title)}</h2>" if title else ""}
<dl>{"".join(f"<div><dt>{key}</dt><dd>{html.escape(value)}</dd></div>" for key, value in facts.items())}</dl>
<h3>In use</h3><div class="tools"></div>
<div class="timeline" data-said="Bytes in use by category after each of {moments}, at most {moment.used:,}"></div>
<ul class="legend"></ul>
<h3>The life of each block</h3><p class="quiet">{every}, each at the lowest free place.{rest}</p>
<div class="lives" data-said="{every} over {moments}, each a bar from its malloc to its free"></div>
<h3>At the peak</h3><p class="quiet">Areas are bytes. Click a module to enter it.</p><div class="peak"></div>
{_table(track.live("peak"))}</div>"""


def _bytes(count: int) -> str:
    return f"{count:,} B" if count < 1024 else f"{count:,} B = {bytes_text(count)}"


def _table(blocks: list[Block]) -> str:
    """The table of blocks at the peak, largest first; the smallest are one row per category. The page sorts and filters it."""
    rows = [_row(block) for block in blocks[:ROWS]]
    rest: defaultdict[str, list[Block]] = defaultdict(list)
    for block in blocks[ROWS:]:
        rest[block.category.value].append(block)
    for what, some in rest.items():
        sizes = sum(b.rounded for b in some), sum(b.requested for b in some)
        rows.append(_cells((*sizes, what, f"{len(some):,} smaller blocks", "", "", ""), "rest"))
    total = sum(block.rounded for block in blocks)
    head = "".join(f'<th scope="col" aria-sort="none"><button type="button">{name}</button></th>' for name in _COLUMNS)
    return f"""<label class="filter">Only rows with <input type="search" placeholder="conv1, gradients, model.py:12"></label>
<p class="shown quiet" role="status">{len(blocks):,} blocks, <b class="sum">{total:,}</b> B</p>
<div class="scroll"><table class="blocks"><thead><tr>{head}</tr></thead><tbody>
{"".join(rows)}</tbody></table></div>"""


def _row(block: Block) -> str:
    whose = block.name or block.home
    return _cells((block.rounded, block.requested, block.kind, whose, block.op, block.phase, block.line))


def _cells(values: tuple, kind: str = "") -> str:
    cells = [f'<td class="n" data-n="{v}">{v:,}</td>' if isinstance(v, int) else f"<td>{breakable(v)}</td>" for v in values]
    return f'<tr class="{kind}">{"".join(cells)}</tr>\n'


def _comparison(found: Comparison, titles: Sequence[str]) -> str:
    """The part with the differences between two runs, in total and by owner."""
    effects = {"peak": found.peak, "saved for backward": found.saved, "temporary": found.temporary}
    rows = "".join(
        f'<tr><th scope="row">{name}</th>{_numbers(f"{e.before:,}", f"{e.after:,}", f"{e.change:+,}")}</tr>'
        for name, e in effects.items()
    )
    head = "".join(f'<th scope="col" class="n">{html.escape(title)}</th>' for title in (*titles, "change"))
    return f"""<div class="comparison"><h2>What changed</h2><div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">bytes</th>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<h3>At the two peaks</h3>{owners(found, CHANGES) or "<p>No owner changed.</p>"}</div>"""


def _numbers(*values: str) -> str:
    return "".join(f'<td class="n">{value}</td>' for value in values)
