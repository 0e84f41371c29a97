"""Elementwise arithmetic with broadcasting and PyTorch's promotion."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from .. import dtypes
from ..dtypes import result_type
from ..errors import DTypeError
from .base import Op, broadcast


def binary_output(ctx, name, x, y, floating=False):
    """The output of a broadcasting, promoting op of two operands, each an array or a Python number."""
    dtype: Any = getattr(x, "dtype", None)
    if getattr(y, "dtype", None) is not dtype or x.shape != y.shape:
        shape = broadcast(name, *[z.shape for z in (x, y) if hasattr(z, "shape")])
        dtype = result_type(x, y)
    else:
        shape = x.shape
    if floating and dtype.kind != "f":
        dtype = dtypes.get_default_dtype()
    return ctx.device.empty(shape, dtype) if ctx.target is None else ctx.output(shape, dtype)


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


class Sub(Op):
    """x - y. Saves nothing."""

    @staticmethod
    def forward(ctx, x, y):
        if getattr(x, "dtype", None) == dtypes.bool or getattr(y, "dtype", None) == dtypes.bool:
            raise DTypeError("Subtraction, the `-` operator, with a bool tensor is not supported: use ^ or logical_xor()")
        out = binary_output(ctx, "sub", x, y)
        ctx.kernels.subtract(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        if not ctx.needs[1]:
            return gy, None
        minus = ctx.empty_like(gy) if ctx.needs[0] else ctx.grad_buffer(gy)
        ctx.kernels.negative(gy, out=minus)
        return gy if ctx.needs[0] else None, minus


class Mul(Op):
    """x * y. Saves x if y needs a gradient, and y if x does."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "mul", x, y)
        needs = ctx.needs
        if needs[1]:
            keep_factor(ctx, "x", x)
        if needs[0]:
            keep_factor(ctx, "y", y)
        ctx.kernels.multiply(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.multiply(gy, factor(ctx, "x"), out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.multiply(gy, factor(ctx, "y"), out=gx)
        return gx, gz


def keep_factor(ctx, name, value):
    """Keep an operand for backward: an array is saved, a Python number is remembered and costs nothing."""
    if not hasattr(value, "dtype"):
        setattr(ctx, name, value)
    elif ctx.target is None:
        ctx.saved[name] = value  # what save() does in the end, at half the price: every product comes here
    else:
        ctx.save(**{name: value})


def factor(ctx, name):
    """What :func:`keep_factor` kept."""
    return ctx.take(name) if name in ctx.saved else getattr(ctx, name)


class Div(Op):
    """x / y. Saves y, and x if y needs a gradient."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "div", x, y, floating=True)
        if ctx.needs[0] or ctx.needs[1]:
            keep_factor(ctx, "y", y)
        if ctx.needs[1]:
            keep_factor(ctx, "x", x)
        ctx.kernels.divide(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        y = factor(ctx, "y")
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.divide_backward_y(gy, factor(ctx, "x"), y, out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.divide(gy, y, out=gx)
        return gx, gz


class Pow(Op):
    """x ** y. Saves x, y, and out if y needs a gradient."""

    saves = ("x", "y", "out")
    outputs = ("out",)

    @staticmethod
    def forward(ctx, x, y):
        out = binary_output(ctx, "pow", x, y)
        if not hasattr(y, "dtype") and out.dtype.kind in "iu" and y < 0:
            raise DTypeError("Integers to negative integer powers are not allowed: make the tensor floating first")
        if ctx.needs[0] or ctx.needs[1]:
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        ctx.kernels.power(x, y, out=out)
        if ctx.needs[1]:
            ctx.save(out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = factor(ctx, "x"), factor(ctx, "y")
        gx = gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.power_backward_y(gy, x, ctx.take("out"), out=gz)
        if ctx.needs[0]:
            gx = ctx.grad_buffer(gy)
            ctx.kernels.power_backward_x(gy, x, y, out=gx)
        return gx, gz


class _Extremum(Op):
    """Saves x and y (a number costs nothing); where they are equal each gets half of the gradient."""

    saves = ("x", "y")
    outputs = ()
    kernel: ClassVar[str]
    low: ClassVar[bool]

    @classmethod
    def forward(cls, ctx, x, y):
        out = binary_output(ctx, cls.__name__.lower(), x, y)
        if any(ctx.needs):
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        getattr(ctx.kernels, cls.kernel)(x, y, out=out)
        return out

    @classmethod
    def backward(cls, ctx, gy):
        x, y = factor(ctx, "x"), factor(ctx, "y")
        grads = []
        for need, mine, other in ((ctx.needs[0], x, y), (ctx.needs[1], y, x)):
            grad = ctx.empty_like(gy) if need else None
            if need:
                ctx.kernels.extremum_backward(gy, mine, other, cls.low, out=grad)
            grads.append(grad)
        return tuple(grads)


class Maximum(_Extremum):
    """max(x, y); nan if either is. Saves x and y."""

    kernel, low = "maximum", False


class Minimum(_Extremum):
    """min(x, y); nan if either is. Saves x and y."""

    kernel, low = "minimum", True


class Atan2(Op):
    """The angle of the point (y, x), from -pi to pi. Saves y and x."""

    saves = ("y", "x")
    outputs = ()

    @staticmethod
    def forward(ctx, y, x):
        out = binary_output(ctx, "atan2", y, x, floating=True)
        if any(ctx.needs):
            ctx.save(y=y, x=x)
        ctx.kernels.arctan2(y, x, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        y, x = ctx.take("y"), ctx.take("x")
        ga = gb = None
        if ctx.needs[0]:
            ga = ctx.empty_like(gy)
            ctx.kernels.arctan2_backward(gy, y, x, 1.0, out=ga)
        if ctx.needs[1]:
            gb = ctx.empty_like(gy)
            ctx.kernels.arctan2_backward(gy, x, y, -1.0, out=gb)
        return ga, gb


class Unary(Op):
    """A function of one tensor; ``saves`` says whether its derivative is computed from x or from y.

    Integer input gives the default dtype where ``floating``; the kernel's name is the class's unless given.
    """

    kernel: ClassVar[str] = ""
    floating: ClassVar[bool] = True

    @classmethod
    def forward(cls, ctx, x):
        dtype = x.dtype if x.dtype.kind == "f" or not cls.floating else dtypes.get_default_dtype()
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


class Square(Unary):
    """x**2. Saves x."""

    saves, floating = ("x",), False


class Round(Op):
    """floor, ceil, round or trunc by the kernel's name. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x, *, kernel):
        y = ctx.output_like(x)
        if x.dtype.kind == "f":
            getattr(ctx.kernels, kernel)(x, out=y)
        else:
            ctx.kernels.copy(x, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return _no_gradient(ctx, gy)


def _no_gradient(ctx, gy):
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
        return _no_gradient(ctx, gy)


class Remainder(Op):
    """x - y * floor(x / y) or, by the kernel's name, C's fmod. Saves x if y needs a gradient, and y if y does."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        out = binary_output(ctx, kernel, x, y)
        if ctx.needs[1]:
            keep_factor(ctx, "x", x)
            keep_factor(ctx, "y", y)
        ctx.rounding = "floor" if kernel == "remainder" else "trunc"
        getattr(ctx.kernels, kernel)(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gz = None
        if ctx.needs[1]:
            gz = ctx.empty_like(gy)
            ctx.kernels.divide(factor(ctx, "x"), factor(ctx, "y"), out=gz)
            getattr(ctx.kernels, ctx.rounding)(gz, out=gz)
            ctx.kernels.multiply(gz, gy, out=gz)
            ctx.kernels.negative(gz, out=gz)
        return gy, gz


class DivRound(Op):
    """x / y rounded down or towards zero. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x, y, *, rounding):
        out = binary_output(ctx, "div", x, y)
        if rounding == "floor" or out.dtype.kind == "u":
            ctx.kernels.floor_divide(x, y, out=out)
        elif out.dtype.kind == "f":
            ctx.kernels.divide(x, y, out=out)
            ctx.kernels.trunc(out, out=out)
        else:  # integers towards zero: take the C remainder away first, then the division is exact
            ctx.kernels.fmod(x, y, out=out)
            ctx.kernels.subtract(x, out, out=out)
            ctx.kernels.floor_divide(out, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        zero = ctx.grad_buffer(gy)
        ctx.kernels.fill(0, out=zero)
        return (zero if ctx.needs[0] else None), (ctx.zeros(gy.shape, gy.dtype) if ctx.needs[1] else None)


class Compare(Op):
    """A comparison or a logical op, by the kernel's name: bool, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        shape = broadcast(kernel, *[z.shape for z in (x, y) if hasattr(z, "shape")])
        out = ctx.output(shape, dtypes.bool)
        getattr(ctx.kernels, kernel)(x, y, out=out)
        return out


class Classify(Op):
    """isnan, isinf, isfinite or logical_not, by the kernel's name: bool, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, kernel):
        out = ctx.output(x.shape, dtypes.bool)
        getattr(ctx.kernels, kernel)(x, out=out)
        return out


class Bitwise(Op):
    """and, or, xor and shifts of integers and bools, by the kernel's name: no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        for z in (x, y):
            if getattr(z, "dtype", np.dtype(int)).kind == "f" or isinstance(z, float):
                raise DTypeError(f"{kernel}: expected integers or bools, found {getattr(z, 'dtype', type(z).__name__)}")
        out = binary_output(ctx, kernel, x, y)
        getattr(ctx.kernels, kernel)(x, y, out=out)
        return out


class BitwiseNot(Op):
    """~x of integers and bools: no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x):
        if x.dtype.kind == "f":
            raise DTypeError(f"bitwise_not: expected integers or bools, found {x.dtype}")
        out = ctx.output_like(x)
        ctx.kernels.bitwise_not(x, out=out)
        return out


class Clamp(Op):
    """x within [low, high], numbers or None. Saves x."""

    saves = ("x",)
    outputs = ()

    @staticmethod
    def forward(ctx, x, *, low, high):
        bounds = [b for b in (low, high) if b is not None]
        y = ctx.output(x.shape, result_type(x, *bounds))
        if ctx.needs[0]:
            ctx.save(x=x)
        ctx.low, ctx.high = low, high
        ctx.kernels.clamp(x, low, high, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.clamp_backward(gy, ctx.take("x"), ctx.low, ctx.high, out=gx)
        return gx


class Where(Op):
    """x where condition, else y. Saves the condition: one byte an element."""

    saves = ("condition",)
    outputs = ()

    @staticmethod
    def forward(ctx, condition, x, y):
        if condition.dtype != dtypes.bool:
            raise DTypeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {condition.dtype}")
        shape = broadcast("where", *[z.shape for z in (condition, x, y) if hasattr(z, "shape")])
        out = ctx.output(shape, result_type(x, y))
        if any(ctx.needs):
            ctx.save(condition=condition)
        ctx.kernels.where(condition, x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        condition = ctx.take("condition")
        gx = gz = None
        if ctx.needs[1]:
            gx = ctx.zeros(gy.shape, gy.dtype)
            ctx.kernels.masked_copy(gy, condition, out=gx)
        if ctx.needs[2]:
            gz = ctx.grad_buffer(gy)
            if gz is not gy:
                ctx.kernels.copy(gy, out=gz)
            ctx.kernels.masked_fill(0, condition, out=gz)
        return None, gx, gz


class MaskedFill(Op):
    """x with ``value`` where mask. Saves the mask: one byte an element."""

    saves = ("mask",)
    outputs = ()

    @staticmethod
    def forward(ctx, x, mask, *, value):
        if mask.dtype != dtypes.bool:
            raise DTypeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}")
        y = ctx.output(broadcast("masked_fill", x.shape, mask.shape), x.dtype)
        if ctx.needs[0]:
            ctx.save(mask=mask)
        if y is not x:
            ctx.kernels.copy(x, out=y)
        ctx.kernels.masked_fill(value, mask, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        if gx is not gy:
            ctx.kernels.copy(gy, out=gx)
        ctx.kernels.masked_fill(0, ctx.take("mask"), out=gx)
        return gx, None


class NanToNum(Op):
    """x with nan and infinities replaced. Saves x."""

    saves = ("x",)
    outputs = ()

    @staticmethod
    def forward(ctx, x, *, nan, high, low):
        y = ctx.output_like(x)
        if ctx.needs[0]:
            ctx.save(x=x)
        ctx.kernels.nan_to_num(x, nan, high, low, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        finite = ctx.empty(x.shape, dtypes.bool)
        ctx.kernels.isfinite(x, out=finite)
        gx = ctx.zeros(gy.shape, gy.dtype)
        ctx.kernels.masked_copy(gy, finite, out=gx)
        return gx


class Fill(Op):
    """Every element becomes ``value``. Saves nothing; the gradient is zero."""

    @staticmethod
    def forward(ctx, x, *, value):
        y = ctx.output_like(x)
        ctx.kernels.fill(value, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return _no_gradient(ctx, gy)
