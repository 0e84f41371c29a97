"""A case in a terminal (rich): the question, then the timelines, the cause, the fix and the source."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import unified_diff

from rich.box import HORIZONTALS
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..memory import Category
from ..memory.render.bars import Bars, draw, of_track
from ..memory.render.palette import COLOURS
from ..memory.sizes import bytes_text
from .case import Case, Finding, Program, Run

_SERVED = {"allocated": COLOURS[Category.PARAMETER], "reserved, not in use": COLOURS[Category.UNTRACKED]}


def listed(cases: Iterable[Case], console: Console) -> None:
    """Print a row for each case."""
    table = Table(box=HORIZONTALS, pad_edge=False, show_lines=True)
    table.add_column("case", no_wrap=True)
    table.add_column("question", overflow="fold")
    for case in cases:
        table.add_row(Text(case.name, "bold"), Text(case.question))
    console.print(table)


def question(case: Case, console: Console) -> None:
    """Print the question, the program and the causes to guess from."""
    console.print(Text(f"{case.name}: ", "bold").append(case.question, "not bold"))
    console.print(Text(f"\n{_indented(case.before.source().splitlines())}\n", "dim"))
    under = _under(case.before)
    if under:
        console.print(Text(f"It runs {under}.\n"))
    for number, choice in enumerate(case.choices, 1):
        console.print(Text(f"{number}. {choice}"))
    console.print()


def answer(case: Case, before: Run, after: Run, found: Finding, console: Console) -> None:
    """Print the timelines, the cause, the fix, the bytes and the source."""
    console.print(Text(f"It is {case.right + 1}: {case.choices[case.right]}\n", "bold"))
    draw([_bars("before", before), _bars("after", after)], console)
    console.print(Text.assemble(("Cause. ", "bold"), found.cause))
    console.print(Text.assemble(("Fix. ", "bold"), found.fix))
    console.print(Text(f"\n{_indented(_changes(case))}\n", "dim"))
    what = f"{found.what[0].upper()}{found.what[1:]}"
    console.print(Text.assemble(("Bytes. ", "bold"), f"{what}: {found.formula} = {found.by_formula:,}. ", _agrees(found)))
    kind = "in use" if before.replay is None else "reserved"
    console.print(Text.assemble(("Peak ", "bold"), f"{kind}: before {_peak(before)}, after {_peak(after)} bytes."))
    console.print(Text.assemble(("Source. ", "bold"), f"{case.reports} {case.link}"))


def _agrees(found: Finding) -> str:
    if found.by_formula == found.measured:
        return f"The run: {found.measured:,}."
    return f"The run: {found.measured:,}, which is a defect: please report it."


def _peak(run: Run) -> str:
    if run.replay is not None and run.died:
        return f"out of memory with {run.peak:,}"
    return f"{run.peak:,}"


def _bars(name: str, run: Run) -> Bars:
    title = f"{name}: out of memory" if run.died else f"{name}: peak {run.peak:,} bytes"
    if run.replay is None:
        return of_track(run.track, title)
    _, allocated, reserved = run.replay.timeline.T
    if run.died:  # the program ends here
        end = int((run.replay.timeline[:, 0] <= run.replay.out_of_memory[0]).sum())
        allocated, reserved = allocated[:end], reserved[:end]
    return Bars(title, dict(zip(_SERVED, (allocated, reserved - allocated), strict=True)), _SERVED)


def _changes(case: Case) -> list[str]:
    """The lines that the fixed program takes away and adds; where it is the same program, the settings."""
    if case.before.run is case.after.run:
        return [f"{sign} {program.settings or 'default settings'}" for sign, program in (("-", case.before), ("+", case.after))]
    before, after = (program.source().splitlines()[1:] for program in (case.before, case.after))
    lines = unified_diff(before, after, n=1, lineterm="")
    return [f"{line[0]} {line[1:]}" for line in list(lines)[2:] if not line.startswith("@@")]


def _under(program: Program) -> str:
    """The allocator that the program meets, in words; nothing where there is none."""
    if program.settings is None:
        return ""
    card = "" if program.capacity is None else f", on a card of {bytes_text(program.capacity)}"
    return f"with a model of PyTorch's allocator{f', {program.settings}' if program.settings else ''}{card}"


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
