"""The claims as one self-contained HTML file: the table, and for each claim its source, its run and its verdict."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from ..memory.render import sheet
from .claim import EXPLAINED, REFUTED, REPRODUCED, RULES, Judged, summary
from .show import found_text, part_text

_TONES = {REPRODUCED: "good", EXPLAINED: "other", REFUTED: "bad"}


def write(rows: Sequence[Judged], path: Path | str) -> None:
    """Write the page to ``path``; if that fails, no partial file is left."""
    columns = (("claim", ""), ("figure", ""), ("found", ""), ("times off", "n"), ("verdict", ""))
    table = sheet.table(columns, [_row(each) for each in rows], "refuted, LoRA, logits")
    sheet.write(path, "Published figures, judged", [summary(list(rows)), RULES], table, map(_section, rows))


def _row(judged: Judged) -> str:
    off = "" if judged.verdict is None else sheet.number("times off", judged.verdict.off, f"{judged.verdict.off:,.2f}")
    cells = (("figure", judged.claim.stated.text), ("found", found_text(judged)))
    whole = [(head, re.sub(r"(?<=\d) ", "&nbsp;", html.escape(text))) for head, text in cells]  # a number with its unit
    texts = "".join(f'<td data-name="{head}"><span>{text}</span></td>' for head, text in whole)
    return f"<tr><td>{sheet.link(judged.claim.name)}</td>{texts}{off or '<td></td>'}<td>{_words(judged)}</td></tr>"


def _words(judged: Judged) -> str:
    if judged.verdict is None:
        return "not run"
    return f'<span class="verdict {_TONES[judged.verdict.kind]}">{html.escape(judged.verdict.text)}</span>'


def _section(judged: Judged) -> str:
    claim, found = judged.claim, judged.found
    parts = () if found is None else found.parts
    beside = "".join(f"<li>{html.escape(part_text(claim.stated, part))}</li>" for part in parts)
    track = None if found is None else found.track
    drawn = "" if track is None else sheet.timeline("the run", track, max(track.peak, 1)) + sheet.legend([track])
    source = f'<a href="{html.escape(claim.source.link)}">{html.escape(claim.source.title)}</a>'
    body = f"""<blockquote>{html.escape(claim.says)} <b>{html.escape(claim.stated.text)}</b></blockquote>
<p class="quiet">{source}</p>
<p>Found: <b>{html.escape(found_text(judged))}</b>: {html.escape(claim.how)}.</p>{f"<ul>{beside}</ul>" if beside else ""}
<p>{html.escape(claim.why)}</p>{drawn}"""
    return sheet.section(claim.name, _words(judged), body)
