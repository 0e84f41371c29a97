"""``python -m tests.benchmarks.planner``: do plans keep their budgets, and is the order of their times the order of real steps?

For six networks and twenty budgets each: the plan runs under ``memory.limit``, its peak beside the predicted one, and the rank
correlation (Spearman's, equal ones share a rank) of predicted and measured times over the budgets. The networks are deep ones,
whose plans differ by a fifth of a step and more. Those of MobileNet and DenseNet differ by a tenth, where two neighbours that
change places cost a tenth or two of the correlation; those of VGG and U-Net differ by one to three hundredths, which is noise.

Other work on the machine makes a step longer, for seconds on end. So ops are measured several times before anything is planned,
and count by their least; the steps of the different plans take turns, in another order each round, and count by how long they
take beside those just before and after them. All are seconds of the processor, with one thread: with more, how they meet is a
part of what is measured. Half of the rounds correlated with the other half says how much noise is left: where that is low, the
machine was too busy to tell.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tinygrad_mem as tm
from tests.benchmarks.recompute import ONE_THREAD
from tinygrad_mem import nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import BudgetError, OutOfMemoryError
from tinygrad_mem.memory import limit
from tinygrad_mem.models.bert import MaskedLanguageModel
from tinygrad_mem.models.gpt import GPT
from tinygrad_mem.models.resnet import CifarResNet, resnet20
from tinygrad_mem.models.squeezenet import squeezenet
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Plan, Times, plan

BUDGETS = 20
PASSES = 6  # that ops are measured
CONTEXT, TOKENS = 64, 96


def mlp() -> nn.Module:
    """24 equal layers."""
    return nn.Sequential(*[m for _ in range(24) for m in (nn.Linear(256, 256), nn.GELU())], nn.Linear(256, 10))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # how it is made, the shape of a batch
    "mlp": (mlp, (512, 256)),
    "resnet20": (resnet20, (8, 3, 32, 32)),
    "resnet56": (partial(CifarResNet, 9), (4, 3, 32, 32)),
    "squeezenet": (squeezenet, (4, 3, 96, 96)),
    "gpt": (partial(GPT, 8, 4, 64, CONTEXT, TOKENS), (8, CONTEXT)),
    "bert": (partial(MaskedLanguageModel, 8, 4, 64, CONTEXT, TOKENS), (8, CONTEXT)),
}


def base(name: str, allow: str) -> Plan:
    """The plan without a budget, of ops measured in several passes."""
    make, shape = NETS[name]

    def batch() -> tuple[Any, Any]:
        if shape[1:] == (CONTEXT,):
            return tm.randint(0, TOKENS, shape), tm.randint(0, TOKENS, shape)
        return tm.randn(*shape), tm.randint(0, 10, shape[:1])

    def loss(output: Any, target: Any) -> Any:
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    times = Times("cpu")
    plan(make, batch, loss, sgd, times=times)
    for _ in range(PASSES - 1):
        times.again()
    return plan(make, batch, loss, sgd, allow=allow, times=times)


def sgd(parameters: list) -> Any:
    """The optimizer."""
    return tm.optim.SGD(parameters, lr=0.01, momentum=0.9)


def plans(found: Plan) -> list[Plan]:
    """The plan of each budget that something fits into; those of equal techniques are one."""
    chosen = []
    for budget in np.linspace(found.search.smallest().reserved, found.plain.reserved, BUDGETS).astype(int).tolist():
        try:
            chosen.append(found.within(budget))
        except BudgetError:
            continue
    return chosen


def step_of(each: Plan) -> tuple[Callable[[], None], Pool]:
    """A step in a pool of its own, and that pool, which must be the device's whenever it runs; two have been taken."""
    recipe = each.search.recipe
    cpu = tm.device("cpu")
    cpu.pool = pool = Pool("cpu")

    def run() -> None:
        cpu.pool = pool
        step(*batch)

    with limit(each.budget or 0, device="cpu"):
        model = recipe.model()
        optimizer = recipe.optimizer(list(model.parameters()))
        batch = recipe.batch()
        step = each.apply(model, optimizer)
        for _ in range(2):
            run()
    pool.set_limit(each.budget or 0)  # for the turns too, which come when other pools have been the device's
    return run, pool


