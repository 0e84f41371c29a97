"""Pooling over the last axes; those before them, batch and channels, are one axis of planes for the kernels."""

import math

from ..dtypes import int16, int32, int64, uint8
from .base import Op, refuse_bools, want_floating


def _index_dtype(kernel):
    """The smallest dtype that numbers the offsets of a window: one byte up to 256 of them."""
    return uint8 if math.prod(kernel) <= 256 else int16 if math.prod(kernel) <= 1 << 15 else int32


def _planes(x, outs):
    """A contiguous ``x`` (..., *sizes) as (planes, *sizes), a view; there are as many sizes as ``outs``."""
    at = x.ndim - len(outs)
    return x.reshape(math.prod(x.shape[:at]), *x.shape[at:])


def _empty(ctx, x, outs, dtype):
    """A buffer for the outputs of ``x``: (..., *outs)."""
    return ctx.empty((*x.shape[: x.ndim - len(outs)], *outs), dtype)


class MaxPool(Op):
    """The largest of each window; with ``positions`` also where it was, int64, for the caller.

    Saves index (``y.size * (1 if math.prod(geometry[0]) <= 256 else 2)`` bytes): neither x nor y nor the positions.
    """

    saves = ("index",)

    @staticmethod
    def forward(ctx, x, *, outs, geometry, positions=False):
        refuse_bools("max_pool", x)
        x = ctx.contiguous(x)
        out = _empty(ctx, x, outs, x.dtype)
        index = ctx.empty(out.shape, _index_dtype(geometry[0])) if ctx.needs[0] or positions else None
        flat = None if index is None else _planes(index, outs)
        ctx.shape, ctx.geometry = x.shape, geometry
        ctx.kernels.max_pool(_planes(x, outs), geometry, flat, out=_planes(out, outs))
        ctx.save(index=index)
        if not positions:
            return out
        places = ctx.empty(out.shape, int64)
        ctx.kernels.pool_positions(flat, x.shape[x.ndim - len(outs) :], geometry, out=_planes(places, outs))
        return out, places

    @staticmethod
    def backward(ctx, gy, _=None):
        gx = ctx.empty(ctx.shape, gy.dtype)
        gy, index, sizes = ctx.contiguous(gy), ctx.take("index"), ctx.geometry[0]
        ctx.kernels.max_pool_backward(_planes(gy, sizes), _planes(index, sizes), ctx.geometry, out=_planes(gx, sizes))
        return gx


class AvgPool(Op):
    """The mean of each window; each of its elements gets an equal share of gy. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, outs, geometry, count_include_pad, divisor):
        x = ctx.contiguous(x)
        out = _empty(ctx, x, outs, x.dtype)
        ctx.shape, ctx.options = x.shape, (geometry, count_include_pad, divisor)
        ctx.kernels.avg_pool(_planes(x, outs), *ctx.options, out=_planes(out, outs))
        return out

    @staticmethod
    def backward(ctx, gy):
        contiguous = ctx.contiguous(gy)
        work = contiguous if ctx.owns_grad or contiguous is not gy else ctx.empty(gy.shape, gy.dtype)
        gx, sizes = ctx.empty(ctx.shape, gy.dtype), ctx.options[0][0]
        grads = [_planes(each, sizes) for each in (contiguous, work, gx)]
        ctx.kernels.avg_pool_backward(grads[0], *ctx.options, grads[1], out=grads[2])
        return gx


class AdaptiveAvgPool(Op):
    """The mean of each cell; the cells divide the input. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, outs):
        want_floating("adaptive_avg_pool", x)
        x = ctx.contiguous(x)
        out = _empty(ctx, x, outs, x.dtype)
        ctx.shape, ctx.outs = x.shape, outs
        ctx.kernels.adaptive_avg_pool(_planes(x, outs), out=_planes(out, outs))
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty(ctx.shape, gy.dtype)
        ctx.kernels.adaptive_avg_pool_backward(_planes(ctx.contiguous(gy), ctx.outs), out=_planes(gx, ctx.outs))
        return gx


class AdaptiveMaxPool(Op):
    """The largest of each cell, and its position, int64. Saves the index: it is the second result."""

    saves = ("index",)
    outputs = ("index",)

    @staticmethod
    def forward(ctx, x, *, outs):
        want_floating("adaptive_max_pool", x)
        x = ctx.contiguous(x)
        out, index = _empty(ctx, x, outs, x.dtype), _empty(ctx, x, outs, int64)
        ctx.shape, ctx.outs = x.shape, outs
        ctx.kernels.adaptive_max_pool(_planes(x, outs), _planes(index, outs), out=_planes(out, outs))
        ctx.save(index=index)
        return out, index

    @staticmethod
    def backward(ctx, gy, _):
        gx = ctx.empty(ctx.shape, gy.dtype)
        gy, index = ctx.contiguous(gy), ctx.take("index")
        ctx.kernels.unpool(_planes(gy, ctx.outs), _planes(index, ctx.outs), out=_planes(gx, ctx.outs))
        return gx
