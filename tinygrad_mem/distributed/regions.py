"""Differentiable collectives: where a tensor goes from one layout over ranks to another, and its gradient comes back.

Each is an op whose backward is the forward of its conjugate:

    copy_to             nothing                    backward: all-reduce
    reduce_from         all-reduce                 backward: nothing
    scatter_to          this rank's part           backward: all-gather
    gather_from         all-gather                 backward: this rank's part
    reduce_scatter_to   reduce-scatter             backward: all-gather

None saves anything. A gradient that the engine owns is reduced in place. With a group of one rank they return their input.

Source: Shoeybi et al., *Megatron-LM*, 2019; Korthikanti et al., *Reducing Activation Recomputation in Large Transformer
Models*, 2022.
"""

from __future__ import annotations

import math
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops.base import Context, Op
from .buffers import buffer
from .group import Array, ProcessGroup, ReduceOp


def gather_along(ctx: Context, x: Array, group: ProcessGroup, axis: int) -> Array:
    """The parts of all ranks, one behind the other along ``axis``.

    The result is a communication buffer. If ``axis`` is not the first that is longer than 1, the parts come into another one
    first, which is freed.
    """
    shape = (*x.shape[:axis], group.size() * x.shape[axis], *x.shape[axis + 1 :])
    out = buffer(ctx.device, shape, x.dtype)
    if math.prod(x.shape[:axis]) == 1:
        group.all_gather(out, ctx.contiguous(x)).wait()
        return out
    parts = buffer(ctx.device, (group.size(), *x.shape), x.dtype)
    group.all_gather(parts, ctx.contiguous(x)).wait()
    ctx.kernels.copy(_in_front(parts, axis), out=out.reshape(_cut(shape, group, axis)))
    return out


