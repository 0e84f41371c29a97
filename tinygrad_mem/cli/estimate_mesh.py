"""``estimate --tensor`` and ``--pipeline``: the memory of each rank of a transformer over a mesh of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tinygrad_mem as tm

from .. import memory
from ..errors import ArgumentError
from ..models.names import NETWORKS
from ..models.parallel import SIZES, Mesh, MeshTraining, TransformerSize
from .estimate_ranks import TRAINING, ZERO, answer
from .networks import shape_of, unwrapped

_RECOMPUTE = {None: "", "selective": "selective", "every-block": "full"}


class OverMesh(NamedTuple):
    """A training step over a mesh.

    Attributes:
        batch_size: samples of each data parallel rank, in ``accumulate`` micro-batches.
        tensor, pipeline, context, zero: see :class:`~tinygrad_mem.models.parallel.Mesh`.
    """

    network: str
    tokens: str | None
    batch_size: int
    rule: Callable[..., Any]
    precision: str
    accumulate: int
    recompute: str | None
    device: str
    ranks: int
    tensor: int
    pipeline: int
    context: int
    zero: int


def is_meant(network: str, tensor: int, pipeline: int, context: int) -> bool:
    """True if the layers of a network are to be divided, or if it is offered over a mesh only."""
    return max(tensor, pipeline, context) > 1 or (network in SIZES and network not in NETWORKS)


def run(asked: OverMesh, room: int | None, picture: Path | None, as_json: bool) -> int:
    """Predict every different rank, and print. Returns 1 if the largest peak exceeds ``room``, else 0.

    Raises:
        ArgumentError: a network that is not offered over a mesh, or options that do not fit.
    """
    size, mesh = _size(asked), _mesh(asked)
    kind, options = unwrapped(asked.rule)
    counts = []

    def steps() -> None:
        training = MeshTraining(size, mesh, dtype=getattr(tm, asked.precision), rule=kind, **options)
        counts.append(sum(p.numel() for layers in training.stages for p in layers.parameters()))
        memory.mark(TRAINING)
        for _ in range(2):
            training.step()

    found = memory.predict(steps, like=asked.device, world_size=asked.ranks, ranks="all").since(TRAINING)
    parts = {name: getattr(mesh, name) for name in ("data", "pipeline", "context", "tensor")}
    grid = " x ".join(f"{name} {count}" for name, count in parts.items() if count > 1) or "one rank"
    title = f"{asked.network} on {asked.ranks} ranks: {grid}; {mesh.count} micro-batches of {mesh.micro}; {ZERO[mesh.zero]}"
    facts = {name: getattr(asked, name) for name in ("network", "batch_size", "device", "ranks", "zero")}
    facts |= {"mesh": parts, "parameters_of_a_rank": max(counts), "loss": "cross-entropy"}
    said = f"A rank keeps at most {max(counts):,} parameters. The loss is cross-entropy."
    return answer(found, title, said, facts, room, picture, as_json)


def _size(asked: OverMesh) -> TransformerSize:
    if asked.network not in SIZES:
        raise ArgumentError(
            f"--tensor, --pipeline and --context divide {', '.join(SIZES)}, and {asked.network} is none: --zero divides any "
            "network"
        )
    if asked.precision not in ("float32", "bfloat16"):
        raise ArgumentError(f"--precision {asked.precision}: over a mesh there are float32, and bfloat16 with float32 masters")
    if asked.recompute not in _RECOMPUTE:
        raise ArgumentError(f"--recompute {asked.recompute}: over a mesh there are every-block and selective (attention alone)")
    size = replace(SIZES[asked.network], recompute=_RECOMPUTE[asked.recompute])
    if asked.tokens is None:
        return size
    (length,) = shape_of("--tokens", asked.tokens)
    return replace(size, tokens=length)


def _mesh(asked: OverMesh) -> Mesh:
    parts = asked.tensor * asked.pipeline * asked.context
    if asked.ranks % parts:
        raise ArgumentError(
            f"--ranks {asked.ranks} is not a multiple of --tensor {asked.tensor} x --pipeline {asked.pipeline} x --context "
            f"{asked.context} = {parts}"
        )
    micro = asked.batch_size // asked.accumulate
    data = asked.ranks // parts
    return Mesh(data, asked.pipeline, asked.context, asked.tensor, micro=micro, count=asked.accumulate, zero=asked.zero)
