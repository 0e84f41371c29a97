"""Functions of one tensor, elementwise, with their in-place forms."""

from __future__ import annotations

from ..autograd.inplace import apply_
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..ops import unary as ops
from .elementwise import div, div_, mul, mul_, sub


def neg(input: Tensor) -> Tensor:
    """``-input``. Saves nothing."""
    return apply(ops.Neg, input)


def neg_(input: Tensor) -> Tensor:
    """In-place :func:`neg`."""
    return apply_(ops.Neg, input)


def positive(input: Tensor) -> Tensor:
    """``input`` itself."""
    return input


def abs(input: Tensor) -> Tensor:
    """``|input|``. Saves: input."""
    return apply(ops.Abs, input)


def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1. Saves nothing."""
    return apply(ops.Sign, input)


def square(input: Tensor) -> Tensor:
    """``input ** 2``. Saves: input."""
    return apply(ops.Square, input)


def floor(input: Tensor) -> Tensor:
    """The largest integers not above. Saves nothing."""
    return apply(ops.Round, input, kernel="floor")


def ceil(input: Tensor) -> Tensor:
    """The smallest integers not below. Saves nothing."""
    return apply(ops.Round, input, kernel="ceil")


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integers, halves to even; with ``decimals``, of that many digits behind the point."""
    if decimals:
        return div(apply(ops.Round, mul(input, 10.0**decimals), kernel="rint"), 10.0**decimals)
    return apply(ops.Round, input, kernel="rint")


def trunc(input: Tensor) -> Tensor:
    """Without the fraction. Saves nothing."""
    return apply(ops.Round, input, kernel="trunc")


def frac(input: Tensor) -> Tensor:
    """The fraction: ``input - trunc(input)``."""
    return sub(input, trunc(input))


def _unary(op: type, formula: str, saved: str) -> tuple:
    def function(input: Tensor) -> Tensor:
        return apply(op, input)

    def function_(input: Tensor) -> Tensor:
        return apply_(op, input)

    name = op.__name__.lower()
    function.__name__ = function.__qualname__ = name
    function_.__name__ = function_.__qualname__ = name + "_"
    function.__doc__ = f"{formula}, elementwise; integers give the default dtype. Saves: {saved}."
    function_.__doc__ = f"In-place :func:`{name}`."
    return function, function_


exp, exp_ = _unary(ops.Exp, "e**input", "output")
exp2, exp2_ = _unary(ops.Exp2, "2**input", "output")
expm1, expm1_ = _unary(ops.Expm1, "e**input - 1", "output")
log, log_ = _unary(ops.Log, "ln(input)", "input")
log1p, log1p_ = _unary(ops.Log1p, "ln(1 + input)", "input")
log2, log2_ = _unary(ops.Log2, "log2(input)", "input")
log10, log10_ = _unary(ops.Log10, "log10(input)", "input")
sqrt, sqrt_ = _unary(ops.Sqrt, "the square root", "output")
rsqrt, rsqrt_ = _unary(ops.Rsqrt, "1 / sqrt(input)", "output")
reciprocal, reciprocal_ = _unary(ops.Reciprocal, "1 / input", "output")
sin, sin_ = _unary(ops.Sin, "the sine", "input")
cos, cos_ = _unary(ops.Cos, "the cosine", "input")
tan, tan_ = _unary(ops.Tan, "the tangent", "output")
asin, asin_ = _unary(ops.Asin, "the inverse sine", "input")
acos, acos_ = _unary(ops.Acos, "the inverse cosine", "input")
atan, atan_ = _unary(ops.Atan, "the inverse tangent", "input")
sinh, sinh_ = _unary(ops.Sinh, "the hyperbolic sine", "input")
cosh, cosh_ = _unary(ops.Cosh, "the hyperbolic cosine", "input")
tanh, tanh_ = _unary(ops.Tanh, "the hyperbolic tangent", "output")
asinh, asinh_ = _unary(ops.Asinh, "the inverse hyperbolic sine", "input")
acosh, acosh_ = _unary(ops.Acosh, "the inverse hyperbolic cosine", "input")
atanh, atanh_ = _unary(ops.Atanh, "the inverse hyperbolic tangent", "input")
sigmoid, sigmoid_ = _unary(ops.Sigmoid, "1 / (1 + e**-input)", "output")
erf, erf_ = _unary(ops.Erf, "the error function", "input")
erfc, erfc_ = _unary(ops.Erfc, "1 - erf(input)", "input")
erfinv, erfinv_ = _unary(ops.Erfinv, "the inverse of the error function: inf at 1, nan beyond", "output")


def abs_(input: Tensor) -> Tensor:
    """In-place :func:`abs`."""
    return apply_(ops.Abs, input)


def square_(input: Tensor) -> Tensor:
    """In-place :func:`square`."""
    return apply_(ops.Square, input)


def sign_(input: Tensor) -> Tensor:
    """In-place :func:`sign`."""
    return apply_(ops.Sign, input)


def floor_(input: Tensor) -> Tensor:
    """In-place :func:`floor`."""
    return apply_(ops.Round, input, kernel="floor")


def ceil_(input: Tensor) -> Tensor:
    """In-place :func:`ceil`."""
    return apply_(ops.Round, input, kernel="ceil")


def round_(input: Tensor, *, decimals: int = 0) -> Tensor:
    """In-place :func:`round`."""
    if decimals:
        return div_(apply_(ops.Round, mul_(input, 10.0**decimals), kernel="rint"), 10.0**decimals)
    return apply_(ops.Round, input, kernel="rint")


def trunc_(input: Tensor) -> Tensor:
    """In-place :func:`trunc`."""
    return apply_(ops.Round, input, kernel="trunc")
