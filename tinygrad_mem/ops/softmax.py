"""Softmax and its logarithm along one axis. Both save the output, one array of x's size."""

from __future__ import annotations

from .base import Op


class Softmax(Op):
    """e**x over its sum along ``axis``. Saves y."""

    saves = ("y",)

    @staticmethod
    def forward(ctx, x, *, axis):
        y = ctx.output_like(x)
        ctx.axis = axis
        ctx.kernels.softmax(x, axis, out=y)
        if ctx.needs[0]:
            ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.softmax_backward(gy, ctx.take("y"), ctx.axis, out=gx)
        return gx


class LogSoftmax(Op):
    """x less the logarithm of the sum of e**x along ``axis``. Saves y."""

    saves = ("y",)

    @staticmethod
    def forward(ctx, x, *, axis):
        y = ctx.output_like(x)
        ctx.axis = axis
        ctx.kernels.log_softmax(x, axis, out=y)
        if ctx.needs[0]:
            ctx.save(y=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.log_softmax_backward(gy, ctx.take("y"), ctx.axis, out=gx)
        return gx
