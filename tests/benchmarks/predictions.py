"""``python -m tests.benchmarks.predictions``: what a prediction of a PyTorch program costs, and one of the same step of ours.

Each network takes two training steps. Ours runs on ``meta``; PyTorch's program is predicted for a GPU, and for the CPU after a
first prediction has learned what its ops take inside. Times are processor seconds, the least of some turns. PyTorch's import is
measured in processes of its own: whoever predicts a PyTorch program imports it anyway.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import tinygrad_mem as tm
from tests.networks import MORE, WORKLOADS, Workload, run_under
from tinygrad_mem import memory, pytorch

GOAL = 3.0
"""A prediction of PyTorch's program is to take less than this many of ours, and PyTorch's import."""


def seconds(run: Callable[[], object], turns: int) -> float:
    """The least processor seconds of a call."""
    found = []
    for _ in range(turns):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return min(found)


def importing(turns: int) -> float:
    """The least processor seconds of a process that imports PyTorch, above one that does not."""
    program = "import time{}; print(time.process_time())"
    parts = [
        min(float(subprocess.check_output([sys.executable, "-c", program.format(more)])) for _ in range(turns))
        for more in (", torch", "")
    ]
    return parts[0] - parts[1]


def on_gpu(workload: Workload) -> Callable[[], object]:
    """Two steps of PyTorch's program on a GPU."""

    def run() -> object:
        step = workload.build(torch, "cuda")
        return step, [step() for _ in range(2)]

    return run


def row(workload: Workload, turns: int) -> list[float]:
    """Seconds of our prediction, of PyTorch's program on a GPU, on the CPU for the first time, and on the CPU again."""
    ours = seconds(lambda: memory.predict(run_under(tm, workload)), turns)
    gpu = seconds(lambda: pytorch.predict(on_gpu(workload)), turns)
    cpu = lambda: pytorch.predict(run_under(torch, workload), device="cpu")  # noqa: E731
    return [ours, gpu, seconds(cpu, 1), seconds(cpu, turns)]


def main() -> None:
    """Print a row a network."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.predictions", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a network's name")
    options = parser.parse_args()
    table = Table(title=f"processor seconds of a prediction; goal: {GOAL:g} times ours and PyTorch's import")
    for column in ("network", "ours", "cuda", "ratio", "cpu, first", "cpu, again", "ratio"):
        table.add_column(column, justify="left" if column == "network" else "right")
    imported = importing(options.turns)
    pytorch.predict(lambda: torch.ones(1, device="cuda"))  # it imports parts of PyTorch
    for workload in [each for each in [*WORKLOADS, *MORE] if options.only.lower() in each.name.lower()]:
        ours, gpu, first, again = row(workload, options.turns)
        figures = [f"{ours:.2f}", f"{gpu:.2f}", f"{gpu / ours:.2f}", f"{first:.2f}", f"{again:.2f}", f"{again / ours:.2f}"]
        table.add_row(workload.name, *figures)
        print(f"  {workload.name}", *figures, file=sys.stderr, flush=True)
    console = Console(width=120)
    console.print(table)
    console.print(f"PyTorch's import: {imported:.2f}")


if __name__ == "__main__":
    main()
