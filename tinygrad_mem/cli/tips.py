"""``python -m tinygrad_mem tips``: measures what each tip does to bytes, time and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

import tinygrad_mem as tm

from ..errors import ArgumentError, DeviceError
from ..memory import Comparison, Effect
from ..techniques.catalogue import Technique, of_tip
from ..text import visible
from ..tips import TIPS, Failed, Measured, Tip, measure, report, verdict
from ..tips.table import STYLES, table, timelines
from ..tips.verdict import Row, biggest, reason, result_words, summary
from .networks import network_of, told_elsewhere
from .one_by_one import check_names, ended, one_by_one
from .screen import screen

BIGGEST = 10
"""The number of tips in the table, unless all are asked for."""
PAGE = Path("report.html")


def run(
    *,
    tip: list[str] | None,
    network: str | None,
    sample: str | None,
    tokens: str | None,
    batch_size: int | None,
    device: str,
    picture: Path | None,
    html: Path | None,
    every: bool,
    as_json: bool,
) -> int:
    """Measure the tips, print the biggest effects or all, write the page: where all tips run and print a table, to ``PAGE``.

    Returns 130 after Ctrl-C, 1 if the page was not written, else 0.
    """
    names = tip or []
    chosen = _choose(names, network, sample, tokens, batch_size)
    where = tm.device(device)
    if where.kind == "meta":
        raise DeviceError("tips on meta have bytes and no numbers to compare: use cpu or cuda")
    where.require()  # once, not for each tip
    if picture is not None and len(chosen) != 1:
        raise ArgumentError(f"--picture shows one tip, named by --tip; {len(chosen)} were asked for")
    console = screen()
    rows, interrupted = one_by_one(
        "tips", chosen, lambda each: (each, measure(each, device)), lambda each: each.name, lambda row: verdict(row[1]).text
    )
    if as_json:
        print(json.dumps([_data(each, results) for each, results in rows], indent=2))
    elif rows:
        short = not names and not every and len(rows) > BIGGEST
        console.print(table(biggest(rows, BIGGEST) if short else rows, console.width))
        if names:
            _show(rows, console)
        if short:
            myths = [each.name for each, results in rows if verdict(results).kind == "myth"]
            console.print(Text(f"Myths, which change nothing: {', '.join(myths) or 'none'}."))
            console.print(Text(f"These are the {BIGGEST} tips with the biggest effects; --all shows every case of all."))
        console.print(Text(summary(rows)))
        if said := told_elsewhere(network):
            console.print(Text(visible(said)))
    if picture is not None:
        for each, (result, *_) in rows:
            if isinstance(result, Measured):
                result.before.track.plot(picture, result.after.track, title=f"{each.name}: {each.says}")
    page = (None if names or as_json else PAGE) if html is None else html
    return ended("tips", rows, len(chosen), interrupted, None if page == Path() else page, report.write)


def _choose(names: list[str], network: str | None, sample: str | None, tokens: str | None, batch_size: int | None) -> list[Tip]:
    check_names("tip", names, TIPS)
    named = None if network is None else network_of(network, sample, tokens)
    if named is None and (sample or tokens) is not None:
        option = "--input" if sample is not None else "--tokens"
        raise ArgumentError(f"{option} describes a sample of your network: name the network with --network")
    found = [tip for tip in TIPS.values() if tip.name in names or not names]
    if named is not None:
        found = [tip for tip in found if tip.free]
        if not found:
            raise ArgumentError(f"{', '.join(names)}: about a network of its own, so --network cannot name another")
    return [tip.on(named, batch_size) for tip in found]


def _show(rows: list[Row], console: Console) -> None:
    """Print the advice, the explanation, the timelines and the changed blocks of each tip."""
    for tip, results in rows:
        judged = verdict(results)
        console.print(Text(f"\n{tip.name}: ", "bold").append(judged.text, STYLES[judged.kind]))
        console.print(Text(f"The advice: {tip.says}", "italic"))
        if row := of_tip(tip.name):
            console.print(Text(_of_the_catalogue(row)))
        for result in results:
            if result.when:
                console.print(Text(f"\n{result.when}", "bold"))
            if isinstance(result, Failed):
                console.print(Text(result.message, "red"))
                continue
            console.print(Text(f"{reason(result)}\n"))
            timelines(result, console)
            console.print(Text(str(result.comparison) + "\n"))


def _of_the_catalogue(row: Technique) -> str:
    """A summary of the catalogue's row for the technique that a tip measures."""
    lessons = ", ".join(f"tutorials/{name}.py" for name in row.lessons)
    parts = [f"{row.title} ({', '.join(row.use)}). Smaller: {row.memory}. Price: {row.price}. Numbers: {row.equal}."]
    return " ".join([*parts, f"Lessons: {lessons}."] if lessons else parts)


def _data(tip: Tip, results: list[Measured | Failed]) -> dict[str, Any]:
    """A tip as JSON."""
    judged = verdict(results)
    return {
        "tip": tip.name,
        "says": tip.says,
        "technique": None if (row := of_tip(tip.name)) is None else row.name,
        "verdict": judged.kind,
        "text": judged.text,
        "cases": [_case(result) for result in results],
    }


def _case(result: Measured | Failed) -> dict[str, Any]:
    if isinstance(result, Failed):
        return {"when": result.when, "failed": result.kind, "message": result.message}
    return {
        "when": result.when,
        **_effects(result.comparison),
        "predicted": _effects(result.predicted),
        "predicted_exactly": result.exact,
        "reserved": _effect(result.reserved),
        "time": result.time,
        "result": result_words(result),
        "accuracies": result.accuracies,
        "distance": result.distance if result.distance is None or result.distance < float("inf") else None,
        "reason": reason(result),
    }


def _effects(found: Comparison) -> dict[str, dict[str, int]]:
    return {name: _effect(effect) for name, effect in found.effects.items()}


def _effect(effect: Effect) -> dict[str, int]:
    return {"before": effect.before, "after": effect.after, "change": effect.change}
