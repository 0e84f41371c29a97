"""Checkpointing the chains of blocks that a network is made of."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError, ReadBetweenBlocksError, is_whole
from ..nn import Module, ModuleList, Sequential
from .schedule import Schedule, sqrt, uniform
from .scheduled import apply


def checkpoint_blocks(model: Module, how: str | int = "sqrt") -> Module:
    """Recompute every chain of blocks inside ``model`` in segments, and return the model.

    A chain is a Sequential that is not inside another chain, or a ModuleList whose modules have one class and are called one
    after another. An in-place module belongs to the block before it. Parameters stay; those of a ModuleList are renamed by
    segment. In a segment of several blocks the model must not read what is between them: that raises an error.

    Args:
        how: the number of segments of each chain: ``"sqrt"`` of its blocks, a number (at most one per block), or
            ``"every-block"``.

    Raises:
        ArgumentError: ``how`` is none of these, or there is no chain of two blocks. When the model runs
            (:class:`ReadBetweenBlocksError`): it reads what is between two blocks of a segment.
    """
    if not (how in ("sqrt", "every-block") or is_whole(how)):
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
    modules, blocks = iter(chain), []
    for part in schedule.items:
        whole = apply(Sequential(*[next(modules) for _ in part]), Schedule([tuple(range(len(part)))]))
        blocks += [*(_Skipped(at) for at in range(len(part) - 1)), _Segment(whole) if len(part) > 1 else whole]
    return ModuleList(blocks)


class InputOfASegment:
    """The result of a block that its segment's last block runs: the input of the segment. Nothing else may read it.

    If a model keeps the output of each block, or changes it before the next block, checkpointing in segments would change it.
    """

    def __init__(self, value: Any, at: int) -> None:
        self.value, self.at = value, at

    def __getattr__(self, name: str) -> Any:
        raise ReadBetweenBlocksError(f"recompute: {name!r} of {_BETWEEN}")


_BETWEEN = (
    "what a block gives within a segment is not known there: the model reads it between its blocks. Recompute every block "
    '("every-block"), or checkpoint the model\'s own parts'
)


class _Skipped(Module):
    """The place of a block that is not the last of its segment, which runs it."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def forward(self, input: Any, *rest: Any, **named: Any) -> InputOfASegment:
        return InputOfASegment(_value(input, self._at), self._at + 1)


class _Segment(Module):
    """The last block of a segment: it runs all of them."""

    def __init__(self, whole: Module) -> None:
        super().__init__()
        self.segment = whole

    def forward(self, input: Any, *rest: Any, **named: Any) -> Any:
        return self.segment(_value(input, len(self.segment) - 1), *rest, **named)  # type: ignore[arg-type]


def _value(input: Any, at: int) -> Any:
    """The input of a segment, as its block number ``at`` is given it.

    Raises:
        ReadBetweenBlocksError: the model called the blocks in another order, or changed what one of them gave.
    """
    if at == 0 and not isinstance(input, InputOfASegment):
        return input
    if not isinstance(input, InputOfASegment) or input.at != at:
        raise ReadBetweenBlocksError(f"recompute: {_BETWEEN}")
    return input.value


def _sizes(chain: Any) -> tuple[int, ...]:
    """The number of modules that each block has."""
    sizes: list[int] = []
    for module in chain:
        if sizes and getattr(module, "inplace", False):
            sizes[-1] += 1
        else:
            sizes.append(1)
    return tuple(sizes)
