"""``python -m tests.benchmarks.half``: what half precision is worth in seconds, ours and PyTorch's interleaved in one process.

Training steps in float32 and under ``autocast``, with a ``GradScaler`` where that is float16; then matrix products in both,
whose rate on a GPU is that of tensor cores. On the CPU a half is stored, cast, computed in float32: it saves memory, not time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from tests.benchmarks.turns import chosen, duration, interleaved

SIDES = {"cpu": 1024, "cuda": 8192}  # of the matrices


def step_of(framework: Any, workload: Any, device: str, half: str | None, wait: Callable[[], Any]) -> Callable[[], None]:
    """A training step in float32, or under autocast in ``half``."""
    step = workload.build(framework, device)
    scaler = framework.amp.GradScaler(device, enabled=half == "float16")
    options = {"enabled": False} if half is None else {"dtype": getattr(framework, half)}

    def run() -> None:
        step.optimizer.zero_grad()
        with framework.autocast(device, **options):
            loss = step.loss()
        scaler.scale(loss).backward()
        scaler.step(step.optimizer)
        scaler.update()
        wait()

    return run


def product_of(framework: Any, device: str, dtype: str, wait: Callable[[], Any]) -> Callable[[], None]:
    """A product of two square matrices."""
    side = SIDES[device]
    x, y = (framework.ones(side, side, dtype=getattr(framework, dtype), device=device) for _ in range(2))

    def run() -> None:
        _ = x @ y
        wait()

    return run


def rows(device: str, half: str, seconds: float, only: str) -> list[tuple[str, ...]]:
    """(what, ours in float32, in half, PyTorch's in float32, in half, ours / PyTorch's in half, ours in half / in float32)."""
    import torch

    import tinygrad_mem as tm

    wait, their_wait = tm.device(device).synchronize, torch.cuda.synchronize if device == "cuda" else lambda: None

    def measured(run: Callable[..., Any], *of: Any) -> tuple[float, float]:
        return interleaved(run(tm, *of, wait), run(torch, *of, their_wait), seconds / 2)

    found: list[tuple[str, ...]] = []
    for workload in chosen(only):
        single, mixed = (measured(step_of, workload, device, dtype) for dtype in (None, half))
        found.append((workload.name, *map(duration, (single[0], mixed[0], single[1], mixed[1])), *_ratios(single, mixed)))
        print(f"  {workload.name} done", file=sys.stderr, flush=True)
    single, mixed = (measured(product_of, device, dtype) for dtype in ("float32", half))
    rates = (f"{2e-9 * SIDES[device] ** 3 / time:,.0f} G/s" for time in (single[0], mixed[0], single[1], mixed[1]))
    return [*found, (f"product of {SIDES[device]} x {SIDES[device]}", *rates, *_ratios(single, mixed))]


def _ratios(single: tuple[float, float], mixed: tuple[float, float]) -> tuple[str, str]:
    return f"{mixed[0] / mixed[1]:.2f}", f"{mixed[0] / single[0]:.2f}"


def main() -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.half", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=sorted(SIDES))
    parser.add_argument(
        "--half", choices=("float16", "bfloat16"), help="by default autocast's: bfloat16 on the CPU, float16 on a GPU"
    )
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="time a workload, both engines and both precisions together"
    )
    parser.add_argument("--only", default="", help="part of a workload's name")
    options = parser.parse_args()
    half = options.half or {"cpu": "bfloat16", "cuda": "float16"}[options.device]
    table = Table(title=f"training steps and products in float32 and {half}, interleaved, on {options.device}")
    table.add_column("workload")
    titles = (
        "ours\nfloat32",
        f"\n{half}",
        "PyTorch\nfloat32",
        f"\n{half}",
        "ours / PyTorch\nin half",
        f"ours, {half}\n/ float32",
    )
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows(options.device, half, options.seconds, options.only):
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
