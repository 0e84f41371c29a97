"""Scatter with a reduction: values that go to the same place are summed, multiplied, averaged, or compared."""

import math

import numpy as np

from .. import dtypes
from ..dtypes import is_floating
from ..errors import DTypeError
from .base import Op
from .index import gathered, in_corner


class ScatterReduce(Op):
    """x with ``source`` summed, multiplied, averaged, or compared into the places of ``index`` along an axis.

    Saves index, x if ``reduce in ("prod", "amax", "amin")``, source if ``reduce in ("prod", "amax", "amin")``, and y if
    ``reduce in ("amax", "amin")``.
    """

    saves = ("index", "x", "source", "y")
    places = True

    @staticmethod
    def forward(ctx, x, index, source, *, axis, reduce, include_self):
        if source.dtype != x.dtype:
            raise DTypeError(f"scatter(): Expected self.dtype to be equal to src.dtype, found {x.dtype} and {source.dtype}")
        y = ctx.output_like(x)
        ctx.axis, ctx.reduce, ctx.include_self, ctx.source_shape = axis, reduce, include_self, source.shape
        ctx.save(index=index)
        if reduce not in ("sum", "mean"):
            ctx.save(x=x, source=source)
        if y is not x:
            ctx.kernels.copy(x, out=y)
        combine(ctx, index, source, y)
        if reduce in ("amax", "amin"):
            ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        index = ctx.take("index")
        gx, gs = _REDUCTIONS[ctx.reduce](ctx, gy, index)
        if not ctx.needs[0]:
            gx = None
        elif not ctx.include_self:
            gx = ctx.grad_copy(gy) if gx is gy else gx
            ctx.kernels.scatter(0, ctx.axis, index, out=gx)
        return gx, None, None if gs is None else in_corner(ctx, gs, ctx.source_shape)


def combine(ctx, index, source, y):
    """y at index = y and source together, by ``ctx.reduce``; without y itself where ``ctx.include_self`` is False."""
    kernels, axis, reduce = ctx.kernels, ctx.axis, ctx.reduce
    if not ctx.include_self:
        kernels.scatter(_neutral(reduce, y.dtype), axis, index, out=y)
    if reduce not in ("sum", "mean"):
        kernels.scatter_reduce(source, axis, index, reduce, out=y)
        return
    kernels.scatter_add(source, axis, index, out=y)
    if reduce == "mean":
        (kernels.divide if is_floating(y.dtype) else kernels.floor_divide)(y, _counts(ctx, y, index), out=y)


def _neutral(reduce, dtype):
    """The neutral element of a reduction: combined with a number, it leaves that number."""
    if reduce in ("sum", "mean", "prod"):
        return 1 if reduce == "prod" else 0
    if is_floating(dtype):
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (False, True) if limits is None else (int(limits.min), int(limits.max))
    return low if reduce == "amax" else high


def _counts(ctx, like, index):
    """The number of values that come together at each place, 1 at least."""
    count = ctx.empty(like.shape, like.dtype)
    ctx.kernels.fill(1 if ctx.include_self else 0, out=count)
    ctx.kernels.scatter_add(1, ctx.axis, index, out=count)
    ctx.kernels.maximum(count, 1, out=count)
    return count


def _sum_gradients(ctx, gy, index):
    return gy, gathered(ctx, gy, ctx.axis, index) if ctx.needs[2] else None


def _mean_gradients(ctx, gy, index):
    share = ctx.grad_buffer(gy)
    ctx.kernels.divide(gy, _counts(ctx, gy, index), out=share)
    return _sum_gradients(ctx, share, index)


def _is_equal(ctx, x, y, dtype):
    """1 where equal, else 0, as numbers."""
    flag = ctx.empty(x.shape, dtypes.bool)
    ctx.kernels.equal(x, y, out=flag)
    return ctx.copy(flag, dtype)


def _extremum_gradients(ctx, gy, index):
    """All elements that equal the result share its gradient evenly."""
    y, source = ctx.take("y"), ctx.take("source")[tuple(slice(0, n) for n in index.shape)]
    gs = _is_equal(ctx, source, gathered(ctx, y, ctx.axis, index), gy.dtype)
    gx = _is_equal(ctx, ctx.take("x"), y, gy.dtype)
    share = ctx.copy(gx)
    ctx.kernels.scatter_add(gs, ctx.axis, index, out=share)
    ctx.kernels.divide(gy, share, out=share)
    ctx.kernels.multiply(gx, share, out=gx)
    if ctx.needs[2]:
        ctx.kernels.multiply(gs, gathered(ctx, share, ctx.axis, index), out=gs)
    return gx, gs if ctx.needs[2] else None


def _product_gradients(ctx, gy, index):
    """The product of the other factors: the result over a factor, or computed without the factor if that is the only 0."""
    x, source = ctx.take("x"), ctx.take("source")[tuple(slice(0, n) for n in index.shape)]
    gx = gs = None
    if ctx.needs[0]:
        factor = _without_zeros(ctx, x)
        gx = ctx.copy(factor)
        combine(ctx, index, source, gx)
        ctx.kernels.divide(gx, factor, out=gx)
        ctx.kernels.multiply(gx, gy, out=gx)
    if ctx.needs[2]:
        gs = _product_without(ctx, gy, index, x, source)
        ctx.kernels.divide(gs, _without_zeros(ctx, source), out=gs)
        lone = _lone_zeros(ctx, gy, index, source)
        others = ctx.copy(source, gy.dtype)
        ctx.kernels.masked_fill(1, lone, out=others)
        ctx.kernels.masked_copy(_product_without(ctx, gy, index, x, others), lone, out=gs)
    return gx, gs


def _product_without(ctx, gy, index, x, others):
    """The products of x and others, times the gradient, gathered for each entry of source."""
    product = ctx.copy(x)
    combine(ctx, index, others, product)
    ctx.kernels.multiply(product, gy, out=product)
    return gathered(ctx, product, ctx.axis, index)


def _lone_zeros(ctx, gy, index, source):
    """Mark where source is the only 0 that comes to its place."""
    zero, count = _is_equal(ctx, source, 0, gy.dtype), ctx.zeros(gy.shape, gy.dtype)
    ctx.kernels.scatter_add(zero, ctx.axis, index, out=count)
    lone, flag = ctx.empty(index.shape, dtypes.bool), ctx.empty(index.shape, dtypes.bool)
    ctx.kernels.equal(gathered(ctx, count, ctx.axis, index), 1, out=lone)
    ctx.kernels.equal(source, 0, out=flag)
    ctx.kernels.logical_and(lone, flag, out=lone)
    return lone


def _without_zeros(ctx, x):
    """x with 1 in place of 0."""
    out, flag = ctx.empty_like(x), ctx.empty(x.shape, dtypes.bool)
    ctx.kernels.equal(x, 0, out=flag)
    ctx.kernels.copy(x, out=out)
    ctx.kernels.masked_fill(1, flag, out=out)
    return out


_REDUCTIONS = {
    "sum": _sum_gradients,
    "mean": _mean_gradients,
    "prod": _product_gradients,
    "amax": _extremum_gradients,
    "amin": _extremum_gradients,
}
