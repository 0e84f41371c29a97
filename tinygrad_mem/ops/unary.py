"""Functions of one tensor, elementwise."""

from __future__ import annotations

from typing import ClassVar

from .. import dtypes
from ..dtypes import is_floating
from ..errors import DTypeError
from .base import Op


class Unary(Op):
    """A function of one tensor; ``saves`` says whether its derivative is computed from x or from y.

    Integer input gives the default dtype where ``floating``; the kernel's name is the class's unless given.
    """

    kernel: ClassVar[str] = ""
    floating: ClassVar[bool] = True

    @classmethod
    def forward(cls, ctx, x):
        dtype = x.dtype if is_floating(x.dtype) or not cls.floating else dtypes.get_default_dtype()
        y = ctx.output(x.shape, dtype)
        if cls.saves == ("x",) and ctx.needs[0]:
            ctx.save(x=x)
        if x.dtype != dtype:  # NumPy would compute bools and bytes in half precision
            ctx.kernels.copy(x, out=y)
            x = y
        getattr(ctx.kernels, cls.kernel or cls.__name__.lower())(x, out=y)
        if cls.saves == ("y",) and ctx.needs[0]:
            ctx.save(y=y)
        return y

    @classmethod
    def backward(cls, ctx, gy):
        gx = ctx.grad_buffer(gy)
        getattr(ctx.kernels, (cls.kernel or cls.__name__.lower()) + "_backward")(gy, ctx.take(cls.saves[0]), out=gx)
        return gx


class Neg(Op):
    """-x. Saves nothing."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype == dtypes.bool:
            raise DTypeError("Negation, the `-` operator, on a bool tensor is not supported: use ~ or logical_not()")
        y = ctx.output_like(x)
        ctx.kernels.negative(x, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.negative(gy, out=gx)
        return gx


class Abs(Unary):
    """|x|. Saves x."""

    saves, kernel, floating = ("x",), "absolute", False


class Exp(Unary):
    """e**x. Saves y."""

    saves = ("y",)

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.multiply(gy, ctx.take("y"), out=gx)
        return gx


class Log(Unary):
    """ln(x). Saves x."""

    saves = ("x",)

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.divide(gy, ctx.take("x"), out=gx)
        return gx


def _unary(name: str, saved: str, formula: str, kernel: str = "") -> type[Unary]:
    members = {"__doc__": f"{formula}. Saves {saved}.", "saves": (saved,), "kernel": kernel, "__module__": __name__}
    return type(name, (Unary,), members)


Exp2 = _unary("Exp2", "y", "2**x")
Expm1 = _unary("Expm1", "y", "e**x - 1")
Log1p = _unary("Log1p", "x", "ln(1 + x)")
Log2 = _unary("Log2", "x", "log2(x)")
Log10 = _unary("Log10", "x", "log10(x)")
Sqrt = _unary("Sqrt", "y", "the square root of x")
Rsqrt = _unary("Rsqrt", "y", "1 / sqrt(x)")
Reciprocal = _unary("Reciprocal", "y", "1 / x")
Sin = _unary("Sin", "x", "sin(x)")
Cos = _unary("Cos", "x", "cos(x)")
Tan = _unary("Tan", "y", "tan(x)")
Asin = _unary("Asin", "x", "asin(x)", "arcsin")
Acos = _unary("Acos", "x", "acos(x)", "arccos")
Atan = _unary("Atan", "x", "atan(x)", "arctan")
Sinh = _unary("Sinh", "x", "sinh(x)")
Cosh = _unary("Cosh", "x", "cosh(x)")
Tanh = _unary("Tanh", "y", "tanh(x)")
Asinh = _unary("Asinh", "x", "asinh(x)", "arcsinh")
Acosh = _unary("Acosh", "x", "acosh(x)", "arccosh")
Atanh = _unary("Atanh", "x", "atanh(x)", "arctanh")
Sigmoid = _unary("Sigmoid", "y", "1 / (1 + e**-x)")
Erf = _unary("Erf", "x", "the error function")
Erfc = _unary("Erfc", "x", "1 - erf(x)")
Erfinv = _unary("Erfinv", "y", "the inverse of the error function")


class Square(Unary):
    """x**2, of bools in int64. Saves x."""

    saves, floating = ("x",), False

    @classmethod
    def forward(cls, ctx, x):
        if x.dtype != dtypes.bool:
            return super().forward(ctx, x)
        y = ctx.output(x.shape, dtypes.int64)
        ctx.kernels.copy(x, out=y)
        return y


class Round(Op):
    """floor, ceil, round or trunc by the kernel's name. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x, *, kernel):
        y = ctx.output_like(x)
        if is_floating(x.dtype):
            getattr(ctx.kernels, kernel)(x, out=y)
        else:
            ctx.kernels.copy(x, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return no_gradient(ctx, gy)


def no_gradient(ctx, gy):
    """Zeros: the function is flat almost everywhere."""
    gx = ctx.grad_buffer(gy)
    ctx.kernels.fill(0, out=gx)
    return gx


class Sign(Op):
    """-1, 0 or 1. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x):
        y = ctx.output_like(x)
        ctx.kernels.sign(x, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return no_gradient(ctx, gy)
