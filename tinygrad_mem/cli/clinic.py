"""``python -m tinygrad_mem clinic``: questions that people asked about memory, to guess at, with their causes and fixes."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

from ..clinic import CASES, Case, Run, examine
from ..clinic.show import answer as show_answer
from ..clinic.show import listed, question
from ..errors import ArgumentError
from ..starting import INTERRUPTED
from .one_by_one import check_names
from .screen import screen


def run(*, case: str | None, answer: bool, as_json: bool) -> int:
    """List the cases, or show one. Returns 130 after Ctrl-C, else 0."""
    if case is None and answer:
        raise ArgumentError(f"--answer shows the answer of one case: name one of {', '.join(CASES)}")
    check_names("case", [case] if case is not None else [], CASES)
    if as_json:
        print(json.dumps([_question(each) for each in CASES.values()] if case is None else _with_answer(CASES[case]), indent=2))
        return 0
    console = screen(highlight=False)
    if case is None:
        listed(CASES.values(), console)
        console.print("Guess one: python -m tinygrad_mem clinic CASE", markup=False)
        return 0
    return _show(CASES[case], answer, console)


def _show(case: Case, answer: bool, console: Console) -> int:
    """Print the question; then the answer, if the reader asks for it or has guessed."""
    question(case, console)
    if not answer:
        if not sys.stdin.isatty():
            console.print(f"The answer: python -m tinygrad_mem clinic {case.name} --answer", markup=False)
            return 0
        try:
            guess = _guess(len(case.choices))
        except KeyboardInterrupt:
            return INTERRUPTED
        if guess is not None:
            console.print("Right." if guess == case.right else "No.", end=" ")
    show_answer(case, *examine(case), console)
    return 0


def _guess(choices: int) -> int | None:
    """The number that the reader types, from 0; ``None`` if they would rather know."""
    while True:
        try:
            typed = input(f"Your guess, 1 to {choices}; Enter for the answer: ").strip()
        except EOFError:
            return None
        if not typed:
            return None
        if typed.isdecimal() and 1 <= int(typed) <= choices:
            return int(typed) - 1


def _question(case: Case) -> dict[str, Any]:
    """A case without its answer, as JSON."""
    return {"case": case.name, "question": case.question, "choices": list(case.choices), "source": case.link}


def _with_answer(case: Case) -> dict[str, Any]:
    before, after, found = examine(case)
    return {
        **_question(case),
        "right": case.right + 1,
        "cause": found.cause,
        "fix": found.fix,
        "program": {"before": case.before.source(), "after": case.after.source()},
        "before": _numbers(before, case.before.settings),
        "after": _numbers(after, case.after.settings),
        "bytes": {name: getattr(found, name) for name in ("what", "formula", "by_formula", "measured")},
        "reports": case.reports,
    }


def _numbers(run: Run, settings: str | None) -> dict[str, Any]:
    """The peak of a run; of an allocator's, what it reserved, too."""
    found: dict[str, Any] = {"peak_in_use": run.track.peak}
    if run.replay is not None:
        found |= {"settings": settings, "peak_reserved": run.replay.peak_reserved, "out_of_memory": run.died}
    return found
