"""The report: one self-contained HTML file. Its table sorts and filters; a click shows a tip's timelines."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from ..memory import Effect
from ..memory.render import sheet
from .measure import Failed, Measured
from .tip import Case, Tip
from .verdict import Row, Verdict, reason, result_words, summary, time_words, verdict

OWNERS = 8  # rows of a comparison
_INTRO = (
    "Peak: most bytes in use. Saved: most bytes kept for backward. Temporary: most bytes of temporaries and workspaces. Each "
    "is the highest at a moment of its own, so saved and temporary need not add up to the peak. Times are ratios of one "
    "step, measured on this machine in this run. A click on a tip shows its timelines."
)
_COLUMNS = (("tip", ""), ("peak", "n"), ("saved", "n"), ("temporary", "n"), ("time", "n"), ("result", ""), ("verdict", ""))
_TONES = {"saves": "good", "saves only when": "good", "improves accuracy": "good", "myth": "bad", "out of memory": "bad"}


def write(rows: Sequence[Row], path: Path | str) -> None:
    """Write the page to ``path``; if that fails, no partial file is left."""
    body = [_row(tip, result, _words(verdict(results))) for tip, results in rows for result in results]
    table = sheet.table(_COLUMNS, body, "myth, inference, attention")
    sheet.write(path, "Every tip, measured", [summary(rows), _INTRO], table, (_section(*row) for row in rows))


def _row(tip: Tip, result: Measured | Failed, words: str) -> str:
    link = f"<td>{sheet.link(tip.name)}" + (f", {html.escape(result.when)}</td>" if result.when else "</td>")
    if isinstance(result, Failed):
        return f'<tr>{link}<td class="bad">{result.kind}</td>{"<td></td>" * 4}<td>{words}</td></tr>'
    said = result.predicted.effects
    cells = [sheet.number(name, *_effect(found, said[name])) for name, found in result.comparison.effects.items()]
    time = sheet.number("time", 1 if result.time is None else result.time, time_words(result))
    return f'<tr>{link}{"".join(cells)}{time}<td data-name="result">{result_words(result)}</td><td>{words}</td></tr>'


def _effect(found: Effect, predicted: Effect) -> tuple[int, str, str]:
    """The change in bytes, as a number and as text, its share, and the prediction where it was another."""
    share = f"{found.change / found.before:+.1%}" if found.change and found.before else ""
    said = "" if found == predicted else f"predicted {predicted.change:+,}"
    return found.change, f"{found.change:+,}", ", ".join(filter(None, (share, said)))


def _words(judged: Verdict) -> str:
    return f'<span class="verdict {_TONES.get(judged.kind, "other")}">{html.escape(judged.text)}</span>'


def _section(tip: Tip, results: Sequence[Measured | Failed]) -> str:
    cases = "".join(_case(result, case) for result, case in zip(results, tip.cases, strict=True))
    return sheet.section(tip.name, _words(verdict(results)), f"<blockquote>{html.escape(tip.says)}</blockquote>{cases}")


def _case(result: Measured | Failed, case: Case) -> str:
    title = f"<h3>{html.escape(result.when)}</h3>" if result.when else ""
    if isinstance(result, Failed):
        return f'{title}<p class="bad">{html.escape(result.message)}</p>'
    top = max(result.before.track.peak, result.after.track.peak, 1)
    pair = "".join(sheet.timeline(name, run.track, top) for name, run in (("before", result.before), ("after", result.after)))
    colours = sheet.legend(run.track for run in (result.before, result.after))
    code = "".join(f"<pre>{html.escape(source)}</pre>" for source in case.source())
    owners = sheet.owners(result.comparison, OWNERS)
    return f"""{title}<p>{html.escape(reason(result))}</p><div class="pair">{pair}</div>{colours}
{f"<details><summary>the blocks that changed at the peak</summary>{owners}</details>" if owners else ""}
<details><summary>the code before and after</summary>{code}</details>"""
