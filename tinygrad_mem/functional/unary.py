"""Functions of one tensor, elementwise, with their in-place forms."""

from __future__ import annotations

from ..autograd.core import apply
from ..autograd.inplace import apply_
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


def exp(input: Tensor) -> Tensor:
    """e**input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Exp, input)


def exp_(input: Tensor) -> Tensor:
    """In-place :func:`exp`."""
    return apply_(ops.Exp, input)


def exp2(input: Tensor) -> Tensor:
    """2**input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Exp2, input)


def exp2_(input: Tensor) -> Tensor:
    """In-place :func:`exp2`."""
    return apply_(ops.Exp2, input)


def expm1(input: Tensor) -> Tensor:
    """e**input - 1, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Expm1, input)


def expm1_(input: Tensor) -> Tensor:
    """In-place :func:`expm1`."""
    return apply_(ops.Expm1, input)


def log(input: Tensor) -> Tensor:
    """ln(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log, input)


def log_(input: Tensor) -> Tensor:
    """In-place :func:`log`."""
    return apply_(ops.Log, input)


def log1p(input: Tensor) -> Tensor:
    """ln(1 + input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log1p, input)


def log1p_(input: Tensor) -> Tensor:
    """In-place :func:`log1p`."""
    return apply_(ops.Log1p, input)


def log2(input: Tensor) -> Tensor:
    """log2(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log2, input)


def log2_(input: Tensor) -> Tensor:
    """In-place :func:`log2`."""
    return apply_(ops.Log2, input)


def log10(input: Tensor) -> Tensor:
    """log10(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log10, input)


def log10_(input: Tensor) -> Tensor:
    """In-place :func:`log10`."""
    return apply_(ops.Log10, input)


def sqrt(input: Tensor) -> Tensor:
    """the square root, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Sqrt, input)


def sqrt_(input: Tensor) -> Tensor:
    """In-place :func:`sqrt`."""
    return apply_(ops.Sqrt, input)


def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input), elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Rsqrt, input)


def rsqrt_(input: Tensor) -> Tensor:
    """In-place :func:`rsqrt`."""
    return apply_(ops.Rsqrt, input)


def reciprocal(input: Tensor) -> Tensor:
    """1 / input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Reciprocal, input)


def reciprocal_(input: Tensor) -> Tensor:
    """In-place :func:`reciprocal`."""
    return apply_(ops.Reciprocal, input)


def sin(input: Tensor) -> Tensor:
    """the sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Sin, input)


def sin_(input: Tensor) -> Tensor:
    """In-place :func:`sin`."""
    return apply_(ops.Sin, input)


def cos(input: Tensor) -> Tensor:
    """the cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Cos, input)


def cos_(input: Tensor) -> Tensor:
    """In-place :func:`cos`."""
    return apply_(ops.Cos, input)


def tan(input: Tensor) -> Tensor:
    """the tangent, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Tan, input)


def tan_(input: Tensor) -> Tensor:
    """In-place :func:`tan`."""
    return apply_(ops.Tan, input)


def asin(input: Tensor) -> Tensor:
    """the inverse sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Asin, input)


def asin_(input: Tensor) -> Tensor:
    """In-place :func:`asin`."""
    return apply_(ops.Asin, input)


def acos(input: Tensor) -> Tensor:
    """the inverse cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Acos, input)


def acos_(input: Tensor) -> Tensor:
    """In-place :func:`acos`."""
    return apply_(ops.Acos, input)


def atan(input: Tensor) -> Tensor:
    """the inverse tangent, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Atan, input)


def atan_(input: Tensor) -> Tensor:
    """In-place :func:`atan`."""
    return apply_(ops.Atan, input)


def sinh(input: Tensor) -> Tensor:
    """the hyperbolic sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Sinh, input)


def sinh_(input: Tensor) -> Tensor:
    """In-place :func:`sinh`."""
    return apply_(ops.Sinh, input)


def cosh(input: Tensor) -> Tensor:
    """the hyperbolic cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Cosh, input)


def cosh_(input: Tensor) -> Tensor:
    """In-place :func:`cosh`."""
    return apply_(ops.Cosh, input)


def tanh(input: Tensor) -> Tensor:
    """the hyperbolic tangent, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Tanh, input)


def tanh_(input: Tensor) -> Tensor:
    """In-place :func:`tanh`."""
    return apply_(ops.Tanh, input)


def asinh(input: Tensor) -> Tensor:
    """the inverse hyperbolic sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Asinh, input)


def asinh_(input: Tensor) -> Tensor:
    """In-place :func:`asinh`."""
    return apply_(ops.Asinh, input)


def acosh(input: Tensor) -> Tensor:
    """the inverse hyperbolic cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Acosh, input)


def acosh_(input: Tensor) -> Tensor:
    """In-place :func:`acosh`."""
    return apply_(ops.Acosh, input)


def atanh(input: Tensor) -> Tensor:
    """the inverse hyperbolic tangent, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Atanh, input)


def atanh_(input: Tensor) -> Tensor:
    """In-place :func:`atanh`."""
    return apply_(ops.Atanh, input)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e**-input), elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Sigmoid, input)


def sigmoid_(input: Tensor) -> Tensor:
    """In-place :func:`sigmoid`."""
    return apply_(ops.Sigmoid, input)


def erf(input: Tensor) -> Tensor:
    """the error function, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Erf, input)


def erf_(input: Tensor) -> Tensor:
    """In-place :func:`erf`."""
    return apply_(ops.Erf, input)


def erfc(input: Tensor) -> Tensor:
    """1 - erf(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Erfc, input)


def erfc_(input: Tensor) -> Tensor:
    """In-place :func:`erfc`."""
    return apply_(ops.Erfc, input)


def erfinv(input: Tensor) -> Tensor:
    """the inverse of the error function: inf at 1, nan beyond, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Erfinv, input)


def erfinv_(input: Tensor) -> Tensor:
    """In-place :func:`erfinv`."""
    return apply_(ops.Erfinv, input)


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
