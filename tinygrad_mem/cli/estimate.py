"""``python -m tinygrad_mem estimate``: the memory of a training step, layer by layer, without running it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console

from ..errors import ArgumentError
from ..models.names import Named
from . import estimate_mesh, estimate_ranks, estimate_torch
from .estimate_layers import show
from .estimate_options import EstimateOptions
from .estimate_run import EstimateRun
from .networks import network_of
from .users import is_torch


def run(**options: Any) -> int:
    """Estimate and print. Returns 1 if the peak exceeds the budget, or what ``--gpu`` has, else 0.

    Args:
        options: see :class:`~.estimate_options.EstimateOptions`.
    """
    asked = EstimateOptions(**options)
    if is_torch(asked.network):
        asked.check_torch()
        return estimate_torch.run(asked)
    asked.check()
    if asked.ranks is not None and estimate_mesh.is_meant(asked):
        return estimate_mesh.run(asked, asked.ranks)
    named = _network(asked)
    if asked.ranks is not None:
        return estimate_ranks.run(asked, named, asked.ranks)
    found = EstimateRun(asked, named).estimate()
    if asked.as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        show(found, Console(), asked.layers)
    return int(found.fits is False)


def _network(asked: EstimateOptions) -> Named:
    """The network, some tokens at a time and recomputed as asked."""
    named = network_of(asked.network, asked.sample, asked.tokens)
    if asked.tile is not None:
        if not named.tiles:
            raise ArgumentError(f"--tile works for language models (llama-3.1-8b, a config.json), not for {asked.network}")
        named = named.with_own_loss(asked.tile)
    return named if asked.recompute is None else named.recomputed(asked.recompute)
