"""``estimate --ranks``: the memory of each rank of data-parallel training, with what ZeRO divides among the ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import tinygrad_mem.distributed as dist

from .. import memory, nn
from ..distributed.optim import ZeroRedundancyOptimizer
from ..distributed.zero import divided
from ..interrupts import context
from ..memory.render.terminal import peak_table
from ..memory.sizes import bytes_text
from ..models.names import Named
from ..models.precision import Step
from ..text import visible
from .estimate_layers import say_if_it_fits
from .estimate_options import EstimateOptions
from .networks import unwrapped
from .screen import screen, with_columns

ZERO = (
    "data parallel: nothing is divided",
    "ZeRO 1: optimizer state is divided",
    "ZeRO 2: optimizer state and gradients are divided",
    "ZeRO 3: optimizer state, gradients and parameters are divided",
)
TRAINING = "training"
_SIZES = 36  # characters of the columns of peak and reserved bytes, and of the gaps
_ROWS = 12  # different ranks that are shown: those with the largest peaks


def run(asked: EstimateOptions, named: Named, ranks: int) -> int:
    """Predict every different rank, and print. Returns 1 if one needs more than the budget, else 0."""
    count, loss = 0, ""

    def steps() -> None:
        nonlocal count, loss
        dist.init_process_group()
        step = Step(asked.precision, "cuda")  # loss scaling as on a GPU
        model = step.make(named.make)
        count = sum(p.numel() for p in model.parameters())
        wrapped, update, alone = parallel(model, asked.rule, step.options, asked.zero)
        memory.mark(TRAINING)
        loss = step.train(wrapped, update, named, asked.batch, asked.accumulate, alone)

    found = memory.predict(steps, like=asked.on, world_size=ranks, ranks="all").since(TRAINING)
    title = f"{asked.network} on {ranks} ranks, batch {asked.batch} on each, {asked.on}; {ZERO[asked.zero]}"
    said = f"The network has {count:,} parameters. The loss is {loss}."
    return answer(found, asked, title, said, parameters=count, loss=loss)


def answer(found: memory.AllRanks, asked: EstimateOptions, title: str, said: str, **facts: Any) -> int:
    """Print the memory of all ranks from the mark :data:`TRAINING` on. Returns 1 if one needs more than the budget, else 0.

    Args:
        said: a sentence about the network.
        facts: about it, for ``--json``.
    """
    largest, room = max(found, key=lambda each: each.peak), asked.room
    fits = None if room is None else all(each.track.fits(room, each.since) for each in found)
    if asked.picture is not None:
        found.plot(asked.picture, title=title)
    if asked.as_json:
        options = {name: getattr(asked, name) for name in ("network", "ranks", "zero")}
        options |= {"batch_size": asked.batch, "device": asked.on}
        different = [
            {"ranks": each.ranks, "by_category": each.used, "peak_used": each.peak, "peak_reserved": each.reserved}
            | {"peak_with_the_making": each.track.peak}
            for each in found
        ]
        print(json.dumps({**options, **facts, "different": different, "budget": room, "fits": fits}))
    else:
        console = screen()
        _show(title, found, largest, said, console)
        say_if_it_fits("every rank fits", fits, largest.peak, room, console)
    return int(fits is False)


def parallel(
    model: nn.Module, rule: Callable[..., Any], options: dict[str, Any], zero: int
) -> tuple[nn.Module, Any, Callable[[], AbstractContextManager]]:
    """The model on several ranks, its optimizer, and the region in which gradients are not averaged.

    What the making of the whole model reserved is given back before training.
    """
    wrapped = divided(model, zero)
    if zero > 1:
        memory.empty_cache()
        return wrapped, rule(model.parameters(), **options), partial(_alone, model)
    if zero:
        kind, given = unwrapped(rule)
        return wrapped, ZeroRedundancyOptimizer(model.parameters(), kind, **given, **options), wrapped.no_sync
    return wrapped, rule(model.parameters(), **options), wrapped.no_sync


@context
def _alone(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _show(title: str, found: memory.AllRanks, largest: memory.Alike, said: str, console: Console) -> None:
    console.print(Text(visible(title), "bold"))
    console.print(_peaks(found, console.width))
    shown = _shown(found)
    if rest := [each for each in found if each not in shown]:
        sizes, others = [each.peak for each in rest], sum(len(each.ranks) for each in rest)
        console.print(f"{others} other ranks have peaks from {min(sizes):,} to {max(sizes):,} bytes.\n")
    moment = largest.track.at_peak(TRAINING)
    console.print(peak_table(moment, f"the largest peak, {found.label(largest)}, in {moment.phase} of the second step"))
    console.print(said)
    if largest.track.peak > largest.peak:
        console.print(
            f"Before it is divided, each rank makes the whole network, with a peak of {largest.track.peak:,} bytes. The "
            "numbers above are of the time after it."
        )


def _shown(found: memory.AllRanks) -> list[memory.Alike]:
    """The ranks with the largest peaks, in order."""
    least = sorted((each.peak for each in found), reverse=True)[:_ROWS][-1]
    return [each for each in found if each.peak >= least][:_ROWS]


def _peaks(found: memory.AllRanks, width: int) -> Table:
    """A row for each different rank: its peak, what its pool holds, and the categories that differ most among ranks."""
    spread = {kind: [each.used.get(kind, 0) for each in found] for kind in memory.Category}
    most = sorted(spread, key=lambda kind: min(spread[kind]) - max(spread[kind]))
    left = width - _SIZES - min(30, max(len(found.label(each)) for each in _shown(found)))
    ends = np.cumsum([len(kind.value) + 3 for kind in most])
    differ = [kind for kind in spread if kind in most[: max(1, int((ends <= left).sum()))] and len(set(spread[kind])) > 1]
    table = with_columns(Table(box=SIMPLE_HEAD), "", ">peak used", ">reserved", *(f">{kind.value}" for kind in differ))
    for each in _shown(found):
        sizes = [each.reserved, *(each.used.get(kind, 0) for kind in differ)]
        table.add_row(found.label(each), f"{each.peak:,}", *map(bytes_text, sizes))
    return table
