"""``python -m tinygrad_mem snapshot FILE``: what a memory snapshot of PyTorch tells its owner."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError
from ..memory.attribution import Category
from ..memory.sizes import bytes_text
from ..pytorch.evidence import Evidence
from ..pytorch.growth import Grown
from ..pytorch.iterations import LEAST
from ..pytorch.load import track_of
from ..pytorch.report import Report, report
from ..pytorch.snapshot import Snapshot, read
from ..pytorch.unused import Unused
from ..pytorch.what_if import Trial, recorded_capacity
from ..pytorch.what_if import what_if as trials
from ..text import visible
from .networks import size_of
from .one_by_one import telling
from .screen import screen, table

_WHOLE = 72  # columns of a terminal that has room for all columns beside the names of settings
_TITLES = {"peak": "allocated peak", "out of memory": "out of memory", "reserved peak": "reserved peak", "end": "end"}
_WHEN = {
    "peak": "when most was allocated",
    "out of memory": "when it was out of memory",
    "reserved peak": "when most was first reserved",
    "end": "at the end",
}
_PARTS = {
    "allocated": "allocated",
    "waiting": "freed, another stream uses it",
    "again": "free, empty_cache releases it",
    "stuck": "free, stuck beside live blocks",
    "private": "free, kept for a private pool",
    "reserved": "reserved",
}


def run(
    *, file: Path, what_if: bool, capacity: str | None, device: int | None, top: int, html: Path | None, as_json: bool
) -> int:
    """Read the file and print the report. Returns 1 if the recorded requests do not fit ``capacity``, else 0."""
    room = size_of("--capacity", capacity)
    if html is not None and html.exists() and file.exists() and html.samefile(file):
        raise ArgumentError(f"--html {html} is the snapshot itself: name another file")
    console, errors = screen(highlight=False), Console(stderr=True, highlight=False)
    with telling(errors) as show:
        found, evidence = _read(file, device, show)
        if found.track is not None and not what_if:
            raise ArgumentError(
                f"{file.name} was written by a track of tinygrad_mem: read it with pytorch.load({file.name!r}). "
                "Here only --what-if works: it runs its requests through PyTorch's allocator"
            )
        outcomes: list[Trial] = []
        if what_if or room is not None:
            outcomes = trials(evidence.recording, room, lambda settings: show(f"trying {settings or 'no settings'}"))
        answers = report(evidence, top)  # also with --what-if: for JSON and the page
    if as_json:
        found_all = {"file": str(file), "report": answers.data(), "what_if": [asdict(each) for each in outcomes]}
        print(json.dumps(found_all, indent=2))
    elif what_if:
        _show_outcomes(outcomes, evidence, room, console)
    else:
        _show(answers, file, top, console)
        if outcomes:
            console.print()
            _show_outcomes(outcomes, evidence, room, console)
    if html is not None:
        track_of(found, device).to_html(html, titles=[file.name], summary=_text(answers, file, top))
        errors.print(Text(f"wrote {html}"))
    return int(room is not None and outcomes[0].fits is False)


def _read(file: Path, device: int | None, show: Any) -> tuple[Snapshot, Evidence]:
    done = 0

    def progress(count: int) -> None:
        nonlocal done
        done += count
        show(f"reading: {bytes_text(done)}")

    found = read(file, progress)
    show("examining each block")
    return found, Evidence(found, device)


# --- the report -----------------------------------------------------------------------------------------------------------


def _print(title: str, below: Table, console: Console) -> None:
    """Print a title of any length, and a table below it."""
    console.print(Text(visible(title)), style="bold")
    console.print(below)


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _show(answers: Report, file: Path, top: int, console: Console) -> None:
    time = "" if answers.seconds is None else f" in {answers.seconds:,.3g} s"
    settings = f", under {answers.settings}" if answers.settings else ""
    console.print(Text(visible(f"{file.name}, device {answers.device}: {answers.requests:,} requests{time}{settings}")))
    _show_peak(answers, top, console)
    if answers.moments:
        _show_moments(answers, top, console)
    else:
        console.print("Reserved: the file names no segments of PyTorch's allocator.\n")
    _show_growth(answers, top, console)
    _show_refusals(answers, console)
    if answers.moments and answers.as_recorded < answers.requests:
        console.print(
            f"The model of the allocator put {answers.as_recorded:,} of {answers.requests:,} requests where the GPU had them."
        )


def _text(answers: Report, file: Path, top: int) -> str:
    """The report as plain text of 80 columns."""
    written = io.StringIO()
    _show(answers, file, top, Console(file=written, width=80, color_system=None, highlight=False))
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines())


def _show_peak(answers: Report, top: int, console: Console) -> None:
    peak = answers.peak
    where = "" if peak.iteration is None else f", in iteration {peak.iteration}"
    phase = f", {peak.phase}" if peak.phase not in ("", "user") else ""
    owners = table(">bytes", ">share", ">peak without", "what", "allocated by", gap=1)
    for owner in peak.owners[:top]:
        without = "" if owner.without is None else f"{owner.without:,}"
        share = f"{owner.bytes / peak.bytes:.1%}"
        what = "older" if owner.category == Category.UNTRACKED else owner.category
        owners.add_row(f"{owner.bytes:,}", share, without, what, Text(visible(owner.line)))
    rest = peak.owners[top:]
    if rest:
        size = sum(owner.bytes for owner in rest)
        owners.add_row(f"{size:,}", f"{size / peak.bytes:.1%}", "", "", _many(len(rest), "other"))
    _print(f"The peak: {peak.bytes:,} bytes allocated ({bytes_text(peak.bytes)}){where}{phase}", owners, console)
    console.print()


def _show_moments(answers: Report, top: int, console: Console) -> None:
    parts = table("bytes", *[f">{_TITLES[name]}" for name in answers.moments], gap=1)
    for name, text in _PARTS.items():
        values = [getattr(each, name) for each in answers.moments.values()]
        if any(values) or name in ("allocated", "again", "stuck", "reserved"):
            parts.add_row(text, *[f"{value:,}" for value in values], style="bold" if name == "reserved" else "")
    _print("Reserved bytes, and those of them that are not allocated", parts, console)
    console.print()
    name, moment = max(answers.moments.items(), key=lambda item: (item[0] == "out of memory", item[1].stuck))
    if moment.stuck:
        _show_held(_WHEN[name], moment, top, console)


def _show_held(when: str, moment: Unused, top: int, console: Console) -> None:
    lines = table(">stuck", ">largest piece", ">blocks", ">their bytes", "allocated by", gap=1)
    for held in moment.held[:top]:
        others = f" and {held.others:,} more" if held.others else ""
        numbers = (held.stuck, held.largest, held.blocks, held.bytes)
        lines.add_row(*[f"{number:,}" for number in numbers], Text(visible(held.line + others)))
    rest = moment.held[top:]
    if rest:
        sums = [sum(getattr(held, name) for held in rest) for name in ("stuck", "blocks", "bytes")]
        largest = max(held.largest for held in rest)
        lines.add_row(f"{sums[0]:,}", f"{largest:,}", f"{sums[1]:,}", f"{sums[2]:,}", _many(len(rest), "other group"))
    _print(f"{moment.stuck:,} bytes were stuck {when}, beside these blocks", lines, console)
    console.print()


def _list(title: str, rows: list[tuple[str, str]], console: Console) -> None:
    """Print a title, and below it texts, each after a key word."""
    console.print(Text(visible(title), style="bold"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for word, text in rows:
        grid.add_row(f"  {word}", Text(visible(text)))
    console.print(grid)


def _show_growth(answers: Report, top: int, console: Console) -> None:
    found = answers.growth
    if not found.iterations:
        console.print(Text(f"Iterations were not found: {found.how}."))
        console.print()
        return
    rows = [("grows", _grown(each)) for each in found.grown[:top]]
    if not rows:
        rows.append(("grows", "nothing" if found.iterations > LEAST else "too few iterations to say"))
    for came in found.came[:top]:
        rows.append(
            ("added", f"{came.bytes:,} bytes in iteration {came.iteration}, alive to the end: {came.line} ({came.category})")
        )
    for kept in found.kept[:top]:
        rows.append(("kept", f"{kept.bytes:,} bytes into the next one: {kept.line} ({kept.category}), until {kept.until}"))
    for varied in found.varied[:top]:
        how = "larger each time" if varied.rises else f"{varied.sizes:,} sizes in {varied.of:,} iterations"
        rows.append(("varies", f"{varied.least:,} to {varied.most:,} bytes at once, {how}: {varied.line}"))
    if len(set(found.peaks)) > 1:
        rows.append(
            ("peaks", f"{found.peaks[0]:,} in the first, {max(found.peaks):,} at most, {found.peaks[-1]:,} in the last")
        )
    _list(f"{found.iterations:,} iterations, found {found.how}", rows, console)
    console.print()


def _grown(grown: Grown) -> str:
    """The bytes that an iteration adds, the line that allocates them, and their sum."""
    each = f"{grown.each:,} bytes" if grown.each is not None else f"about {grown.bytes // grown.iterations:,} bytes"
    if grown.asked is not None and grown.each != grown.asked:
        each = f"{grown.asked:,} bytes" + ("" if grown.each is None else f", which take {grown.each:,},")
    times = "each time" if grown.iterations == grown.of else f"in {grown.iterations:,} of {grown.of:,}"
    if grown.falls:
        falls = f"they fall {_many(grown.falls, 'time')}, as if reference cycles were collected"
        return f"{each} {times}: {grown.line} ({grown.category}); {grown.bytes:,} bytes at most: {falls}"
    blocks = f"{_many(grown.blocks, 'block')} more" if grown.blocks else "as many blocks, but larger ones"
    return f"{each} {times}: {grown.line} ({grown.category}); {blocks}, {grown.bytes:,} bytes"


def _show_refusals(answers: Report, console: Console) -> None:
    if not answers.refusals:
        console.print(Text("Out of memory: never", style="bold"))
        return
    first = answers.refusals[0]
    state = first.state
    had = f"{state.allocated:,} were allocated, {state.stuck:,} stuck; the driver had {first.left:,}"
    rows = [("had", had if first.capacity is None else f"of {first.capacity:,} bytes {had}")]
    if first.lacking is None:
        limit = "a limit of this process (set_per_process_memory_fraction), or another process took them"
        rows.append(("lacked", f"nothing: the driver had enough; {limit}"))
    elif first.lacking > 0:
        rows.append(("lacked", f"{first.lacking:,} bytes, even if the free ones were in one piece"))
    else:
        rows.append(("lacked", f"nothing: {-first.lacking:,} bytes more than requested were free, but in pieces"))
    rows += [("helps", each) for each in first.helps]
    times = "once" if answers.refused == 1 else f"{answers.refused:,} times"
    _list(f"Out of memory, {times}: the first request was {first.asked:,} bytes at {first.line}", rows, console)


# --- other settings -------------------------------------------------------------------------------------------------------


def _show_outcomes(outcomes: list[Trial], evidence: Evidence, room: int | None, console: Console) -> None:
    capacity = room or recorded_capacity(evidence.recording)
    within = "" if capacity is None else f" within {capacity:,} bytes ({bytes_text(capacity)})"
    limited = any(row.fits is not None for row in outcomes)
    wide = console.width >= _WHOLE
    settings = table("settings", ">reserved", ">change", *[">rounding"] * wide, ">calls", *[">fits"] * limited, gap=1)
    base = outcomes[1]
    for row in outcomes:
        name = row.settings if row.what in ("each", "best") else row.what
        name = f"best found:\n{name or 'no settings'}" if row.what == "best" else name or "no settings"
        others = row.what != "as recorded"
        changes = (row.peak_reserved, base.peak_reserved), (row.peak_allocated, base.peak_allocated)
        whole = others and row.fits is not False and base.fits is not False  # else bytes of failed requests are missing
        shares = [f"{(now - before) / before:+.1%}" if whole and before else "" for now, before in changes]
        fits = "yes" if row.fails is None else f"to {max(row.fails, 0) / len(evidence):.0%}"
        cells = [f"{row.peak_reserved:,}", *shares[: 1 + wide], f"{row.calls:,}", *[fits] * limited]
        shown = Text(visible(name.replace(",", ",\n"), keep="\n"))
        settings.add_row(shown, *cells, style="bold" if row.what == "best" else "")
    _print(f"The same requests under other settings{within}", settings, console)
    failed = outcomes[0].fails
    if failed == -1:
        console.print("As recorded, the blocks from before the recording alone need more than that.")
    elif failed is not None:
        events = evidence.recording.events
        line = evidence.line_of(int(events["stack"][failed]), failed)
        asked = int(events["size"][failed])
        said = f"As recorded, event {failed:,} of {len(evidence):,} is the first request that fails"
        console.print(Text(visible(f"{said}: {asked:,} bytes for {line}.")))
    console.print(
        "Reserved: the peak of reserved bytes. "
        + ("Change and rounding: the changes of the peaks of reserved and allocated bytes" if wide else "Change: its change")
        + ", compared with the recorded settings from the start. Calls: requests to the driver; each waits for it. Memory that "
        "the driver and CUDA's libraries use is not included."
    )
