"""Three operands in one pass, whose result is rounded once: a product or a quotient, added to a tensor."""

from __future__ import annotations

from typing import Any

from ..dtypes import is_floating, result_type
from ..errors import DTypeError
from .base import Op, broadcast
from .elementwise import factor, keep_factor


def _output(ctx: Any, name: str, *operands: Any) -> Any:
    """The output of a broadcasting, promoting op."""
    shape = broadcast(name, *[z.shape for z in operands if type(z) not in (int, float, bool)])  # of 0-d tensors from elsewhere
    return ctx.output(shape, result_type(*operands))


class Addcmul(Op):
    """x + value * a * b. Saves a if b needs a gradient, and b if a does."""

    saves = ("a", "b")
    outputs = ()

    @staticmethod
    def forward(ctx, x, a, b, value):
        out = _output(ctx, "addcmul", x, a, b)
        if isinstance(value, float) and not is_floating(out.dtype):
            raise DTypeError(
                f"addcmul: For integral input tensors, argument value must not be a floating point number: {value}"
            )
        if ctx.needs[2]:
            keep_factor(ctx, "a", a)
        if ctx.needs[1]:
            keep_factor(ctx, "b", b)
        ctx.value = value
        ctx.kernels.addcmul(x, a, b, value, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        grads = []
        for need, other in ((ctx.needs[1], "b"), (ctx.needs[2], "a")):
            grad = ctx.empty_like(gy) if need else None
            if need:
                ctx.kernels.addcmul(0, gy, factor(ctx, other), ctx.value, out=grad)
            grads.append(grad)
        return gy, *grads


class Addcdiv(Op):
    """x + value * a / b. Saves a if b needs a gradient, and b if ``needs["a"] or needs["b"]``."""

    saves = ("a", "b")
    outputs = ()

    @staticmethod
    def forward(ctx, x, a, b, value):
        out = _output(ctx, "addcdiv", x, a, b)
        if not is_floating(result_type(a, b)):
            raise DTypeError(
                "Integer division with addcdiv is no longer supported: make a tensor floating, or add trunc(tensor1 / tensor2)"
            )
        if ctx.needs[2]:
            keep_factor(ctx, "a", a)
        if ctx.needs[1] or ctx.needs[2]:
            keep_factor(ctx, "b", b)
        ctx.value = value
        ctx.kernels.addcdiv(x, a, b, value, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        if not (ctx.needs[1] or ctx.needs[2]):
            return gy, None, None
        ga = gb = None
        b = factor(ctx, "b")
        if ctx.needs[2]:
            gb = ctx.empty_like(gy)
            ctx.kernels.divide_backward_y(gy, factor(ctx, "a"), b, out=gb)
            if ctx.value != 1:
                ctx.kernels.multiply(gb, ctx.value, out=gb)
        if ctx.needs[1]:
            ga = ctx.empty_like(gy)
            ctx.kernels.addcdiv(0, gy, b, ctx.value, out=ga)
        return gy, ga, gb
