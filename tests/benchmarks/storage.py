"""``python -m tests.benchmarks --half``: training steps of networks whose numbers are all stored in half precision.

Parameters, inputs, gradients and the optimizer's state are bfloat16 or float16, as ``model.to(dtype)`` makes them; float32
stands beside. (``python -m tests.benchmarks.half`` is about autocast, which stores parameters in float32.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import tinygrad_mem as tm
from tests.benchmarks.turns import chosen, duration, in_about
from tests.networks import Step, Workload

DTYPES = ("float32", "bfloat16", "float16")


def stored(workload: Workload, framework: Any, dtype: str) -> Step:
    """A training step with all numbers stored in ``dtype``."""
    step, kind = workload.build(framework), getattr(framework, dtype)
    step.model.to(kind)
    if not workload.tokens:
        step.x = step.x.to(kind)
    return step


def refusal(step: Step) -> str:
    """The first line of what an engine says when it cannot run a step; empty if it can."""
    try:
        step()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def row(workload: Workload, seconds: float) -> Iterator[str]:
    """Ours, PyTorch's and their ratio in each dtype; in place of times what PyTorch says where it does not run a step."""
    for dtype in DTYPES:
        ours, theirs = (stored(workload, framework, dtype) for framework in (tm, torch))
        refused = refusal(theirs)
        if refused:
            yield from ("", f"does not: {refused}", "")
            continue
        mine, other = in_about(ours, theirs, seconds)
        yield from (duration(mine), duration(other), f"{mine / other:.2f}")
        print(f"  {workload.name}, {dtype} done", file=sys.stderr, flush=True)


def main(only: str, seconds: float) -> None:
    """Print the table."""
    table = Table(title="one training step with all numbers stored in a dtype, interleaved, on the CPU")
    table.add_column("network")
    for dtype in DTYPES:
        for title in (f"{dtype}\nours", "\nPyTorch", "\nratio"):
            table.add_column(title, justify="right", style="bold" if title == "\nratio" else None)
    for workload in chosen(only):
        table.add_row(workload.name, *row(workload, seconds))
    Console(width=140).print(table)
