"""``python -m tests.benchmarks``: time ratios to PyTorch, both engines interleaved in one process; no test depends on them.

Each setting of BLAS is a process of its own, because OpenBLAS chooses its kernels when NumPy is imported. Engines take turns of
several steps, and the first of a turn do not count: threads of the other's libraries wait in a loop for up to 25 ms.
On the CPU each ratio stands beside its goal. ``--memory``, ``--profile``, ``--half`` and ``--growth`` print other tables.
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
from functools import partial
from typing import Any

from tests.benchmarks.turns import GOALS, chosen, duration, interleaved, warn_if_busy
from tinygrad_mem.cli.doctor import can_run

SETTINGS = {"BLAS as found": {}, "OPENBLAS_CORETYPE=SKYLAKEX": {"OPENBLAS_CORETYPE": "SKYLAKEX"}}


def networks(device: str, seconds: float, only: str) -> list[dict]:
    """The five training steps, an LSTM's and a transformer's; on a GPU both engines wait for the device in each step."""
    import torch

    import tinygrad_mem as tm

    rows = []
    for workload in chosen(only):
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
    if where == "cpu":
        table.add_column("goal", justify="right")
    for setting in results:
        table.add_column(f"{setting}\nours", justify="right")
        table.add_column("\nPyTorch", justify="right")
        table.add_column("\nratio", justify="right", style="bold")
    for index, row in enumerate(next(iter(results.values()))):
        goal = GOALS.get(row["name"]) if where == "cpu" else None
        cells = [] if where != "cpu" else ["" if goal is None else f"{goal:.2f}"]
        for rows in results.values():
            ours, theirs = rows[index]["times"]
            cells += [duration(ours), duration(theirs), verdict(ours / theirs, goal)]
        table.add_row(row["name"], *cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def verdict(ratio: float, goal: float | None) -> str:
    """A ratio, and whether it meets the goal, if there is one."""
    return f"{ratio:.2f}" if goal is None else f"{ratio:.2f} {'met' if ratio <= goal else 'missed'}"


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


def main() -> None:
    """Print the table that was asked for, or be a child of the main one."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="time a workload, both engines together")
    parser.add_argument("--only", default="", help="part of a workload's name")
    parser.add_argument("--memory", action="store_true", help="peak bytes instead of time")
    parser.add_argument("--profile", metavar="NETWORK", help="where the time of a step goes; '' is all seven networks")
    parser.add_argument("--half", action="store_true", help="all numbers stored in half precision")
    parser.add_argument("--growth", action="store_true", help="larger batches, wider and deeper networks, more threads")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    began = time.perf_counter()
    if options.child:
        import torch

        torch.set_num_threads(os.cpu_count() or 1)
        ops = tiny(options.device)  # first: it is Python's time, which the networks' memory and threads disturb
        print(json.dumps(networks(options.device, options.seconds, options.only) + ops))
        return
    if options.memory:
        memory(options.only)
        return
    warn_if_busy()
    if options.profile is not None:
        from tests.benchmarks import profile

        profile.main(options.profile, options.seconds)
    elif options.half:
        from tests.benchmarks import storage

        storage.main(options.only, options.seconds)
    elif options.growth:
        from tests.benchmarks import growth

        growth.main(options.only, options.seconds)
    else:
        show(each_setting(options), options.device)
    print(f"It took {(time.perf_counter() - began) / 60:.1f} minutes.", file=sys.stderr)


def each_setting(options: argparse.Namespace) -> dict[str, list[dict]]:
    """The rows of each setting of BLAS that this CPU can run, each from a process of its own; a GPU uses none of them."""
    able = {name: also for name, also in SETTINGS.items() if not also or can_run(also["OPENBLAS_CORETYPE"])}
    runs = able if options.device == "cpu" else {options.device: {}}
    workloads = len(chosen(options.only))
    expected = len(runs) * workloads * (options.seconds + 2) / 60  # and 2 s to begin; VGG16 at 224 x 224 may take half a minute
    print(f"{len(runs)} settings of BLAS, {workloads} networks: about {expected:.0f} minutes", file=sys.stderr, flush=True)
    results = {}
    for setting, also in runs.items():
        print(setting, file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks", "--child", *sys.argv[1:]],
            env={**os.environ, **also},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        results[setting] = json.loads(done.stdout.splitlines()[-1])
    return results


if __name__ == "__main__":
    main()
