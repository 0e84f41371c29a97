"""Marks on parameters that are divided over ranks. Norms and checks of gradients use them to include the other ranks."""

from __future__ import annotations

from collections.abc import Iterable

from ..autograd.tensor import Tensor
from ..errors import NotOfferedError
from ..nn.module import Module
from ..nn.norm import SyncBatchNorm
from .collectives import all_reduce
from .group import ProcessGroup, ReduceOp


class Part:
    """The mark of a parameter that is divided evenly over ranks, and of its gradient. It refers to neither.

    Attributes:
        name: the parameter's name, the same on all ranks.
        group: the ranks.
        axis: the dimension that is divided.
        outer: of what is divided twice: the mark of what was divided before.
        groups: its group, and those of the marks before it.
    """

    def __init__(self, name: str, group: ProcessGroup, axis: int, outer: Part | None = None) -> None:
        self.name, self.group, self.axis, self.outer = name, group, axis, outer
        self.groups: tuple[ProcessGroup, ...] = (group, *(() if outer is None else outer.groups))

    def within(self, shape: tuple[int, ...], starts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of what was divided, and where a box begins in it.

        Args:
            shape, starts: the same two of this rank's part.
        """
        sizes, begins = list(shape), list(starts)
        begins[self.axis] += self.group._rank * shape[self.axis]
        sizes[self.axis] *= self.group.size()
        return tuple(sizes), tuple(begins)

    def total_norm(self, local: Tensor, norm_type: float) -> Tensor:
        """The norm of numbers of all ranks, from the norm of those that this rank has.

        Raises:
            NotOfferedError: an order that is not above 0.
        """
        if not norm_type > 0:
            raise NotOfferedError(
                f"a norm of order {norm_type:g} of what is divided over ranks is not offered: use an order above 0, or inf"
            )
        for group in self.groups:
            if norm_type == float("inf"):
                all_reduce(local, ReduceOp.MAX, group)
            else:
                local = local**norm_type
                all_reduce(local, ReduceOp.SUM, group)
                local = local ** (1 / norm_type)
        return local

    def any_rank(self, flag: Tensor) -> None:
        """Let the number ``flag``, a tensor of one element, be the largest of all ranks."""
        for group in self.groups:
            all_reduce(flag, ReduceOp.MAX, group)


def divided_over(params: Iterable[Tensor], group: ProcessGroup) -> bool:
    """True if ranks of the group have different parts of a parameter."""
    groups = [each for p in params if p._shard is not None for each in p._shard.groups]
    return any(len(set(each.ranks) & set(group.ranks)) > 1 for each in groups)


def refuse_sync_batchnorm(who: str, module: Module, group: ProcessGroup) -> None:
    """Refuse a SyncBatchNorm on several ranks: its statistics would be those of one rank's part of the batch.

    Raises:
        NotOfferedError: there is one.
    """
    for path, each in module.named_modules() if group.size() > 1 else ():
        if isinstance(each, SyncBatchNorm):
            raise NotOfferedError(
                f"{who}: {path or 'the module'} is a SyncBatchNorm, and statistics over several ranks are not offered: leave "
                "convert_sync_batchnorm out, so that each rank normalises its own part, or use a GroupNorm"
            )


class Cut(Part):
    """The mark of a parameter of which each rank has some rows.

    Attributes:
        shape: of all rows.
        start: the first of this rank's rows.
    """

    def __init__(self, name: str, group: ProcessGroup, shape: tuple[int, ...], start: int, outer: Part | None) -> None:
        super().__init__(name, group, 0, outer)
        self.shape, self.start = shape, start

    def within(self, shape: tuple[int, ...], starts: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.shape, (self.start + starts[0], *starts[1:])
