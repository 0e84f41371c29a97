"""``python -m tinygrad_mem claims``: published figures, found again in bytes, with a verdict for each."""

from __future__ import annotations

import json
from pathlib import Path

from rich.text import Text

from ..claims import CLAIMS, Claim, by_error, examine, page, show, summary
from ..errors import ArgumentError
from .one_by_one import check_names, ended, one_by_one
from .screen import screen


def run(*, names: list[str] | None, about: str | None, html: Path | None, as_json: bool) -> int:
    """Judge the claims, print the most wrong ones first, write the page.

    Returns 130 after Ctrl-C, 1 if the page was not written, else 0: a figure that is refuted is an answer.
    """
    chosen = _chosen(names or [], about)
    judged, interrupted = one_by_one(
        "claims", chosen, examine, lambda it: it.name, lambda it: it.verdict.text if it.verdict else show.found_text(it)
    )
    rows, console = by_error(judged), screen(highlight=False)
    if as_json:
        print(json.dumps([each.data() for each in rows], indent=2))
    elif names:
        for each in rows:
            show.details(each, console)
    elif rows:
        console.print(show.table(rows, console.width))
        console.print(Text(summary(rows)))
    return ended("claims", rows, len(chosen), interrupted, html, page.write)


def _chosen(names: list[str], about: str | None) -> list[Claim]:
    """The claims of these names, or all, whose name, source or words contain ``about``; the fast ones first."""
    check_names("claim", names, CLAIMS)
    found = [claim for claim in CLAIMS.values() if claim.name in names or not names]
    if about is not None:
        found = [claim for claim in found if about.lower() in f"{claim.name} {claim.source.title} {claim.says}".lower()]
        if not found:
            raise ArgumentError(f"no claim is about {about!r}: leave --about out to run all of them")
    return sorted(found, key=lambda claim: claim.seconds)
