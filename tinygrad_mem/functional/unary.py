"""Functions of one tensor, elementwise, with their in-place forms."""

from __future__ import annotations

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..ops import unary as ops
from ..ops.base import refuse_bools, want_floating
from .door import FLOAT32, public
from .elementwise import div, div_, mul, mul_, sub


@public("torch", "Tensor", "torch.negative", "Tensor.negative", "Tensor.__neg__")
def neg(input: Tensor) -> Tensor:
    """``-input``. Saves nothing."""
    return apply(ops.Neg, input)


@public("torch", "Tensor", "torch.negative_", "Tensor.negative_")
def neg_(input: Tensor) -> Tensor:
    return apply_(ops.Neg, input)


@public("torch", "Tensor", "Tensor.__pos__")
def positive(input: Tensor) -> Tensor:
    """``input`` itself. Raises: DTypeError: bools."""
    refuse_bools("positive", input.array)
    return input


@public("torch", "Tensor", "torch.absolute", "Tensor.absolute", "Tensor.__abs__")
def abs(input: Tensor) -> Tensor:
    """``|input|``. Saves: input. Raises: DTypeError: bools."""
    refuse_bools("abs", input.array)
    return apply(ops.Abs, input)


@public("torch", "Tensor", "torch.sgn", "Tensor.sgn")
def sign(input: Tensor) -> Tensor:
    """The sign: -1, 0 or 1. Saves nothing."""
    return apply(ops.Sign, input)


@public("torch", "Tensor", cuda=FLOAT32)
def square(input: Tensor) -> Tensor:
    """``input ** 2``. Saves: input."""
    return apply(ops.Square, input)


@public("torch", "Tensor")
def floor(input: Tensor) -> Tensor:
    """Round down. Saves nothing."""
    return apply(ops.Round, input, kernel="floor")


@public("torch", "Tensor")
def ceil(input: Tensor) -> Tensor:
    """Round up. Saves nothing."""
    return apply(ops.Round, input, kernel="ceil")


@public("torch", "special", "Tensor")
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Round to the nearest integer, halves to even, or to ``decimals`` digits.

    Raises:
        DTypeError: digits of integers.
    """
    if decimals:
        want_floating("round to decimals", input.array)
        return div(apply(ops.Round, mul(input, 10.0**decimals), kernel="rint"), 10.0**decimals)
    return apply(ops.Round, input, kernel="rint")


@public("torch", "Tensor", "torch.fix", "Tensor.fix")
def trunc(input: Tensor) -> Tensor:
    """Round towards zero. Saves nothing."""
    return apply(ops.Round, input, kernel="trunc")


@public("torch", "Tensor")
def frac(input: Tensor) -> Tensor:
    """The fraction: ``input - trunc(input)``. Raises: DTypeError: integers."""
    want_floating("frac", input.array)
    return sub(input, trunc(input))


@public("torch", "Tensor", cuda=FLOAT32)
def exp(input: Tensor) -> Tensor:
    """e**input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Exp, input)


@public("torch", "Tensor")
def exp_(input: Tensor) -> Tensor:
    return apply_(ops.Exp, input)


@public("torch", "special", "Tensor")
def exp2(input: Tensor) -> Tensor:
    """2**input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Exp2, input)


@public("torch", "special", "Tensor", cuda=FLOAT32)
def expm1(input: Tensor) -> Tensor:
    """e**input - 1, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Expm1, input)


@public("torch", "Tensor", cuda=FLOAT32)
def log(input: Tensor) -> Tensor:
    """ln(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log, input)


@public("torch", "Tensor")
def log_(input: Tensor) -> Tensor:
    return apply_(ops.Log, input)


@public("torch", "special", "Tensor", cuda=FLOAT32)
def log1p(input: Tensor) -> Tensor:
    """ln(1 + input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log1p, input)


@public("torch", "Tensor")
def log1p_(input: Tensor) -> Tensor:
    return apply_(ops.Log1p, input)


@public("torch", "Tensor", cuda=FLOAT32)
def log2(input: Tensor) -> Tensor:
    """log2(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log2, input)


@public("torch", "Tensor", cuda=FLOAT32)
def log10(input: Tensor) -> Tensor:
    """log10(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Log10, input)


@public("torch", "Tensor")
def log10_(input: Tensor) -> Tensor:
    return apply_(ops.Log10, input)


