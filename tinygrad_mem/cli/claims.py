"""``python -m tinygrad_mem claims``: published figures, found again in bytes, with a verdict for each."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from ..claims import CLAIMS, Claim, Judged, by_error, examine, page, show, summary
from ..errors import ArgumentError
from ..text import visible
from .tips import INTERRUPTED


def run(*, names: list[str] | None, about: str | None, html: Path | None, as_json: bool) -> int:
    """Judge the claims, print the most wrong ones first, write the page.

    Returns 130 after Ctrl-C, 1 if the page was not written, else 0: a figure that is refuted is an answer.

    Raises:
        ArgumentError: an unknown claim, or no claim is about that.
    """
    chosen = _chosen(names or [], about)
    judged, interrupted = _judged(chosen)
    rows, console = by_error(judged), Console(highlight=False)
    if as_json:
        print(json.dumps([each.data() for each in rows], indent=2))
    elif names:
        for each in rows:
            show.details(each, console)
    elif rows:
        console.print(show.table(rows, console.width))
        console.print(Text(summary(rows)))
    written = html is None or not rows or _written(rows, html)
    if interrupted:
        Console(stderr=True).print(f"claims: interrupted: {len(rows)} of {len(chosen)} claims are done", highlight=False)
    return INTERRUPTED if interrupted else 0 if written else 1


def _chosen(names: list[str], about: str | None) -> list[Claim]:
    """The claims of these names, or all, whose name, source or words contain ``about``; the fast ones first."""
    for name in names:
        if name not in CLAIMS:
            raise ArgumentError(f"there is no claim {name!r}: there are {', '.join(CLAIMS)}")
    found = [claim for claim in CLAIMS.values() if claim.name in names or not names]
    if about is not None:
        found = [claim for claim in found if about.lower() in f"{claim.name} {claim.source.title} {claim.says}".lower()]
        if not found:
            raise ArgumentError(f"no claim is about {about!r}: without --about, all are run")
    return sorted(found, key=lambda claim: claim.seconds)


def _judged(chosen: list[Claim]) -> tuple[list[Judged], bool]:
    """The claims that were judged until the end or until Ctrl-C, and whether it was pressed."""
    rows: list[Judged] = []
    console = Console(stderr=True)
    done, seconds = (kind(table_column=Column(no_wrap=True)) for kind in (MofNCompleteColumn, TimeElapsedColumn))
    columns = (TextColumn("{task.fields[name]:<26}"), BarColumn(), done, seconds)
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task("claims", total=len(chosen), name="")
            for claim in chosen:
                progress.update(task, name=claim.name)
                rows.append(examine(claim))
                progress.advance(task)
                said = rows[-1].verdict.text if rows[-1].verdict else show.found_text(rows[-1])
                progress.console.print(Text(visible(f"{len(rows)} of {len(chosen)}: {claim.name}: {said}")), soft_wrap=True)
    except KeyboardInterrupt:
        return rows, True
    return rows, False


def _written(rows: list[Judged], path: Path) -> bool:
    """Write the page, or print why that failed: the results are printed already."""
    try:
        page.write(rows, path)
    except OSError as error:
        Console(stderr=True).print(f"claims: no page: {error}", highlight=False, markup=False)
        return False
    Console(stderr=True).print(f"wrote {path}", highlight=False, markup=False)
    return True
