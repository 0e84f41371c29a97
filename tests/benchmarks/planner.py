"""``python -m tests.benchmarks.planner``: do plans keep their budgets, and is the order of their times the order of real steps?

For six networks and twenty budgets each: the plan runs under ``memory.limit``, its peak beside the predicted one, and the rank
correlation of predicted and measured times over the different plans, whose steps take turns.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

import tinygrad_mem as tm
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import BudgetError
from tinygrad_mem.models.names import NETWORKS
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Plan, plan

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

    return plan(named.make, batch, F.cross_entropy, lambda parameters: tm.optim.SGD(parameters, lr=0.01, momentum=0.9))


def plans(found: Plan) -> dict[Any, Plan]:
    """The different plans of twenty budgets, and for how small a budget each was made."""
    chosen: dict[Any, Plan] = {}
    for budget in np.linspace(found.search.smallest().peak, found.plain.reserved, 20).astype(int).tolist():
        try:
            each = found.within(budget)
        except BudgetError:
            continue
        chosen.setdefault(each.choice, each)
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


def ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def main() -> None:
    """Print a row a network."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.planner", description=__doc__)
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--rounds", type=int, default=7, help="turns of every plan")
    options = parser.parse_args()
    table = Table(title="plans for twenty budgets a network, run under memory.limit on the cpu")
    for name in (
        "network",
        "plans",
        "peaks as predicted",
        "rank correlation of times",
        "slowest / plain, predicted",
        "measured",
    ):
        table.add_column(name, justify="left" if name == "network" else "right")
    for name in (name for name in SHAPES if options.only in name):
        found = base(name)
        chosen = list(plans(found).values())
        own = tm.device("cpu").pool
        steps = [step_of(each) for each in chosen]
        equal = sum(pool.peak_used == each.peak for (_, pool), each in zip(steps, chosen, strict=True))
        spent: list[list[float]] = [[] for _ in steps]
        for _ in range(options.rounds):
            for row, (step, _) in zip(spent, steps, strict=True):
                start = time.process_time()
                step()
                row.append(time.process_time() - start)
        tm.device("cpu").pool = own
        measured, predicted = [median(row) for row in spent], [each.point.time for each in chosen]
        rank = np.corrcoef(ranks(measured), ranks(predicted))[0, 1] if len(chosen) > 2 else float("nan")
        plain = measured[int(np.argmin(predicted))]
        table.add_row(
            name,
            str(len(chosen)),
            f"{equal} of {len(chosen)}",
            f"{rank:.2f}",
            f"{max(predicted) / found.plain.time:.2f}",
            f"{measured[int(np.argmax(predicted))] / plain:.2f}",
        )
        print(f"  {name} done", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
