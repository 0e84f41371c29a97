"""``estimate --tensor`` and ``--pipeline``: the memory of each rank of a transformer over a mesh of ranks."""

from __future__ import annotations

from dataclasses import replace

import tinygrad_mem as tm

from .. import memory
from ..errors import ArgumentError
from ..models.names import NETWORKS
from ..models.parallel import SIZES, Mesh, MeshTraining, TransformerSize
from .estimate_options import EstimateOptions
from .estimate_ranks import TRAINING, ZERO, answer
from .networks import over_mesh, unwrapped

_RECOMPUTE = {None: "", "selective": "selective", "every-block": "full"}


def is_meant(asked: EstimateOptions) -> bool:
    """True if the layers of a network are to be divided, or if it is offered over a mesh only."""
    return asked.is_divided or (asked.network in SIZES and asked.network not in NETWORKS)


def run(asked: EstimateOptions, ranks: int) -> int:
    """Predict every different rank, and print. Returns 1 if one needs more than the budget, else 0."""
    size, mesh = _size(asked), _mesh(asked, ranks)
    kind, options = unwrapped(asked.rule)
    counts = []

    def steps() -> None:
        training = MeshTraining(size, mesh, dtype=getattr(tm, asked.precision), rule=kind, **options)
        counts.append(sum(p.numel() for layers in training.stages for p in layers.parameters()))
        memory.mark(TRAINING)
        for _ in range(2):
            training.step()

    found = memory.predict(steps, like=asked.on, world_size=ranks, ranks="all").since(TRAINING)
    parts = {name: getattr(mesh, name) for name in ("data", "pipeline", "context", "tensor")}
    grid = " x ".join(f"{name} {count}" for name, count in parts.items() if count > 1) or "one rank"
    title = f"{asked.network} on {ranks} ranks: {grid}; micro-batches: {mesh.count} of {mesh.micro}; {ZERO[mesh.zero]}"
    said = f"A rank keeps at most {max(counts):,} parameters. The loss is cross-entropy."
    return answer(found, asked, title, said, mesh=parts, parameters_of_a_rank=max(counts), loss="cross-entropy")


def _size(asked: EstimateOptions) -> TransformerSize:
    if asked.network not in SIZES:
        raise ArgumentError(
            f"--tensor, --pipeline and --context work for {', '.join(SIZES)}, not for {asked.network}; --zero works for any "
            "network"
        )
    if asked.precision not in ("float32", "bfloat16"):
        raise ArgumentError(f"--precision {asked.precision}: over a mesh use float32, or bfloat16 with float32 masters")
    if asked.recompute not in _RECOMPUTE:
        raise ArgumentError(f"--recompute {asked.recompute}: over a mesh use every-block, or selective (attention alone)")
    return replace(over_mesh(asked.network, asked.tokens), recompute=_RECOMPUTE[asked.recompute])


def _mesh(asked: EstimateOptions, ranks: int) -> Mesh:
    parts = asked.tensor * asked.pipeline * asked.context
    if ranks % parts:
        raise ArgumentError(
            f"--ranks {ranks} is not a multiple of --tensor {asked.tensor} x --pipeline {asked.pipeline} x --context "
            f"{asked.context} = {parts}"
        )
    micro = asked.batch // asked.accumulate
    data = ranks // parts
    return Mesh(data, asked.pipeline, asked.context, asked.tensor, micro=micro, count=asked.accumulate, zero=asked.zero)
