"""One call for data parallel and every stage of ZeRO: a model on all ranks, with what the stage divides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..nn.containers import ModuleDict, ModuleList, Sequential
from ..nn.module import Module
from .data_parallel import DistributedDataParallel
from .fsdp import fully_shard


def divided(model: Module, stage: int, **options: Any) -> Any:
    """The model on all ranks of the default group. The optimizer of stage 1 is ``ZeroRedundancyOptimizer``.

    Args:
        stage: 0 and 1: ``DistributedDataParallel``, with ``options``. 2 and 3: ``fully_shard`` of each unit (see :func:`units`)
            and of the model; with 2, gathered parameters stay until backward.
    """
    if stage < 2:
        return DistributedDataParallel(model, **options)
    for each in units(model):
        fully_shard(each, reshard_after_forward=stage == 3)
    return fully_shard(model, reshard_after_forward=None if stage == 3 else False)


def units(module: Module) -> Iterator[Module]:
    """The modules of each outermost Sequential and ModuleList: what has parameters is gathered, used and dropped at a time."""
    for child in module.children():
        if isinstance(module, (Sequential, ModuleList)) and not isinstance(child, (ModuleList, ModuleDict)):
            if any(True for _ in child.parameters()):
                yield child
        else:
            yield from units(child)
