"""The court as one self-contained HTML file: the table, and for each claim its source, its run and its verdict."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from ..files import replacing
from ..memory import Category
from ..memory.render.palette import COLOURS
from ..tips.report import timeline
from .claim import EXPLAINED, REFUTED, REPRODUCED, RULES, Judged, summary
from .show import found_text, part_text

_TONES = {REPRODUCED: "good", EXPLAINED: "other", REFUTED: "bad"}


def write(rows: Sequence[Judged], path: Path | str) -> None:
    """Write the page to ``path``, whole or not at all.

    Raises:
        OSError: it cannot be written there.
    """
    style = resources.files("tinygrad_mem.tips").joinpath("assets", "report.css").read_text(encoding="utf-8")
    tracks = [each.found.track for each in rows if each.found is not None and each.found.track is not None]
    seen = {category for track in tracks for category in track.timeline().categories}
    colours = [(COLOURS[each], each.value) for each in Category if each in seen]
    legend = "".join(f'<li><i style="background:{colour}"></i>{name}</li>' for colour, name in colours)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>Published figures, judged</title>
<style>{style}</style></head><body><main>
<h1>Published figures, judged</h1><p>{html.escape(summary(list(rows)))}</p>
<p class="quiet">{html.escape(RULES)}</p>
<table class="tips"><thead><tr><th>claim</th><th class="n">figure</th><th class="n">found</th><th>verdict</th></tr></thead>
<tbody>{"".join(map(_row, rows))}</tbody></table> <h3>Colours of the timelines</h3><ul class="legend">{legend}</ul>
{"".join(map(_section, rows))} </main></body></html>
"""
    with replacing(path) as file:
        file.write(page.encode(errors="backslashreplace"))


def _row(judged: Judged) -> str:
    name = judged.claim.name
    cells = (("figure", judged.claim.stated.text), ("found", found_text(judged)))
    numbers = "".join(f'<td class="n" data-name="{head}"><span>{html.escape(text)}</span></td>' for head, text in cells)
    return f'<tr><td><a href="#{name}">{name}</a></td>{numbers}<td>{_words(judged)}</td></tr>'


def _words(judged: Judged) -> str:
    if judged.verdict is None:
        return "not run"
    return f'<span class="verdict {_TONES[judged.verdict.kind]}">{html.escape(judged.verdict.text)}</span>'


def _section(judged: Judged) -> str:
    claim, found = judged.claim, judged.found
    parts = () if found is None else found.parts
    beside = "".join(f"<li>{html.escape(part_text(claim.stated, part))}</li>" for part in parts)
    drawn = "" if found is None or found.track is None else timeline("the run", found.track, max(found.track.peak, 1))
    source = f'<a href="{html.escape(claim.source.link)}">{html.escape(claim.source.title)}</a>'
    return f"""<section><h2 id="{claim.name}">{claim.name}: {_words(judged)}</h2>
<blockquote>{html.escape(claim.says)} <b>{html.escape(claim.stated.text)}</b></blockquote><p class="quiet">{source}</p>
<p>Found: <b>{html.escape(found_text(judged))}</b>: {html.escape(claim.how)}.</p>{f"<ul>{beside}</ul>" if beside else ""}
<p>{html.escape(claim.why)}</p>{drawn}</section>
"""
