"""``plan NETWORK --ranks``, for a transformer that can be divided over a mesh."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console

from .. import plan as planner
from ..models.mesh_plan import MeshPlan, plan_mesh
from ..text import visible
from .networks import OPTIMIZERS, over_mesh, unwrapped
from .one_by_one import telling


def run(
    network: str, samples: int, ranks: int, room: int | None, tokens: str | None, optimizer: str, device: str, as_json: bool
) -> int:
    """Plan and print. Returns 1 if nothing fits the budget, else 0."""
    size = over_mesh(network, tokens)
    rule, options = unwrapped(OPTIMIZERS[optimizer])
    asked = {"network": network, "batch_size": samples, "ranks": ranks, "budget": room}
    try:
        with telling(Console(stderr=True)) as show:
            found = plan_mesh(size, samples, ranks, room, rule=rule, like=device, progress=show, **options)
    except planner.BudgetError as error:
        print(json.dumps(asked | {"fits": False, "message": str(error)}, indent=2) if as_json else visible(str(error)))
        return 1
    if as_json:
        print(json.dumps(asked | _data(found), indent=2))
        return 0
    print(f"{network} in bfloat16 with float32 masters, {samples} samples of {size.tokens} tokens on {ranks} ranks")
    print(found)
    print("Peaks were found by runs on meta. Times are modelled; what is sent counts as 25 GB/s. On each rank:\n")
    print(found.lines())
    return 0


def _data(found: MeshPlan) -> dict[str, Any]:
    point = found.point
    return {
        "fits": None if found.budget is None else True,
        "mesh": asdict(found.setting.mesh),
        "recompute": found.setting.recompute,
        "peak_used": point.peak,
        "peak_reserved": point.reserved,
        "sent": point.sent,
        "by_rank": [each._asdict() for each in point.by_rank],
        "tried": [each._asdict() | {"setting": str(each.setting)} for each in found.sketches],
        "in_full": [str(each) for each in found.full],
        "lines": found.lines(),
    }
