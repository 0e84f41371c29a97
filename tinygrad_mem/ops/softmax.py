"""Softmax and its logarithm along one axis. Both save the output, one array of x's size."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from .base import Op
from .cross_entropy import joins


def line_view(ctx, x, axis):
    """``x`` as (outer, ``axis``, inner): a view of it, or of a copy where its strides allow none."""
    if x.ndim == 0:
        return x.reshape(1, 1, 1)
    if not (joins(x, range(axis)) and joins(x, range(axis + 1, x.ndim))):
        x = ctx.contiguous(x)
    return x.reshape(prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))


class _OfLines(Op):
    """The base of both: ``kernel(lines, out=)`` and ``kernel_backward(gy, y, out=)``. Saves y."""

    saves = ("y",)
    kernel: ClassVar[str]

    @classmethod
    def forward(cls, ctx, x, *, axis):
        y = ctx.empty_like(x)
        ctx.axis = axis
        lines = line_view(ctx, x, axis)
        getattr(ctx.kernels, cls.kernel)(lines, out=y.reshape(lines.shape))
        ctx.save(y=y)
        return y

    @classmethod
    def backward(cls, ctx, gy):
        y = line_view(ctx, ctx.take("y"), ctx.axis)
        gx = ctx.grad_buffer(gy) if gy.flags.c_contiguous else ctx.empty_like(gy)  # written over gy where it is ours
        getattr(ctx.kernels, cls.kernel + "_backward")(line_view(ctx, gy, ctx.axis), y, out=gx.reshape(y.shape))
        return gx


class Softmax(_OfLines):
    """e**x over its sum along ``axis``; the gradient is y * (gy - the sum of gy * y). Saves y."""

    kernel = "softmax"


class LogSoftmax(_OfLines):
    """x less the logarithm of the sum of e**x along ``axis``; the gradient is gy - e**y * the sum of gy. Saves y."""

    kernel = "log_softmax"
