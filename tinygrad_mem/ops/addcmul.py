"""Ops of three operands in one pass, rounded once: a tensor plus a product or a quotient, and linear interpolation."""

from __future__ import annotations

from typing import Any

from ..dtypes import is_floating, result_type, want_fitting, want_held
from ..errors import DTypeError
from .base import Op, broadcast, refuse_bools, want_floating, want_numbers
from .elementwise import factor, keep_factor


def _output(ctx: Any, name: str, *operands: Any) -> Any:
    """The output of a broadcasting, promoting op."""
    shape = broadcast(name, *[z.shape for z in operands if type(z) not in (int, float, bool)])  # of 0-d tensors from elsewhere
    return ctx.output(shape, result_type(*operands))


class Addcmul(Op):
    """x + value * a * b. Saves a if b needs a gradient, and b if a does."""

    saves = ("a", "b")

    @staticmethod
    def forward(ctx, x, a, b, value):
        want_numbers("addcmul", value=value)
        out = _output(ctx, "addcmul", x, a, b)
        refuse_bools("addcmul", out)
        if is_floating(result_type(value)) and not is_floating(out.dtype):
            raise DTypeError(
                f"addcmul: For integral input tensors, argument value must not be a floating point number: {value}"
            )
        if ctx.needs[2]:
            keep_factor(ctx, "a", a)
        if ctx.needs[1]:
            keep_factor(ctx, "b", b)
        if is_floating(out.dtype):
            want_fitting(out.dtype, value)
        want_held(out.dtype, value)
        ctx.value = value
        ctx.kernels.addcmul(x, a, b, value, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        grads = []
        for need, other in ((ctx.needs[1], "b"), (ctx.needs[2], "a")):
            grad = ctx.empty_like(gy) if need else None
            if need:
                ctx.kernels.addcmul(-0.0, gy, factor(ctx, other), ctx.value, out=grad)  # which leaves the sign of 0 alone
            grads.append(grad)
        return gy, *grads


class Addcdiv(Op):
    """x + value * a / b. Saves a if b needs a gradient, and b if ``needs["a"] or needs["b"]``."""

    saves = ("a", "b")

    @staticmethod
    def forward(ctx, x, a, b, value):
        want_numbers("addcdiv", value=value)
        out = _output(ctx, "addcdiv", x, a, b)
        if ctx.needs[2]:
            keep_factor(ctx, "a", a)
        if ctx.needs[1] or ctx.needs[2]:
            keep_factor(ctx, "b", b)
        if is_floating(out.dtype):
            want_fitting(out.dtype, value)
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
            ctx.kernels.addcdiv(-0.0, gy, b, ctx.value, out=ga)
        return gy, ga, gb


class Lerp(Op):
    """x + weight * (end - x). Saves weight if ``needs["x"] or needs["end"]``, x if weight needs a gradient, and end if weight
    does."""

    saves = ("x", "end", "weight")

    @staticmethod
    def forward(ctx, x, end, weight):
        want_floating("lerp", x)
        for name, other in (("end", end), ("weight", weight)):
            if getattr(other, "dtype", x.dtype) != x.dtype:
                raise DTypeError(f"lerp: expected dtype {x.dtype} for `{name}` but got dtype {other.dtype}: convert one")
        out = _output(ctx, "lerp", x, end, weight)
        if isinstance(weight, (int, float)):
            want_fitting(x.dtype, weight)
            weight = float(weight)
        if ctx.needs[2]:
            ctx.save(x=x, end=end)
        if ctx.needs[0] or ctx.needs[1]:
            keep_factor(ctx, "weight", weight)
        ctx.kernels.lerp(x, end, weight, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = gend = gweight = None
        if ctx.needs[2]:
            gweight = ctx.empty_like(gy)
            x, end = ctx.take("x"), ctx.take("end")
            ctx.kernels.subtract(end, x, out=gweight)
            del x, end
            ctx.kernels.multiply(gy, gweight, out=gweight)
        if ctx.needs[0] or ctx.needs[1]:
            weight = factor(ctx, "weight")
            if ctx.needs[1]:
                gend = ctx.empty_like(gy)
                ctx.kernels.multiply(gy, weight, out=gend)
            if ctx.needs[0]:
                gx = ctx.empty_like(gy)
                ctx.kernels.addcmul(gy, gy, weight, -1, out=gx)
        return gx, gend, gweight
