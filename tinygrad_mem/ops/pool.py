"""Pooling over the last axes. x is (planes, *sizes) here: the functions above fold batch and channels into planes."""

from __future__ import annotations

import math

from ..dtypes import int16, int32, int64, uint8
from .base import Op, refuse_bools, want_floating


def _index_dtype(kernel):
    """The smallest dtype that numbers the offsets of a window: one byte up to 256 of them."""
    return uint8 if math.prod(kernel) <= 256 else int16 if math.prod(kernel) <= 1 << 15 else int32


class MaxPool(Op):
    """The largest of each window; with ``positions`` also where it was, int64, for the caller.

    Saves index (``y.size * (1 if math.prod(geometry[0]) <= 256 else 2)`` bytes): neither x nor y nor the positions.
    """

    saves = ("index",)
    outputs = ()

    @staticmethod
    def forward(ctx, x, *, outs, geometry, positions=False):
        refuse_bools("max_pool", x)
        x = ctx.contiguous(x)
        out = ctx.empty((x.shape[0], *outs), x.dtype)
        index = ctx.empty(out.shape, _index_dtype(geometry[0])) if ctx.needs[0] or positions else None
        ctx.shape, ctx.geometry = x.shape, geometry
        ctx.kernels.max_pool(x, geometry, index, out=out)
        if ctx.needs[0]:
            ctx.save(index=index)
        if not positions:
            return out
        places = ctx.empty(out.shape, int64)
        ctx.kernels.pool_positions(index, x.shape[1:], geometry, out=places)
        return out, places

    @staticmethod
    def backward(ctx, gy, _=None):
        gx = ctx.empty(ctx.shape, gy.dtype)
        gy, index = ctx.contiguous(gy), ctx.take("index")
        ctx.kernels.max_pool_backward(gy, index, ctx.geometry, out=gx)
        return gx


class AvgPool(Op):
    """The mean of each window; each of its elements gets an equal share of gy. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, outs, geometry, count_include_pad, divisor):
        x = ctx.contiguous(x)
        out = ctx.empty((x.shape[0], *outs), x.dtype)
        ctx.shape, ctx.options = x.shape, (geometry, count_include_pad, divisor)
        ctx.kernels.avg_pool(x, *ctx.options, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        contiguous = ctx.contiguous(gy)
        work = contiguous if ctx.owns_grad or contiguous is not gy else ctx.empty(gy.shape, gy.dtype)
        gx = ctx.empty(ctx.shape, gy.dtype)
        ctx.kernels.avg_pool_backward(contiguous, *ctx.options, work, out=gx)
        return gx


class AdaptiveAvgPool(Op):
    """The mean of each cell; the cells divide the input. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, outs):
        want_floating("adaptive_avg_pool", x)
        x = ctx.contiguous(x)
        out = ctx.empty((x.shape[0], *outs), x.dtype)
        ctx.shape = x.shape
        ctx.kernels.adaptive_avg_pool(x, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty(ctx.shape, gy.dtype)
        ctx.kernels.adaptive_avg_pool_backward(ctx.contiguous(gy), out=gx)
        return gx


class AdaptiveMaxPool(Op):
    """The largest of each cell, and its position, int64. Saves the index: it is the second result."""

    saves = ("index",)
    outputs = ("index",)

    @staticmethod
    def forward(ctx, x, *, outs):
        want_floating("adaptive_max_pool", x)
        x = ctx.contiguous(x)
        out, index = ctx.empty((x.shape[0], *outs), x.dtype), ctx.empty((x.shape[0], *outs), int64)
        ctx.shape = x.shape
        ctx.kernels.adaptive_max_pool(x, index, out=out)
        if ctx.needs[0]:
            ctx.save(index=index)
        return out, index

    @staticmethod
    def backward(ctx, gy, _):
        gx = ctx.empty(ctx.shape, gy.dtype)
        gy, index = ctx.contiguous(gy), ctx.take("index")
        ctx.kernels.unpool(gy, index, out=gx)
        return gx
