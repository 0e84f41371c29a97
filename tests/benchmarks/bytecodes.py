"""``python -m tests.benchmarks.bytecodes``: what a small op runs, counted and not timed: bytecodes and calls of each function.

The counts are those of the running Python, and the same in each run on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import tinygrad_mem as tm
from tests.tracing import traced, watch


def counted(run: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """Bytecodes and calls of each function in ``run``, where what is made at first use was made before."""
    bytecodes, calls = Counter[str](), Counter[str]()

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        name = f"{module.removeprefix('tinygrad_mem.')}.{function}"
        if module.startswith("tinygrad_mem."):
            watch(frame, trace)
            calls[name] += event == "call"
            bytecodes[name] += event == "opcode"
            return trace
        return None

    for _ in range(3):
        run()
    with traced(trace):
        run()
    return bytecodes, calls


def main() -> None:
    """Print a table for each op: the functions that it runs, those of the most bytecodes first."""
    a, b, gradient = tm.ones(3, requires_grad=True), tm.ones(3, requires_grad=True), tm.ones(3)
    runs: dict[str, Callable[[], object]] = {
        "a + b": lambda: a + b,
        "a * b": lambda: a * b,
        "(a * b).backward(gradient)": lambda: (a * b).backward(gradient),
    }
    for name, run in runs.items():
        bytecodes, calls = counted(run)
        title = f"{name}: {bytecodes.total()} bytecodes, {calls.total()} calls"
        table = Table("function", "bytecodes", "calls", title=title)
        for function, count in bytecodes.most_common():
            table.add_row(function, str(count), str(calls[function]))
        Console().print(table)


if __name__ == "__main__":
    main()