def kept(each: Plan) -> tuple[bool, bool]:
    """Do two steps of the plan stay within its budget, and do they have the predicted peak?"""
    try:
        _, pool = step_of(each)
    except OutOfMemoryError:
        return False, False
    return pool.peak_total <= (each.budget or 0), pool.peak_used == each.peak


def take_turns(steps: list[Callable[[], None]], seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """(which step, its seconds of the processor) of every turn, in the order in which they were taken."""
    turns: list[tuple[int, float]] = []
    end, order = time.monotonic() + seconds, list(range(len(steps)))
    while time.monotonic() < end or len(turns) < 6 * len(steps):
        random.shuffle(order)
        for i in order:
            start = time.process_time()
            steps[i]()
            turns.append((i, time.process_time() - start))
    which, spent = zip(*turns, strict=True)
    return np.array(which), np.array(spent)


def levelled(which: np.ndarray, spent: np.ndarray) -> np.ndarray:
    """How long each step takes, as multiples: the median of its turns, each over what the machine was like just then.

    What it was like is the median of a round's turns around it, each over what its own step takes: found by going round.
    """
    logs, steps = np.log(spent), int(which.max()) + 1
    own, half = np.zeros(steps), max(steps // 2, 4)
    for _ in range(10):
        rest = logs - own[which]
        level = np.array([np.median(rest[max(0, i - half) : i + half + 1]) for i in range(len(rest))])
        own = np.array([np.median((logs - level)[which == k]) for k in range(steps)])
    return np.exp(own)


def row(name: str, allow: str, seconds: float) -> tuple[str, ...]:
    """The table's row of a network."""
    chosen = plans(base(name, allow))
    own = tm.device("cpu").pool
    inside, as_predicted = (sum(each) for each in zip(*map(kept, chosen), strict=True))
    different = {each.choice: each for each in chosen}
    number = {choice: i for i, choice in enumerate(different)}
    which, spent = take_turns([step_of(each)[0] for each in different.values()], seconds)
    tm.device("cpu").pool = own
    over_budgets = [number[each.choice] for each in chosen]
    measured = levelled(which, spent)[over_budgets]
    rounds = np.arange(len(which)) // len(different) % 2
    halves = [levelled(which[rounds == k], spent[rounds == k])[over_budgets] for k in (0, 1)]
    predicted = np.array([each.point.time for each in chosen])
    slowest, fastest = int(np.argmax(predicted)), int(np.argmin(predicted))
    ratios = [times[slowest] / times[fastest] for times in (predicted, measured)]
    ranks = [_alike_in_order(*pair) for pair in ((predicted, measured), halves)]
    counts = f"{len(chosen)}, {len(different)}", f"{inside}", f"{as_predicted}"
    return name, *counts, f"{len(which) // len(different)}", *(f"{value:.2f}" for value in (*ranks, *ratios))


def _alike_in_order(x: Any, y: Any) -> float:
    """Spearman's correlation of ranks."""
    from scipy.stats import spearmanr

    found: Any = spearmanr(x, y)
    return found.statistic


def main() -> None:
    """Print a row a network."""
    from rich.console import Console
    from rich.table import Table

    if any(os.environ.get(name) != "1" for name in ONE_THREAD):  # read when the libraries are imported
        os.execve(sys.executable, [sys.executable, "-m", "tests.benchmarks.planner", *sys.argv[1:]], os.environ | ONE_THREAD)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.planner", description=__doc__)
    parser.add_argument("--only", default="", help="part of a network's name")
    parser.add_argument("--allow", default="identical", help="what plans may do to numbers")
    parser.add_argument("--seconds", type=float, default=90.0, help="that the steps of a network take turns")
    options = parser.parse_args()
    table = Table(title=f"plans for {BUDGETS} budgets a network, run under memory.limit on the cpu ({options.allow})")
    table.add_column("network")
    titles = ("budgets,\nplans", "budgets\nkept", "peaks as\npredicted", "rounds", "rank\ncorrelation", "of half\nthe rounds")
    for title in (*titles, "slowest / fastest,\npredicted", "\nmeasured"):
        table.add_column(title, justify="right")
    for name in (name for name in NETS if options.only in name):
        start = time.monotonic()
        table.add_row(*row(name, options.allow, options.seconds))
        print(f"  {name} done in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
