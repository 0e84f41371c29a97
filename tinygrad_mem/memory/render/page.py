"""An interactive page (plotly) of one run, or of two side by side: figures, and a table to search and sort."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import needs
from ...files import replacing
from ..blocks import Block
from ..compare import Change, Comparison
from ..sizes import bytes_text
from . import figures

if TYPE_CHECKING:
    from ..track import Track

ROWS = 500  # blocks of the peak with a row each in the table; the rest are one row per category
CHANGES = 12  # most owners in a comparison
_COLUMNS = ("bytes", "requested", "category", "owner", "op", "phase", "line")


def to_html(
    self: Track, path: Path | str, other: Track | None = None, *, titles: Sequence[str] = (), summary: str = ""
) -> None:
    """Write an interactive page: the timeline, the life of each block, the peak by module, a table to sort and search.

    The page is one file of about 5 MB that loads no other file. It follows the reader's light or dark setting.

    Args:
        other: a second run, shown beside this one, with the changes from this one to it.
        titles: one for each run; by default the device, or "before" and "after".
        summary: plain text of lines up to 80 characters, shown above the figures.

    Raises:
        ValueError: nothing was allocated while a track ran, or there is not one title for each run.
        ModuleNotFoundError: plotly is missing: ``pip install plotly``.
    """
    runs = [self] if other is None else [self, other]
    titles = titles or ((self.device,) if other is None else ("before", "after"))
    if len(titles) != len(runs):
        raise ValueError(f"to_html: {len(runs)} runs have {len(runs)} titles, found {list(titles)}")
    for run, title in zip(runs, titles, strict=True):
        if not len(run.timeline()):
            raise ValueError(f"to_html: nothing was allocated while the track {title!r} was running")
    needs("plotly", "a page")
    from plotly.offline import get_plotlyjs

    drawn: dict[str, Any] = {}
    sections = [_run(run, title, f"run{i}", drawn) for i, (run, title) in enumerate(zip(runs, titles, strict=True))]
    for figure in ("timeline", "lives") if other is not None else ():
        _same_scale(drawn[f"run0-{figure}"]["layout"], drawn[f"run1-{figure}"]["layout"])
    page = asset("page.html")
    parts = {
        "title": html.escape(" and ".join(titles)),
        "style": asset("page.css"),
        "summary": f'<section class="summary"><pre tabindex="0">{html.escape(summary)}</pre></section>' if summary else "",
        "comparison": "" if other is None else _comparison(self.compare(other), titles),
        "columns": str(len(runs)),
        "runs": "\n".join(sections),
        "figures": _json(drawn),
        "plotly": get_plotlyjs().replace("</script", "<\\/script"),
        "tables": asset("tables.js"),
        "script": asset("page.js"),
    }
    pieces = page.split("@@")  # text, name, text, name, ..., text
    with replacing(path) as file:
        file.writelines((parts[piece] if i % 2 else piece).encode(errors="backslashreplace") for i, piece in enumerate(pieces))


def _same_scale(*layouts: dict[str, Any]) -> None:
    """Give the figures of two runs the same scale: that of the higher one."""
    axis = max((layout["yaxis"] for layout in layouts), key=lambda axis: axis["range"][1])
    for layout in layouts:
        layout["yaxis"] = axis


def asset(name: str) -> str:
    """A style sheet, script or form of page that this folder holds."""
    return resources.files("tinygrad_mem.memory.render").joinpath("assets", name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _run(track: Track, title: str, name: str, drawn: dict[str, Any]) -> str:
    """The section of one run. Its figures are added to ``drawn`` under their element ids."""
    found, count = figures.largest(track)
    drawn[f"{name}-timeline"] = figures.timeline(track)
    drawn[f"{name}-lives"] = figures.lives(track, found)
    drawn[f"{name}-peak"] = figures.peak(track)
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
    return f"""<section class="run"><h2>{html.escape(title)}</h2>
<dl>{"".join(f"<div><dt>{key}</dt><dd>{html.escape(value)}</dd></div>" for key, value in facts.items())}</dl>
<h3>In use</h3><div class="figure" id="{name}-timeline"></div>
<h3>The life of each block</h3><p>{every}, each at the lowest free place.{rest}</p>
<div class="figure" id="{name}-lives"></div>
<h3>At the peak</h3><p>Areas are bytes. Click a module to enter it.</p><div class="figure" id="{name}-peak"></div>
{_table(track.live("peak"))}</section>"""


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
    head = "".join(f'<th aria-sort="none"><button type="button">{name}</button></th>' for name in _COLUMNS)
    return f"""<label class="filter">Only rows with <input type="search" placeholder="conv1, gradients, model.py:12"></label>
<p class="shown">{len(blocks):,} blocks, <b class="sum">{total:,}</b> B</p>
<div class="scroll"><table class="blocks"><thead><tr>{head}</tr></thead><tbody>
{"".join(rows)}</tbody></table></div>"""


def _row(block: Block) -> str:
    whose = block.name or block.home
    return _cells((block.rounded, block.requested, block.kind, whose, block.op, block.phase, block.line))


def _cells(values: tuple, kind: str = "") -> str:
    cells = [f'<td data-n="{v}">{v:,}</td>' if isinstance(v, int) else f"<td>{_breakable(v)}</td>" for v in values]
    return f'<tr class="{kind}">{"".join(cells)}</tr>\n'


def _breakable(path: str) -> str:
    """A name that a browser may break only after a dot or a slash."""
    return html.escape(path).replace(".", ".<wbr>").replace("/", "/<wbr>")


def _comparison(found: Comparison, titles: Sequence[str]) -> str:
    """The section with the differences between two runs, in total and by owner."""
    effects = {"peak": found.peak, "saved for backward": found.saved, "transient": found.transient}
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{e.before:,}</td><td>{e.after:,}</td><td>{e.change:+,}</td></tr>'
        for name, e in effects.items()
    )
    changes = [("appeared", found.appeared), ("vanished", found.vanished), ("moved", found.moved)]
    owners = "".join(_change(kind, change) for kind, all_ in changes for change in all_[:CHANGES])
    left = sum(max(len(all_) - CHANGES, 0) for _, all_ in changes)
    more = f"<p>and {left:,} smaller changes</p>" if left else ""
    table = f"""<div class="scroll"><table class="owners">
<thead><tr><th></th><th>owner</th><th>change</th><th>what</th></tr></thead><tbody>{owners}</tbody></table></div>{more}"""
    first, second = (html.escape(title) for title in titles)
    return f"""<section class="comparison"><h2>What changed</h2><div class="scroll"><table>
<thead><tr><th>bytes</th><th>{first}</th><th>{second}</th><th>change</th></tr></thead><tbody>{rows}</tbody></table></div>
<h3>At the two peaks</h3>{table if owners else "<p>No owner changed.</p>"}</section>"""


def _change(kind: str, change: Change) -> str:
    before, after = (", ".join(sorted(side)) for side in (change.before, change.after))
    what = f"{before} → {after}" if before and after and before != after else before or after
    owner = _breakable(change.owner)
    return f"<tr><td>{kind}</td><td>{owner}</td><td>{change.bytes:+,}</td><td>{html.escape(what)}</td></tr>\n"
