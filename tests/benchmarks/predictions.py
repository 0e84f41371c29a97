"""``python -m tests.benchmarks.predictions``: what a prediction of a PyTorch program costs, and one of the same step of ours.

Each network takes two training steps. Ours runs on ``meta``; PyTorch's program is predicted for a GPU and for the CPU.
"cpu, first": on a machine that has never predicted it, each op is run alone to learn what it takes inside. "cpu, process": the
first prediction in a process on a machine that has learned. Times are processor seconds, the least of some turns. Imports are
measured apart: whoever predicts a PyTorch program imports it anyway.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
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


def on_cpu(workload: Workload) -> Callable[[], object]:
    """The prediction of two steps of PyTorch's program on the CPU."""
    return lambda: pytorch.predict(run_under(torch, workload), device="cpu")


def in_processes(workload: Workload, turns: int) -> tuple[float, float]:
    """Seconds of the first CPU prediction in a process: the least of those whose machine has learned nothing, and of others."""
    first, later = [], []
    command = [sys.executable, "-m", "tests.benchmarks.predictions", "--only", workload.name, "--first"]
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            for found in first, later:
                said = subprocess.check_output(command, env={**os.environ, "TINYGRAD_MEM_CACHE": folder})
                found.append(float(said))
    return min(first), min(later)


def row(workload: Workload, turns: int) -> list[float]:
    """Seconds of our prediction, of PyTorch's on a GPU, on the CPU for the first time, in another process, and again."""
    ours = seconds(lambda: memory.predict(run_under(tm, workload)), turns)
    gpu = seconds(lambda: pytorch.predict(on_gpu(workload)), turns)
    return [ours, gpu, *in_processes(workload, turns), seconds(on_cpu(workload), turns)]


def main() -> None:
    """Print a row a network."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.predictions", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--first", action="store_true", help="print the seconds of one CPU prediction")
    options = parser.parse_args()
    pytorch.predict(lambda: torch.ones(1, device="cuda"))  # it imports parts of PyTorch
    found = [each for each in [*WORKLOADS, *MORE] if options.only.lower() in each.name.lower()]
    if options.first:
        print(seconds(on_cpu(found[0]), 1))
        return
    table = Table(title=f"processor seconds of a prediction; goal: {GOAL:g} times ours and PyTorch's import")
    columns = ("network", "ours", "cuda", "cpu, first", "cpu, process", "cpu, again", "at most")
    for column in columns:
        table.add_column(column, justify="left" if column == "network" else "right")
    imported = importing(options.turns)
    for workload in found:
        figures = row(workload, options.turns)
        texts = [f"{each:.2f}" for each in (*figures, GOAL * figures[0] + imported)]
        table.add_row(workload.name, *texts)
        print(f"  {workload.name}", *texts, file=sys.stderr, flush=True)
    console = Console(width=120)
    console.print(table)
    console.print(f"PyTorch's import: {imported:.2f}")


if __name__ == "__main__":
    main()
