"""``python -m tinygrad_mem plan``: the fastest training step of a network within a budget."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import tinygrad_mem as tm

from .. import plan as planner
from ..models.names import Named
from ..models.parallel import SIZES
from ..text import visible
from . import plan_mesh
from .networks import OPTIMIZERS, network_of, size_of, told_elsewhere
from .one_by_one import telling
from .screen import screen


def run(
    *,
    network: str,
    batch_size: int,
    budget: str | None,
    sample: str | None,
    tokens: str | None,
    optimizer: str,
    device: str,
    allow: str,
    largest_batch: bool,
    ranks: int,
    picture: Path | None,
    as_json: bool,
) -> int:
    """Plan and print. Returns 1 if nothing fits the budget, else 0."""
    room = size_of("--budget", budget)
    if ranks > 1 and network in SIZES:
        given = {"--input": sample, "--largest-batch": largest_batch, "--picture": picture, "--allow": allow != "identical"}
        if refused := [name for name, value in given.items() if value]:
            raise tm.errors.ArgumentError(f"{', '.join(refused)}: not offered for {network} over a mesh of ranks: leave it out")
        return plan_mesh.run(network, batch_size, ranks, room, tokens, optimizer, device, as_json)
    named = network_of(network, sample, tokens)
    if named.tiles:
        named = named.with_own_loss()
    if largest_batch and room is None:
        raise tm.errors.ArgumentError("--largest-batch needs a --budget")
    times = planner.Times(device, planner.cache_folder())
    names = allow if allow in planner.LEVELS else allow.split(",")
    try:
        with telling(Console(stderr=True)) as show:

            def build(n: int) -> planner.Plan:
                show(f"batch {n}")
                of = named.make, partial(_batch, named, n), lambda output, _: named.loss(output), OPTIMIZERS[optimizer]
                options: dict[str, Any] = {"ranks": ranks, "times": times, "progress": lambda what: show(f"batch {n}: {what}")}
                return planner.plan(*of, room, device, names, **options)

            if largest_batch:
                of_each, found = planner.largest(lambda n: build(n * ranks))
                batch_size = of_each * ranks
            else:
                found = build(batch_size)
            front = found.front
    except planner.BudgetError as error:
        refused = {"network": network, "batch_size": batch_size, "budget": room, "fits": False, "message": str(error)}
        print(json.dumps(refused, indent=2) if as_json else visible(str(error), keep="\n"))
        return 1
    finally:
        times.save()
    if picture is not None:
        found.plot(picture)
    if as_json:
        print(json.dumps(_data(network, batch_size, found, front), indent=2))
    else:
        _show(network, batch_size, found)
    return 0


def _batch(named: Named, size: int) -> tuple[tm.Tensor, tm.Tensor]:
    x = named.batch(size, tm.float32)
    return x, x.flatten(1)[:, 0]  # only the number of labels counts: the loss draws its own


def _data(network: str, batch_size: int, found: planner.Plan, front: list[planner.Point]) -> dict[str, Any]:
    def row(point: planner.Point) -> dict[str, Any]:
        return {
            "techniques": list(point.choice.names),
            "choice": str(point.choice),
            "peak_used": point.peak,
            "peak_reserved": point.reserved,
            "peak_host": point.host,
            "numbers": point.choice.numbers,
            "time": point.time / found.plain.time,
            "by_rank": [each._asdict() for each in point.by_rank],
        }

    return {
        "network": network,
        "batch_size": batch_size,
        "ranks": found.ranks,
        "budget": found.budget,
        "fits": None if found.budget is None else True,
        "times": "measured" if found.measured else "modelled",
        "plan": row(found.point),
        "plain": row(found.plain),
        "front": [row(point) for point in front],
        "lines": found.lines(),
    }


def _show(network: str, batch_size: int, found: planner.Plan) -> None:
    console = screen(highlight=False, markup=False)
    print(found.table(min(console.width, 128)))
    times = f"of ops measured on {found.device}" if found.measured else "modelled from bytes and multiplications"
    where = "with the workspaces of a GPU's kernels" if found.search.like == "cuda" else "to the byte"
    console.print(f"Times are sums {times}, relative to the plain step. Each peak was found by a run on meta, {where}.")
    if any("[" in str(point.choice) for point in found.front):
        console.print("Blocks in brackets keep only the input of the first, and run again in backward.")
    if found.budget is not None and found.point.reserved > found.budget:
        console.print("Reserved is without a limit. The plan ran within the budget too: the pool gave unused memory back.")
    console.print(visible(f"{network}, batch {batch_size}: {found}", keep="\n"))
    if found.ranks > 1:
        print("What is sent counts as 25 GB/s. On each rank:\n")
        print(visible(found.lines(), keep="\n"))
    if said := told_elsewhere(network):
        print(visible(said))
