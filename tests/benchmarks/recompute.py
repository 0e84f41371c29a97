"""``python -m tests.benchmarks.recompute``: what recomputing everything costs in time, PyTorch's own checkpoint beside ours.

Four steps take turns, of one thread each: ours and PyTorch's, plain and with every block checkpointed. On a quiet machine the
ratio of the least times is the answer: of each step the least forward, backward and update are added. On a busy one, the median
of neighbours' ratios is: what else runs makes both longer. One more forward, where a backward takes two, is 1.33.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np

from tests.benchmarks.turns import duration

BOUND = 1.34
ONE_THREAD = {"TINYGRAD_MEM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def checkpointed(framework: Any, model: Any) -> None:
    """Let the blocks of a ResNet be recomputed one by one, the features of a VGG in five segments."""
    nn, tool = framework.nn, framework.utils.checkpoint

    class Wrapped(nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return tool.checkpoint(self.inner, x, use_reentrant=False)

    if hasattr(model, "features"):
        layers, segments = list(model.features), []
        ends = [i + 1 for i, layer in enumerate(layers) if type(layer).__name__ == "MaxPool2d"]
        for start, end in zip([0, *ends], ends, strict=False):
            segments.append(Wrapped(nn.Sequential(*layers[start:end])))
        model.features = nn.Sequential(*segments)
        return
    for stage in (model.layer1, model.layer2, model.layer3):
        for name, block in stage.named_children():
            stage._modules[name] = Wrapped(block)


def parts(step: Any) -> list[tuple[float, float]]:
    """(processor, wall) seconds of a step's forward, backward and update."""
    step.optimizer.zero_grad()
    clocks = [(time.process_time(), time.perf_counter())]
    loss = step.framework.nn.functional.cross_entropy(step.model(step.x), step.y)
    clocks.append((time.process_time(), time.perf_counter()))
    loss.backward()
    clocks.append((time.process_time(), time.perf_counter()))
    step.optimizer.step()
    clocks.append((time.process_time(), time.perf_counter()))
    return [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clocks)]


def turns_of(steps: dict[str, Any], seconds: float) -> dict[str, np.ndarray]:
    """Seconds of each step: (turn, part, clock). A plain step and its recomputed one are neighbours."""
    turns: dict[str, list] = {name: [] for name in steps}
    began, pairs = time.perf_counter(), [("ours", "ours, recomputed"), ("PyTorch", "PyTorch, recomputed")]
    while len(turns["ours"]) < 6 or time.perf_counter() - began < seconds:
        for pair in pairs:
            parts(steps[pair[0]])  # does not count: the other engine's data is in the caches
            for name in pair * 3:
                turns[name].append(parts(steps[name]))
    return {name: np.array(rows) for name, rows in turns.items()}


def figures(plain: np.ndarray, again: np.ndarray, clock: int) -> tuple[str, str, str, str]:
    """The least times, their ratio, and the median ratio of neighbours."""
    least = [float(rows.min(0).sum(0)[clock]) for rows in (plain, again)]
    ratios = again.sum(1)[:, clock] / plain.sum(1)[:, clock]
    return duration(least[0]), duration(least[1]), f"{least[1] / least[0]:.2f}", f"{np.median(ratios):.2f}"


def steps_of(workload: Any) -> dict[str, Any]:
    """The four steps."""
    import torch

    import tinygrad_mem as tm

    found: dict[str, Any] = {}
    for name, framework in (("ours", tm), ("PyTorch", torch)):
        for again in (False, True):
            step = workload.build(framework)
            if again:
                checkpointed(framework, step.model)
            found[f"{name}{', recomputed' if again else ''}"] = step
    return found


def main() -> None:
    """Print a row a network and a clock."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from tests.networks import WORKLOADS

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recompute", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="time a workload, all four steps together")
    parser.add_argument("--only", default="", help="part of a workload's name")
    options = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in ONE_THREAD):  # read when the libraries are imported
        os.execve(sys.executable, [sys.executable, "-m", "tests.benchmarks.recompute", *sys.argv[1:]], os.environ | ONE_THREAD)
    torch.set_num_threads(1)
    table = Table(title=f"a step with all blocks recomputed against a plain one, one thread; bound of the ratio: {BOUND}")
    for column in ("workload", "clock", "engine", "plain", "recomputed", "ratio of the least", "median of neighbours'"):
        table.add_column(column, justify="left" if column in ("workload", "clock", "engine") else "right")
    for workload in (each for each in WORKLOADS[2:] if options.only.lower() in each.name.lower()):
        found = turns_of(steps_of(workload), options.seconds)
        for clock, name in enumerate(("processor", "wall")):
            for engine in ("ours", "PyTorch"):
                row = figures(found[engine], found[f"{engine}, recomputed"], clock)
                table.add_row(workload.name, name, engine, *row)
        print(f"  {workload.name} done", file=sys.stderr, flush=True)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
