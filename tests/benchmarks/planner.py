"""``python -m tests.benchmarks.planner``: do plans keep their budgets, and is the order of their times the order of real steps?

For six networks and twenty budgets each: the plan runs under ``memory.limit``, its peak beside the predicted one, and the rank
correlation (Spearman's) of predicted and measured times over the budgets. Ops are measured in this run, too. The different
plans' steps take turns; what a plan takes is the least of any turn, for all that disturbs a step makes it longer. One thread
computes: with more, how they meet is a part of what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import tinygrad_mem as tm
from tests.benchmarks.recompute import ONE_THREAD
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import BudgetError
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Plan, Times, plan

SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {
    "resnet20": (32, (3, 32, 32)),
    "resnet50": (4, (3, 64, 64)),
    "vgg11_bn": (2, (3, 96, 96)),
    "mobilenet_v2": (8, (3, 64, 64)),
    "densenet121": (4, (3, 64, 64)),
    "unet": (2, (3, 64, 64)),
}


def base(name: str) -> Plan:
    """The plan without a budget."""
    named, (n, shape) = NETWORKS[name], SHAPES[name]

    def batch() -> tuple[Any, Any]:
        return tm.randn(n, *shape), tm.randint(0, named.classes, (n, *shape[1:]) if name == "unet" else (n,))

    return plan(
        named.make,
        batch,
        F.cross_entropy,
        lambda parameters: tm.optim.SGD(parameters, lr=0.01, momentum=0.9),
        times=Times("cpu"),
    )


def plans(found: Plan) -> list[Plan]:
    """The plan of each of twenty budgets; those of equal techniques are one."""
    made: dict[Any, Plan] = {}
    chosen = []
    for budget in np.linspace(found.search.smallest().reserved, found.plain.reserved, 20).astype(int).tolist():
        try:
            each = found.within(budget)
        except BudgetError:
            continue
        chosen.append(made.setdefault(each.choice, each))
    return chosen


def step_of(each: Plan) -> tuple[Any, Pool]:
    """A step in a pool of its own under the plan's budget, and that pool, which must be the device's whenever it runs."""
    recipe = each.search.recipe
    cpu = tm.device("cpu")
    cpu.pool = pool = Pool("cpu")
    pool.set_limit(each.budget or 0)
    model = recipe.model()
    optimizer = recipe.optimizer(list(model.parameters()))
    batch = recipe.batch()
    step = each.apply(model, optimizer)
    for _ in range(2):
        step(*batch)

    def run() -> None:
        cpu.pool = pool
        step(*batch)

    return run, pool


def take_turns(steps: list[Callable[[], None]], rounds: int) -> list[float]:
    """Seconds that each step takes at least."""
    least = [float("inf")] * len(steps)
    for _ in range(rounds):
        for i, step in enumerate(steps):
            start = perf_counter()
            step()
            least[i] = min(least[i], perf_counter() - start)
    return least


def row(name: str, rounds: int) -> tuple[str, ...]:
    """The table's row of a network."""
    from scipy.stats import spearmanr

    found = base(name)
    chosen = plans(found)
    different = {each.choice: each for each in chosen}
    cpu = tm.device("cpu")
    own = cpu.pool
    steps = [step_of(each) for each in different.values()]
    kept = sum(pool.peak_used == each.peak for (_, pool), each in zip(steps, different.values(), strict=True))
    least = dict(zip(different, take_turns([step for step, _ in steps], rounds), strict=True))
    cpu.pool = own
    predicted, measured = [each.point.time for each in chosen], [least[each.choice] for each in chosen]
    rank = spearmanr(predicted, measured).statistic
    slowest = int(np.argmax(predicted))
    ratios = predicted[slowest] / min(predicted), measured[slowest] / measured[int(np.argmin(predicted))]
    peaks = f"{kept} of {len(different)}"
    return name, f"{len(chosen)}, {len(different)}", peaks, f"{rank:.2f}", *(f"{ratio:.2f}" for ratio in ratios)


def main() -> None:
    """Print a row a network."""
    from rich.console import Console
    from rich.table import Table

    if any(os.environ.get(name) != "1" for name in ONE_THREAD):  # read when the libraries are imported
        os.execve(sys.executable, [sys.executable, "-m", "tests.benchmarks.planner", *sys.argv[1:]], os.environ | ONE_THREAD)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.planner", description=__doc__)
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every plan")
    options = parser.parse_args()
    table = Table(title="plans for twenty budgets a network, run under memory.limit on the cpu")
    table.add_column("network")
    for title in ("budgets,\nplans", "peaks as\npredicted", "rank\ncorrelation", "slowest / fastest,\npredicted", "\nmeasured"):
        table.add_column(title, justify="right")
    for name in (name for name in SHAPES if options.only in name):
        table.add_row(*row(name, options.rounds))
        print(f"  {name} done", file=sys.stderr, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
