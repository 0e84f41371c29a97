"""Softmax and its logarithm along one axis. Both save the output, one array of x's size."""

from __future__ import annotations

from math import prod

from .base import Op
from .cross_entropy import joins


def line_view(ctx, x, axis):
    """``x`` as (outer, ``axis``, inner): a view of it, or of a copy where its strides allow none."""
    if x.ndim == 0:
        return x.reshape(1, 1, 1)
    if not (joins(x, range(axis)) and joins(x, range(axis + 1, x.ndim))):
        x = ctx.contiguous(x)
    return x.reshape(prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))


def _backward(ctx, gy, kernel):
    """A gradient from gy and y, written over gy where it is ours and its strides allow."""
    y = line_view(ctx, ctx.take("y"), ctx.axis)
    gx = ctx.grad_buffer(gy) if gy.flags.c_contiguous else ctx.empty_like(gy)
    kernel(line_view(ctx, gy, ctx.axis), y, out=gx.reshape(y.shape))
    return gx


class Softmax(Op):
    """e**x over its sum along ``axis``. Saves y."""

    saves = ("y",)

    @staticmethod
    def forward(ctx, x, *, axis):
        y = ctx.empty_like(x)
        ctx.axis = axis
        lines = line_view(ctx, x, axis)
        ctx.kernels.softmax(lines, out=y.reshape(lines.shape))
        if ctx.needs[0]:
            ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return _backward(ctx, gy, ctx.kernels.softmax_backward)


class LogSoftmax(Op):
    """x less the logarithm of the sum of e**x along ``axis``. Saves y."""

    saves = ("y",)

    @staticmethod
    def forward(ctx, x, *, axis):
        y = ctx.empty_like(x)
        ctx.axis = axis
        lines = line_view(ctx, x, axis)
        ctx.kernels.log_softmax(lines, out=y.reshape(lines.shape))
        if ctx.needs[0]:
            ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return _backward(ctx, gy, ctx.kernels.log_softmax_backward)
