"""The table of ``README.md`` that says what ran where: a run of the tests counts them, a whole run checks or writes the table.

A row is a part of the project, with the folders that test it; a column is a place where tests run.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[1] / "README.md"
PARTS = {
    "ops, functions and autograd": ("ops", "opinfo", "autograd"),
    "layers, optimizers, data, files, networks": ("nn", "optim", "data", "io", "models", "distributions"),
    "pool, streams, transfers, random numbers": ("devices",),
    "tracker and predictions": ("memory",),
    "mixed precision": ("amp", "half"),
    "recompute, offload, the other techniques": ("recompute", "techniques"),
    "planner, tips, claims, command line, lessons, site": (
        *("plan", "tips", "clinic", "claims", "cli", "site", "tutorials", "benchmarks"),
    ),
    "process groups and data parallel": ("distributed",),
    "failures, interrupts, threads, misuse": ("sturdy",),
    "PyTorch's allocator, snapshots and programs": ("pytorch",),
}
PLACES = {"cpu": "on a CPU", "emulated": "`cuda`, on an emulated device", "gpu": "`cuda`, on a GPU"}
_PART_OF = {folder: part for part, folders in PARTS.items() for folder in folders}
_ROW = re.compile(r"^\| (" + "|".join(map(re.escape, PARTS)) + r") \| (.+) \|$", re.MULTILINE)
_HEAD = "| tests of |"
NONE = "not run"


def part_of(test: str) -> str | None:
    """The row of a test, by its name (``tests/ops/test_sort.py::test_order``)."""
    return _PART_OF.get(test.removeprefix("tests/").split("/")[0])


def table(counts: Counter[tuple[str, str]]) -> str:
    """The table as Markdown: how many tests of a part passed in a place, ``counts[part, place]``."""
    head = f"{_HEAD} {' | '.join(PLACES.values())} |\n|---|{'---:|' * len(PLACES)}\n"
    cells = {part: [counts[part, place] for place in PLACES] for part in PARTS}
    return head + "\n".join(
        f"| {part} | {' | '.join(f'{count:,}' if count else NONE for count in row)} |" for part, row in cells.items()
    )


def documented(text: str) -> Counter[tuple[str, str]]:
    """The counts of the table in ``text``."""
    found: Counter[tuple[str, str]] = Counter()
    for part, row in _ROW.findall(text[text.index(_HEAD) :]):
        for place, cell in zip(PLACES, row.split(" | "), strict=True):
            found[part, place] = 0 if cell == NONE else int(cell.replace(",", ""))
    return found


def wrong(counts: Counter[tuple[str, str]], said: Counter[tuple[str, str]]) -> list[str]:
    """A line for each cell that says more than a run found, by more than a tenth; a place where nothing ran is not judged."""
    ran = {place for (_, place), count in counts.items() if count}
    return [
        f"{part}, {PLACES[place]}: {counts[part, place]:,} tests passed, the page says {said[part, place] or NONE}"
        for part in PARTS
        for place in PLACES
        if place in ran and (counts[part, place] < 0.9 * said[part, place] or (counts[part, place] and not said[part, place]))
    ]


def written(text: str, counts: Counter[tuple[str, str]]) -> str:
    """``text`` with the table of ``counts``; of a place where nothing ran it keeps what it said."""
    ran = {place for (_, place), count in counts.items() if count}
    said = documented(text)
    merged = Counter({key: (counts if key[1] in ran else said)[key] for key in said.keys() | counts.keys()})
    begin = text.index(_HEAD)
    return text[:begin] + table(merged) + text[text.index("\n\n", begin) :]