def reduce_scatter_along(ctx: Context, x: Array, group: ProcessGroup, axis: int) -> Array:
    """This rank's part, along ``axis``, of the sum over all ranks. It may write into a copy of ``x`` and not into ``x``."""
    part = (*x.shape[:axis], x.shape[axis] // group.size(), *x.shape[axis + 1 :])
    out = ctx.empty(part, x.dtype)
    if math.prod(x.shape[:axis]) == 1 and x.flags.c_contiguous:
        parts = x
    else:
        parts = buffer(ctx.device, (group.size(), *part), x.dtype)
        rows = ctx.contiguous(x).reshape(_cut(x.shape, group, axis))
        ctx.kernels.copy(rows, out=_in_front(parts, axis))
        del rows
    group.reduce_scatter(out, parts, ReduceOp.SUM).wait()
    return out


def own_part(x: Array, group: ProcessGroup, axis: int) -> Array:
    """This rank's part of ``x`` along ``axis``: a view. All parts have one size, so all ranks ask for the same bytes."""
    size = x.shape[axis] // group.size()
    return x[(slice(None),) * axis + (slice(group._rank * size, group._rank * size + size),)]


def _cut(shape: tuple[int, ...], group: ProcessGroup, axis: int) -> tuple[int, ...]:
    """``shape`` with ``axis`` as two: rank, and place in its part."""
    return (*shape[:axis], group.size(), shape[axis] // group.size(), *shape[axis + 1 :])


def _in_front(parts: Array, axis: int) -> Array:
    """(rank, ...) with the rank's axis before ``axis`` of the rest."""
    return parts.transpose((*range(1, axis + 1), 0, *range(axis + 1, parts.ndim)))


class CopyTo(Op):
    """x itself; backward sums the gradients of all ranks. Saves nothing."""

    view = True

    @staticmethod
    def forward(ctx, x, *, group):
        ctx.group = group
        return x.view()

    @staticmethod
    def backward(ctx, gy):
        gx = gy if ctx.owns_grad and gy.flags.c_contiguous else ctx.copy(gy)
        ctx.group.all_reduce(gx, ReduceOp.SUM).wait()
        return gx


class ReduceFrom(Op):
    """The sum over all ranks; the gradient goes through unchanged. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, group):
        y = ctx.output_copy(x)
        group.all_reduce(y, ReduceOp.SUM).wait()
        return y

    @staticmethod
    def backward(ctx, gy):
        return gy


class ScatterTo(Op):
    """This rank's part along an axis, in memory of its own. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, group, axis):
        ctx.group, ctx.axis = group, axis
        return ctx.copy(own_part(x, group, axis))

    @staticmethod
    def backward(ctx, gy):
        return gather_along(ctx, gy, ctx.group, ctx.axis)


class GatherFrom(Op):
    """The parts of all ranks along an axis; each rank's gradient is its own part. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, group, axis):
        ctx.group, ctx.axis = group, axis
        return gather_along(ctx, x, group, axis)

    @staticmethod
    def backward(ctx, gy):
        return ctx.copy(own_part(gy, ctx.group, ctx.axis))


class ReduceScatterTo(ScatterTo):
    """This rank's part, along an axis, of the sum over all ranks; backward as of :class:`ScatterTo`. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, group, axis):
        ctx.group, ctx.axis = group, axis
        return reduce_scatter_along(ctx, x, group, axis)


def copy_to(x: Tensor, group: ProcessGroup) -> Tensor:
    """``x``, from where ranks do different things with it: its gradient is the sum of theirs.

    Raises:
        DeviceError: x is on a device that the group does not serve.
    """
    return _applied("copy_to", CopyTo, x, group)


def reduce_from(x: Tensor, group: ProcessGroup, inplace: bool = False) -> Tensor:
    """The sum of all ranks' ``x``; each rank's gradient is that of the sum.

    Args:
        inplace: write into ``x``, which may be saved by nothing.

    Raises: as :func:`copy_to`.
    """
    return _applied("reduce_from", ReduceFrom, x, group, apply_ if inplace else apply)


def scatter_to(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's part of ``x``, which is the same on all ranks, along ``dim``. Backward puts the gradient together.

    Raises:
        DimensionError: ``x`` has no such dimension.
        ShapeError: the size along ``dim`` cannot be divided by the number of ranks.
        DeviceError: as :func:`copy_to`.
    """
    return _applied("scatter_to", ScatterTo, x, group, axis=divided("scatter_to", x, group, dim))


def gather_from(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """The parts of all ranks along ``dim``. All do the same with it, so the gradient of a part is that part of the gradient.

    Raises: as :func:`scatter_to`, whatever the size.
    """
    return _applied("gather_from", GatherFrom, x, group, axis=normalize_dim(dim, x.ndim))


def reduce_scatter_to(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's part, along ``dim``, of the sum of all ranks' ``x``.

    Raises: as :func:`scatter_to`.
    """
    return _applied("reduce_scatter_to", ReduceScatterTo, x, group, axis=divided("reduce_scatter_to", x, group, dim))


def _applied(name: str, op: type[Op], x: Tensor, group: ProcessGroup, how: Any = apply, **axis: int) -> Tensor:
    """The op of ``x``; for a group of one rank, ``x``."""
    group.check_device(name, x)
    return x if group.size() == 1 else how(op, x, group=group, **axis)


def divided(name: str, x: Any, group: ProcessGroup, dim: int) -> int:
    """The axis ``dim``, which is to be divided among the ranks."""
    axis = normalize_dim(dim, len(x.shape))
    if x.shape[axis] % group.size():
        raise ShapeError(
            f"{name}: dimension {axis} of {list(x.shape)} cannot be divided evenly among {group.size()} ranks: pad it, or use "
            "another number of ranks"
        )
    return axis


def own(x: Tensor, group: ProcessGroup, dim: int = 0) -> Tensor:
    """This rank's part of ``x`` along ``dim``, a view: of data that all ranks have, such as the numbers of tokens.

    Raises: as :func:`scatter_to`.
    """
    size = x.shape[divided("own", x, group, dim)] // group.size()
    return x.narrow(dim, group._rank * size, size)
