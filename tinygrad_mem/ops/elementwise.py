"""Elementwise arithmetic with broadcasting and PyTorch's promotion."""

from __future__ import annotations

from ..dtypes import result_type
from .base import Op, broadcast


class Add(Op):
    """x + y. Saves nothing."""

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "add", x, y)
        ctx.kernels.add(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        return gy, gy


class Mul(Op):
    """x * y. Saves each factor for the other's gradient: x if y needs one, y if x does."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "mul", x, y)
        if ctx.needs[1]:
            ctx.save(x=x)
        if ctx.needs[0]:
            ctx.save(y=y)
        ctx.kernels.multiply(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.multiply(gy, ctx.take("x"), out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.multiply(gy, ctx.take("y"), out=gx)
        return gx, gz


def binary_output(ctx, name, x, y):
    """The output of a broadcasting, promoting op of two operands, each an array or a Python number."""
    if getattr(y, "dtype", None) is (dtype := getattr(x, "dtype", None)) and x.shape == y.shape:
        return ctx.output(x.shape, dtype)
    shape = broadcast(name, *[z.shape for z in (x, y) if hasattr(z, "shape")])
    return ctx.output(shape, result_type(x, y))
