"""Placements: a tensor whole on each rank, or in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import NotOfferedError

__all__ = ("DTensor", "Placement", "Replicate", "Shard")


class Placement:
    """The base of :class:`Shard` and :class:`Replicate`."""


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has its part along ``dim``."""

    dim: int


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has the whole tensor."""


class DTensor:
    """A tensor in parts on several devices. It is never made, so no tensor is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotOfferedError(
            "distributed.DTensor: a rank's shard is an ordinary tensor here: use distributed.tensor.parallel, or "
            "distributed.fsdp.fully_shard"
        )
