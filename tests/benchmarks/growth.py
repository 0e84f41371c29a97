"""``python -m tests.benchmarks --growth``: ours / PyTorch's as batch, width, depth and threads grow.

Each number of threads is a process of its own. Ratios that differ from that of the network as it is by more than a quarter
are marked: there one engine gains more than the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.turns import chosen, in_about
from tests.networks import Workload

BATCHES = (1, 4, 16, 64, 256)
WIDER = {  # arguments of a network of twice the width; the others have no such argument
    "MLP": {"sizes": (784, 2048, 2048, 10)},
    "LSTMLanguageModel": {"width": 512, "hidden": 512},
    "GPT": {"width": 512},
}
DEEPER = {  # of twice the depth
    "MLP": {"sizes": (784, 1024, 1024, 1024, 1024, 10)},
    "LSTMLanguageModel": {"layers": 2},
    "GPT": {"layers": 4},
}
AS_IT_IS = "as it is"
LONGEST = 8.0  # seconds of a step of both engines, beyond which no larger batch is tried
STAYS = 1.25  # a ratio that changes by a smaller factor stays


def grown(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """(what has grown, the network): as it is, wider, deeper; then batches, from the smallest to the largest."""
    yield AS_IT_IS, workload
    if workload.network in WIDER:
        yield "twice the width", replace(workload, arguments=workload.arguments | WIDER[workload.network])
    if workload.network in DEEPER:
        yield "twice the depth", replace(workload, arguments=workload.arguments | DEEPER[workload.network])
    if workload.network == "resnet20":  # three blocks a stage
        yield "twice the depth", replace(workload, network="CifarResNet", arguments={"blocks": 6})
    for batch in BATCHES:
        if batch != workload.shape[0]:
            yield f"batch {batch}", replace(workload, shape=(batch, *workload.shape[1:]))


def ratios(only: str, seconds: float) -> dict[str, dict[str, float | None]]:
    """Ratios by network and by what has grown, in this process; ``None`` where a step would take too long."""
    import torch

    import tinygrad_mem as tm

    found: dict[str, dict[str, float | None]] = {}
    for workload in chosen(only):
        row, last = found.setdefault(workload.name, {}), (1, 0.0)  # last: a batch and seconds of its steps
        for what, larger in grown(workload):
            batch = larger.shape[0]
            if what.startswith("batch") and last[1] * batch / last[0] > LONGEST:
                row[what] = None
                continue
            ours, theirs = in_about(larger.build(tm), larger.build(torch), seconds)
            row[what] = ours / theirs
            if what.startswith("batch"):
                last = batch, ours + theirs
            print(f"  {workload.name}, {what}: {ours / theirs:.2f}", file=sys.stderr, flush=True)
    return found


def child(only: str, seconds: float, threads: int) -> Any:
    """:func:`ratios` of another process, with so many threads."""
    print(f"{threads} thread(s)", file=sys.stderr, flush=True)
    names = ("TINYGRAD_MEM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    code = f"import json; from tests.benchmarks import growth; print(json.dumps(growth.ratios({only!r}, {seconds!r})))"
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def where_not(row: list[float | None], base: list[float | None], threads: list[int]) -> str:
    """In words, where ratios differ from those of the network as it is; empty where they stay."""
    found = []
    for ratio, before, count in zip(row, base, threads, strict=True):
        if ratio is None or before is None:
            continue
        change = ratio / before
        if not 1 / STAYS <= change <= STAYS:
            found.append(f"{count} thread{'s' * (count > 1)}: {'slower' if change > 1 else 'faster'}, {change:.2f} times")
    return "; ".join(found)


def main(only: str, seconds: float) -> None:
    """Print the table."""
    threads = [count for count in (1, 2, 4, 8) if count <= (os.cpu_count() or 1)]
    steps = len(threads) * sum(len(list(grown(workload))) for workload in chosen(only))
    print(f"{steps} steps to measure: up to {steps * (seconds + 1) / 60:.0f} minutes", file=sys.stderr, flush=True)
    results = [child(only, seconds, count) for count in threads]
    table = Table(title="ours / PyTorch's time of a training step, as networks grow")
    table.add_column("network")
    table.add_column("what has grown")
    for count in threads:
        table.add_column(f"{count} thread{'s' * (count > 1)}", justify="right")
    table.add_column("where the ratio does not stay")
    for name, rows in results[0].items():
        base = [result[name][AS_IT_IS] for result in results]
        for what in rows:
            row = [result[name][what] for result in results]
            cells = ["too long" if ratio is None else f"{ratio:.2f}" for ratio in row]
            table.add_row(name if what == AS_IT_IS else "", what, *cells, where_not(row, base, threads))
        table.add_section()
    Console(width=140).print(table)
