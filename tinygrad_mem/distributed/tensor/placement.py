"""Placements: a tensor whole on each rank, or in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import NotOfferedError

__all__ = ("DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_tensor")


class Placement:
    """The base of :class:`Shard` and :class:`Replicate`."""


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has its part along ``dim``."""

    dim: int


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has the whole tensor."""


@dataclass(frozen=True)
class Partial(Placement):
    """Each rank has a term of the sum."""

    reduce_op: str = "sum"


class DTensor:
    """A tensor in parts on several devices. It is never made, so no tensor is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(f"distributed.DTensor: {_INSTEAD}")


def distribute_tensor(*args: Any, **kwargs: Any) -> None:
    """Raise NotOfferedError."""
    raise NotOfferedError(f"distributed.tensor.distribute_tensor: {_INSTEAD}")


_INSTEAD = "a rank's shard is an ordinary tensor here: use distributed.tensor.parallel, or distributed.fsdp.fully_shard"
