"""Functions of one tensor, elementwise."""

from __future__ import annotations

from typing import ClassVar

from .. import dtypes
from ..dtypes import is_floating
from ..errors import DTypeError
from .base import Op, refuse_bools


class Unary(Op):
    """The base of functions of one tensor: ``saves`` is ``("x",)`` or ``("y",)``, what the gradient is computed from.

    The kernels are ``KERNEL(x, out=y)`` and ``KERNEL_backward(gy, x or y, out=gx)``, or ``gradient`` in its place. ``kernel``
    is the name of the class in lower case unless given. Integers give the default dtype where ``floating``.
    """

    kernel: ClassVar[str]
    gradient: ClassVar[str] = ""
    floating: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.kernel = vars(cls).get("kernel") or cls.__name__.lower()

    @classmethod
    def forward(cls, ctx, x):
        dtype = x.dtype if is_floating(x.dtype) or not cls.floating else dtypes.get_default_dtype()
        y = ctx.output(x.shape, dtype)
        if cls.saves == ("x",) and ctx.needs[0]:
            ctx.save(x=x)
        if x.dtype != dtype:  # NumPy would compute bools and bytes in half precision
            ctx.kernels.copy(x, out=y)
            x = y
        getattr(ctx.kernels, cls.kernel)(x, out=y)
        if cls.saves == ("y",) and ctx.needs[0]:
            ctx.save(y=y)
        return y

    @classmethod
    def backward(cls, ctx, gy):
        gx = ctx.grad_buffer(gy)
        getattr(ctx.kernels, cls.gradient or cls.kernel + "_backward")(gy, ctx.take(cls.saves[0]), out=gx)
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
    """abs(x); the derivative is sign(x). Saves x."""

    saves, kernel, floating = ("x",), "absolute", False


def _unary(name: str, saved: str, formula: str, derivative: str, kernel: str = "", gradient: str = "") -> type[Unary]:
    """A class of this name."""
    text = f"{formula}; the derivative is {derivative}. Saves {saved}."
    rule = {"saves": (saved,), "kernel": kernel, "gradient": gradient}
    return type(name, (Unary,), {"__doc__": text, "__module__": __name__, **rule})


Exp = _unary("Exp", "y", "e**x", "y", gradient="multiply")
Log = _unary("Log", "x", "ln(x)", "1 / x", gradient="divide")
Exp2 = _unary("Exp2", "y", "2**x", "y ln 2")
Expm1 = _unary("Expm1", "y", "e**x - 1", "y + 1")
Log1p = _unary("Log1p", "x", "ln(1 + x)", "1 / (1 + x)")
Log2 = _unary("Log2", "x", "log2(x)", "1 / (x ln 2)")
Log10 = _unary("Log10", "x", "log10(x)", "1 / (x ln 10)")
Sqrt = _unary("Sqrt", "y", "The square root of x", "1 / (2 y)")
Rsqrt = _unary("Rsqrt", "y", "1 / sqrt(x)", "-y**3 / 2")
Reciprocal = _unary("Reciprocal", "y", "1 / x", "-y**2")
Sin = _unary("Sin", "x", "sin(x)", "cos(x)")
Cos = _unary("Cos", "x", "cos(x)", "-sin(x)")
Tan = _unary("Tan", "y", "tan(x)", "1 + y**2")
Asin = _unary("Asin", "x", "asin(x)", "1 / sqrt(1 - x**2)", "arcsin")
Acos = _unary("Acos", "x", "acos(x)", "-1 / sqrt(1 - x**2)", "arccos")
Atan = _unary("Atan", "x", "atan(x)", "1 / (1 + x**2)", "arctan")
Sinh = _unary("Sinh", "x", "sinh(x)", "cosh(x)")
Cosh = _unary("Cosh", "x", "cosh(x)", "sinh(x)")
Tanh = _unary("Tanh", "y", "tanh(x)", "1 - y**2")
Sigmoid = _unary("Sigmoid", "y", "1 / (1 + e**-x)", "y (1 - y)")
Erf = _unary("Erf", "x", "The error function", "2 e**-x**2 / sqrt(pi)")
Erfc = _unary("Erfc", "x", "1 - erf(x)", "-2 e**-x**2 / sqrt(pi)")
Erfinv = _unary("Erfinv", "y", "The inverse of the error function", "sqrt(pi) e**y**2 / 2")


class Square(Unary):
    """x**2, of bools in int64; the derivative is 2 x. Saves x."""

    saves, floating = ("x",), False

    @classmethod
    def forward(cls, ctx, x):
        if x.dtype != dtypes.bool:
            return super().forward(ctx, x)
        y = ctx.output(x.shape, dtypes.int64)
        ctx.kernels.copy(x, out=y)
        return y


class Flat(Op):
    """The base of ops whose gradient is zero. Saves nothing."""

    @staticmethod
    def backward(ctx, gy):
        return ctx.grad_zeros(gy)


class Round(Flat):
    """floor, ceil, round or trunc by the kernel's name, not of bools. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, kernel):
        refuse_bools("round" if kernel == "rint" else kernel, x)
        y = ctx.output_like(x)
        if is_floating(x.dtype):
            getattr(ctx.kernels, kernel)(x, out=y)
        else:
            ctx.kernels.copy(x, out=y)
        return y


class Sign(Flat):
    """-1, 0 or 1. Saves nothing."""

    @staticmethod
    def forward(ctx, x):
        y = ctx.output_like(x)
        ctx.kernels.sign(x, out=y)
        return y
