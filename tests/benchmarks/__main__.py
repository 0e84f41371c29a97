"""``python -m tests.benchmarks``: time ratios to PyTorch, both engines interleaved in one process; no test depends on them.

Each setting of BLAS is a process of its own, because OpenBLAS chooses its kernels when NumPy is imported. Engines take turns of
several steps, and the first of a turn do not count: threads of the other's libraries wait in a loop for up to 25 ms.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

from tinygrad_mem.cli.doctor import can_run

TURN = 0.06  # seconds of steps, at least, that do not count, and again that do
SETTINGS = {"BLAS as found": {}, "OPENBLAS_CORETYPE=SKYLAKEX": {"OPENBLAS_CORETYPE": "SKYLAKEX"}}


def interleaved(ours: Callable[[], Any], theirs: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Median seconds of one call of each, in turns for about ``seconds`` in all; a turn begins with calls that do not count."""
    times: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    while len(times[0]) < 4 or time.perf_counter() - began < seconds:
        for run, row in zip((ours, theirs), times, strict=True):
            for counts in (False, True):
                turn = time.perf_counter()
                while True:
                    start = time.perf_counter()
                    run()
                    end = time.perf_counter()
                    if counts:
                        row.append(end - start)
                    if end - turn > TURN:
                        break
    return median(times[0]), median(times[1])


def networks(device: str, seconds: float, only: str) -> list[dict]:
    """The five training steps, an LSTM's and a transformer's; on a GPU both engines wait for the device in each step."""
    import torch

    import tinygrad_mem as tm
    from tests.networks import MORE, WORKLOADS

    rows = []
    for workload in [*WORKLOADS, *(each for each in MORE if each.module == "lstm" or each.network == "GPT")]:
        if only and only.lower() not in workload.name.lower():
            continue
        steps = [workload.build(tm, device), workload.build(torch, device)]

        def ours(step: Any = steps[0]) -> None:
            step()
            tm.device(device).synchronize()

        def theirs(step: Any = steps[1]) -> None:
            step()
            if device != "cpu":
                torch.cuda.synchronize()

        rows.append({"name": workload.name, "times": interleaved(ours, theirs, seconds)})
        print(f"  {workload.name} done", file=sys.stderr, flush=True)
    return rows


def tiny(device: str) -> list[dict]:
    """Recorded elementwise ops on three numbers: what an op costs beside its arithmetic; the second one saves its operands.

    The least of many short runs, in turns: what else the machine does is not in it.
    """
    import torch

    import tinygrad_mem as tm

    a, b = (tm.ones(3, device=device, requires_grad=True) for _ in range(2))
    c, d = (torch.ones(3, device=device, requires_grad=True) for _ in range(2))
    rows = []
    for name, op in (("a + b", operator.add), ("a * b", operator.mul)):
        runs = [timeit.Timer(partial(op, *pair)) for pair in ((a, b), (c, d))]
        found = [[run.timeit(1000) / 1000 for run in runs] for _ in range(400)]
        rows.append({"name": f"{name}, 3 elements, recorded", "times": tuple(map(min, zip(*found, strict=True)))})
    return rows


def show(results: dict[str, list[dict]], where: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"one training step, tinygrad_mem against PyTorch, interleaved, on {where}")
    table.add_column("workload")
    for setting in results:
        table.add_column(f"{setting}\nours", justify="right")
        table.add_column("\nPyTorch", justify="right")
        table.add_column("\nratio", justify="right", style="bold")
    for index, row in enumerate(next(iter(results.values()))):
        cells = []
        for rows in results.values():
            ours, theirs = rows[index]["times"]
            cells += [duration(ours), duration(theirs), f"{ours / theirs:.2f}"]
        table.add_row(row["name"], *cells)
    Console().print(table)


def memory(only: str) -> None:
    """Peak bytes of two steps, the model's construction included: PyTorch's and ours on the cpu, and ours predicted."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from tests.networks import MORE, WORKLOADS, our_peak, run_under
    from tests.pytorch_memory import pytorch_peak

    table = Table(title="peak bytes of a training step, tinygrad_mem against PyTorch eager")
    for column in ("workload", "predicted", "measured", "PyTorch", "ratio"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for workload in (each for each in [*WORKLOADS, *MORE] if only.lower() in each.name.lower()):
        predicted, measured = our_peak(workload, "meta"), our_peak(workload, "cpu")
        theirs = pytorch_peak(run_under(torch, workload))
        table.add_row(workload.name, *(f"{n:,}" for n in (predicted, measured, theirs)), f"{measured / theirs:.3f}")
        print(f"  {workload.name} done", file=sys.stderr, flush=True)
    Console().print(table)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def main() -> None:
    """Run the child for each setting and print the table, or be the child."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="time a workload, both engines together")
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--memory", action="store_true", help="peak bytes instead of time")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        ops = tiny(options.device)  # first: it is Python's time, which the networks' memory and threads disturb
        print(json.dumps(networks(options.device, options.seconds, options.only) + ops))
        return
    if options.memory:
        memory(options.only)
        return
    results = {}
    for setting, variables in SETTINGS.items():
        if variables and not can_run(variables["OPENBLAS_CORETYPE"]):
            print(f"{setting} is left out: this CPU cannot run it", file=sys.stderr, flush=True)
            continue
        print(setting, file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks", "--child", *sys.argv[1:]],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results[setting] = json.loads(done.stdout.splitlines()[-1])
    show(results, options.device)


if __name__ == "__main__":
    main()
