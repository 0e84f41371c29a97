"""Checkpointing the chains of blocks that a network is made of."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..nn import Module, ModuleList, Sequential
from .schedule import Schedule, sqrt, uniform
from .scheduled import apply


def checkpoint_blocks(model: Module, how: str | int = "sqrt") -> Module:
    """Recompute every chain of blocks inside ``model`` in segments, and return the model.

    A chain is a Sequential that is not inside another chain, or a ModuleList whose modules have one class and are called one
    after another. An in-place module belongs to the block before it. Parameters stay; those of a ModuleList are renamed by
    segment.

    Args:
        how: the number of segments of each chain: ``"sqrt"`` of its blocks, a number (at most one per block), or
            ``"every-block"``.

    Raises:
        ArgumentError: ``how`` is none of these, or there is no chain of two blocks.
    """
    if not (how in ("sqrt", "every-block") or (isinstance(how, int) and how > 0)):
        raise ArgumentError(f"recompute: expected sqrt, every-block or a number of segments, found {how!r}")
    if isinstance(model, Sequential) and _is_chain(model):
        return _in_segments(model, how)
    if not _replace(model, how):
        raise ArgumentError(
            f"recompute: {type(model).__name__} has no chain of blocks: no Sequential, no ModuleList of one class"
        )
    return model


def _replace(parent: Module, how: str | int) -> bool:
    """Replace the chains by scheduled ones. Returns whether there was one."""
    found = False
    for name, child in list(parent.named_children()):
        if _is_chain(child):
            setattr(parent, name, _in_segments(child, how))
            found = True
        else:
            found = _replace(child, how) or found
    return found


def _is_chain(module: Any) -> bool:
    if isinstance(module, ModuleList) and len({type(each) for each in module}) != 1:
        return False
    return isinstance(module, (Sequential, ModuleList)) and len(_sizes(module)) > 1


def _in_segments(chain: Any, how: str | int) -> Any:
    sizes = _sizes(chain)
    n = len(sizes)
    if how == "sqrt":
        schedule = sqrt(n, last=True)
    else:
        schedule = uniform(n, n if how == "every-block" else min(int(how), n), last=True)
    if isinstance(chain, Sequential):
        return apply(chain, schedule, sizes)
    modules = iter(chain)
    parts = [Sequential(*[next(modules) for _ in part]) for part in schedule.items]
    return ModuleList([apply(part, Schedule([tuple(range(len(part)))])) for part in parts])


def _sizes(chain: Any) -> tuple[int, ...]:
    """The number of modules that each block has."""
    sizes: list[int] = []
    for module in chain:
        if sizes and getattr(module, "inplace", False):
            sizes[-1] += 1
        else:
            sizes.append(1)
    return tuple(sizes)