@public("torch", "Tensor")
def sqrt(input: Tensor) -> Tensor:
    """The square root, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Sqrt, input)


@public("torch", "Tensor")
def sqrt_(input: Tensor) -> Tensor:
    return apply_(ops.Sqrt, input)


@public("torch", "Tensor", cuda=FLOAT32)
def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(input), elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Rsqrt, input)


@public("torch", "Tensor")
def rsqrt_(input: Tensor) -> Tensor:
    return apply_(ops.Rsqrt, input)


@public("torch", "Tensor", cuda=FLOAT32)
def reciprocal(input: Tensor) -> Tensor:
    """1 / input, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Reciprocal, input)


@public("torch", "Tensor")
def reciprocal_(input: Tensor) -> Tensor:
    return apply_(ops.Reciprocal, input)


@public("torch", "Tensor")
def sin(input: Tensor) -> Tensor:
    """The sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Sin, input)


@public("torch", "Tensor")
def sin_(input: Tensor) -> Tensor:
    return apply_(ops.Sin, input)


@public("torch", "Tensor")
def cos(input: Tensor) -> Tensor:
    """The cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Cos, input)


@public("torch", "Tensor")
def cos_(input: Tensor) -> Tensor:
    return apply_(ops.Cos, input)


@public("torch", "Tensor", cuda=FLOAT32)
def tan(input: Tensor) -> Tensor:
    """The tangent, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Tan, input)


@public("torch", "Tensor", "torch.arcsin", "Tensor.arcsin", cuda=FLOAT32)
def asin(input: Tensor) -> Tensor:
    """The inverse sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Asin, input)


@public("torch", "Tensor", "torch.arccos", "Tensor.arccos", cuda=FLOAT32)
def acos(input: Tensor) -> Tensor:
    """The inverse cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Acos, input)


@public("torch", "Tensor", "torch.arctan", "Tensor.arctan")
def atan(input: Tensor) -> Tensor:
    """The inverse tangent, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Atan, input)


@public("torch", "Tensor", cuda=FLOAT32)
def sinh(input: Tensor) -> Tensor:
    """The hyperbolic sine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Sinh, input)


@public("torch", "Tensor", cuda=FLOAT32)
def cosh(input: Tensor) -> Tensor:
    """The hyperbolic cosine, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Cosh, input)


@public("torch", "nn.functional", "Tensor")
def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Tanh, input)


@public("torch", "Tensor")
def tanh_(input: Tensor) -> Tensor:
    return apply_(ops.Tanh, input)


@public("torch", "nn.functional", "Tensor")
def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e**-input), elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Sigmoid, input)


@public("torch", "Tensor")
def sigmoid_(input: Tensor) -> Tensor:
    return apply_(ops.Sigmoid, input)


@public("torch", "special", "Tensor")
def erf(input: Tensor) -> Tensor:
    """The error function, elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Erf, input)


@public("torch", "special", "Tensor")
def erfc(input: Tensor) -> Tensor:
    """1 - erf(input), elementwise; integers give the default dtype. Saves: input."""
    return apply(ops.Erfc, input)


@public("torch", "special", "Tensor", cuda=FLOAT32)
def erfinv(input: Tensor) -> Tensor:
    """The inverse of the error function: inf at 1, nan beyond, elementwise; integers give the default dtype. Saves: output."""
    return apply(ops.Erfinv, input)


@public("Tensor")
def erfinv_(input: Tensor) -> Tensor:
    return apply_(ops.Erfinv, input)


@public("torch", "Tensor", "Tensor.absolute_")
def abs_(input: Tensor) -> Tensor:
    return apply_(ops.Abs, input)


@public("torch", "Tensor")
def square_(input: Tensor) -> Tensor:
    return apply_(ops.Square, input)


@public("Tensor", "Tensor.sgn_")
def sign_(input: Tensor) -> Tensor:
    return apply_(ops.Sign, input)


@public("torch", "Tensor")
def floor_(input: Tensor) -> Tensor:
    return apply_(ops.Round, input, kernel="floor")


@public("torch", "Tensor")
def ceil_(input: Tensor) -> Tensor:
    return apply_(ops.Round, input, kernel="ceil")


@public("torch", "Tensor")
def round_(input: Tensor, *, decimals: int = 0) -> Tensor:
    if decimals:
        want_floating("round to decimals", input.array)
        return div_(apply_(ops.Round, mul_(input, 10.0**decimals), kernel="rint"), 10.0**decimals)
    return apply_(ops.Round, input, kernel="rint")
