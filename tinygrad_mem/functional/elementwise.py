"""Elementwise functions. All broadcast and promote as PyTorch does; results are new tensors unless the name ends in ``_``.

``Saves`` in a docstring is what the tape keeps for backward when the input requires a gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.inplace import apply_
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DTypeError
from ..ops import elementwise as ops

Number = float | int | bool


def add(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input + alpha * other``. Saves nothing."""
    return apply(ops.Add, input, other if alpha == 1 else mul(other, alpha))


def add_(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input += alpha * other``. Saves nothing."""
    return apply_(ops.Add, input, other if alpha == 1 else mul(other, alpha))


def sub(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input - alpha * other``. Saves nothing."""
    return apply(ops.Sub, input, _times(other, alpha))


def sub_(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input -= alpha * other``. Saves nothing."""
    return apply_(ops.Sub, input, _times(other, alpha))


def _times(other: Tensor | Number, alpha: Number) -> Tensor | Number:
    """What is to be taken away; a bool as it is, which the subtraction refuses."""
    return other if alpha == 1 or (isinstance(other, Tensor) and other.dtype.kind == "b") else mul(other, alpha)


def rsub(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``other - alpha * input``. Saves nothing."""
    return sub(other, input, alpha=alpha)


def mul(input: Tensor | Number, other: Tensor | Number) -> Any:
    """``input * other``. Saves: each factor that the other's gradient needs."""
    return apply(ops.Mul, input, other)


def mul_(input: Tensor, other: Tensor | Number) -> Tensor:
    """``input *= other``. Saves: each factor that the other's gradient needs."""
    return apply_(ops.Mul, input, other)


def div(input: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``; rounded towards zero (``"trunc"``) or down (``"floor"``) on request.

    Saves: other, and input if other needs a gradient; nothing when rounding.

    Raises:
        ValueError: another rounding mode.
    """
    if rounding_mode is None:
        return apply(ops.Div, input, other)
    return apply(ops.DivRound, input, other, rounding=_rounding(rounding_mode))


def div_(input: Tensor, other: Tensor | Number, *, rounding_mode: str | None = None) -> Tensor:
    """In-place :func:`div`."""
    if rounding_mode is None:
        return apply_(ops.Div, input, other)
    return apply_(ops.DivRound, input, other, rounding=_rounding(rounding_mode))


def _rounding(mode: str) -> str:
    if mode not in ("trunc", "floor"):
        raise ArgumentError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found {mode!r}")
    return mode


def floor_divide(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``floor(input / other)``. Saves nothing; the gradient is zero."""
    return apply(ops.DivRound, input, other, rounding="floor")


def pow(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """``input ** exponent``. Saves: both tensors, and the output if the exponent needs a gradient."""
    if isinstance(input, Tensor) and not isinstance(exponent, Tensor) and exponent == 2:
        return apply(ops.Square, input)  # half of the work
    return apply(ops.Pow, input, exponent)


def pow_(input: Tensor, exponent: Tensor | Number) -> Tensor:
    """In-place :func:`pow`."""
    return apply_(ops.Pow, input, exponent)


def remainder(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """Python's ``%``: the sign of the divisor. Saves: both if other needs a gradient."""
    return apply(ops.Remainder, input, other, kernel="remainder")


def remainder_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`remainder`."""
    return apply_(ops.Remainder, input, other, kernel="remainder")


def fmod(input: Tensor, other: Tensor | Number) -> Tensor:
    """C's fmod: the sign of the dividend. Saves: both if other needs a gradient."""
    return apply(ops.Remainder, input, other, kernel="fmod")


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of two tensors; nan wins. Saves: both."""
    return apply(ops.Maximum, input, other)


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of two tensors; nan wins. Saves: both."""
    return apply(ops.Minimum, input, other)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle of the point (other, input), from -pi to pi. Saves: both."""
    return apply(ops.Atan2, input, other)


def clamp(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """``input`` within ``[min, max]``. Saves: input; for bounds that are tensors one byte an element and bound.

    Raises:
        ValueError: neither bound is given.
    """
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        low = input if min is None else where(lt(input, min), min, input)
        return low if max is None else where(gt(low, max), max, low)
    return apply(ops.Clamp, input, low=_bounds(min, max), high=max)


def clamp_(input: Tensor, min: Number | None = None, max: Number | None = None) -> Tensor:
    """In-place :func:`clamp` with numbers for bounds."""
    return apply_(ops.Clamp, input, low=_bounds(min, max), high=max)


def _bounds(low: Any, high: Any) -> Any:
    if low is None and high is None:
        raise ArgumentError("clamp: At least one of 'min' or 'max' must not be None")
    for name, bound in (("min", low), ("max", high)):
        if not isinstance(bound, (int, float, np.number, type(None))):
            raise ArgumentTypeError(f"clamp(): argument '{name}' must be Number, not {type(bound).__name__}")
    return low


def clamp_min(input: Tensor, min: Tensor | Number) -> Tensor:
    """``input``, not below ``min``. Saves: input."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Tensor | Number) -> Tensor:
    """``input``, not above ``max``. Saves: input."""
    return clamp(input, max=max)


def where(condition: Tensor, input: Tensor | Number | None = None, other: Tensor | Number | None = None) -> Any:
    """``input`` where ``condition``, else ``other``; with the condition alone, the indices where it holds.

    Saves: the condition, one byte an element.

    Raises:
        TypeError: one of input and other alone.
    """
    if input is None and other is None:
        from .index import nonzero

        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise ArgumentTypeError("where(): expected both input and other, or neither of them, found one")
    return apply(ops.Where, condition, input, other)


def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """``input`` with ``value`` where ``mask``. Saves: the mask, one byte an element."""
    if isinstance(value, Tensor):
        return where(mask, value, input)
    return apply(ops.MaskedFill, input, mask, value=value)


def masked_fill_(input: Tensor, mask: Tensor, value: Number) -> Tensor:
    """In-place :func:`masked_fill`."""
    return apply_(ops.MaskedFill, input, mask, value=value.item() if isinstance(value, Tensor) else value)


def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """nan, inf and -inf replaced, infinities by the dtype's largest values unless given. Saves: input."""
    if not input.is_floating_point():
        return input.clone()
    info = np.finfo(input.dtype)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    return apply(ops.NanToNum, input, nan=nan, high=high, low=low)


def lerp(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    """``input + weight * (end - input)``."""
    return add(input, mul(sub(end, input), weight))


def lerp_(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    """In-place :func:`lerp`."""
    return add_(input, mul(sub(end, input), weight))


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``. Saves: what its parts save."""
    return add(input, mul(tensor1, tensor2), alpha=value)


def addcmul_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """In-place :func:`addcmul`."""
    return add_(input, mul(tensor1, tensor2), alpha=value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``. Saves: what its parts save."""
    return add(input, div(tensor1, tensor2), alpha=value)


def addcdiv_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """In-place :func:`addcdiv`."""
    return add_(input, div(tensor1, tensor2), alpha=value)


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


def xlogy(input: Tensor, other: Tensor) -> Tensor:
    """``input * log(other)``, 0 where input is 0 (nan where other is nan). Saves: what its parts save."""
    zero = logical_and(eq(input, 0), logical_not(isnan(other)))
    return mul(input, log(where(zero, 1.0, other)))


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


def round_(input: Tensor) -> Tensor:
    """In-place :func:`round`."""
    return apply_(ops.Round, input, kernel="rint")


def trunc_(input: Tensor) -> Tensor:
    """In-place :func:`trunc`."""
    return apply_(ops.Round, input, kernel="trunc")


def fill_(input: Tensor, value: Tensor | Number) -> Tensor:
    """Every element becomes ``value``."""
    return apply_(ops.Fill, input, value=value.item() if isinstance(value, Tensor) else value)


def zero_(input: Tensor) -> Tensor:
    """Every element becomes 0."""
    return apply_(ops.Fill, input, value=0)


# --- the reflected operators


def rdiv(input: Tensor, other: Number) -> Tensor:
    """``other / input``."""
    return div(other, input)


def rfloor_divide(input: Tensor, other: Number) -> Tensor:
    """``other // input``."""
    return floor_divide(other, input)


def rremainder(input: Tensor, other: Number) -> Tensor:
    """``other % input``."""
    return remainder(other, input)


def rpow(input: Tensor, other: Number) -> Tensor:
    """``other ** input``."""
    return pow(other, input)


# --- comparison, logic, bits: no gradients


def _compare(kernel: str, symbol: str) -> Any:
    def function(input: Tensor | Number, other: Tensor | Number) -> Tensor:
        return apply(ops.Compare, input, other, kernel=kernel)

    function.__name__ = function.__qualname__ = kernel
    function.__doc__ = f"``input {symbol} other``, elementwise: bool. No gradient."
    return function


eq = _compare("equal", "==")
ne = _compare("not_equal", "!=")
lt = _compare("less", "<")
le = _compare("less_equal", "<=")
gt = _compare("greater", ">")
ge = _compare("greater_equal", ">=")
logical_and = _compare("logical_and", "and")
logical_or = _compare("logical_or", "or")
logical_xor = _compare("logical_xor", "xor")


def _bitwise(kernel: str, symbol: str) -> Any:
    def function(input: Tensor | int, other: Tensor | int) -> Tensor:
        return apply(ops.Bitwise, input, other, kernel=kernel)

    def function_(input: Tensor, other: Tensor | int) -> Tensor:
        return apply_(ops.Bitwise, input, other, kernel=kernel)

    function.__doc__ = f"``input {symbol} other`` of integers or bools. No gradient."
    function_.__doc__ = f"``input {symbol}= other``."
    return function, function_


bitwise_and, bitwise_and_ = _bitwise("bitwise_and", "&")
bitwise_or, bitwise_or_ = _bitwise("bitwise_or", "|")
bitwise_xor, bitwise_xor_ = _bitwise("bitwise_xor", "^")
bitwise_left_shift, bitwise_left_shift_ = _bitwise("left_shift", "<<")
bitwise_right_shift, bitwise_right_shift_ = _bitwise("right_shift", ">>")


def bitwise_not(input: Tensor) -> Tensor:
    """``~input`` of integers or bools. No gradient."""
    return apply(ops.BitwiseNot, input)


def logical_not(input: Tensor) -> Tensor:
    """``not input``, elementwise: bool. No gradient."""
    return apply(ops.Classify, input, kernel="logical_not")


def isnan(input: Tensor) -> Tensor:
    """Whether nan: bool. No gradient."""
    return apply(ops.Classify, input, kernel="isnan")


def isinf(input: Tensor) -> Tensor:
    """Whether infinite: bool. No gradient."""
    return apply(ops.Classify, input, kernel="isinf")


def isfinite(input: Tensor) -> Tensor:
    """Whether neither nan nor infinite: bool. No gradient."""
    return apply(ops.Classify, input, kernel="isfinite")


def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """``|input - other| <= atol + rtol * |other|``, or equal: bool.

    Raises:
        DTypeError: the dtypes differ.
    """
    if input.dtype != other.dtype:
        raise DTypeError(f"isclose: expected tensors of one dtype, found {input.dtype} and {other.dtype}")
    a, b = input.detach(), other.detach()
    close = eq(a, b)
    if a.is_floating_point():
        near = le(abs(sub(a, b)), add(mul(abs(b), rtol), atol))
        close = logical_or(close, logical_and(near, isfinite(b)))
        if equal_nan:
            close = logical_or(close, logical_and(isnan(a), isnan(b)))
        return close
    wide = [t.to("float64") for t in (a, b)]
    return logical_or(close, le(abs(sub(*wide)), add(mul(abs(wide[1]), rtol), atol)))


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close, see :func:`isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are the same."""
    return input.shape == other.shape and bool(eq(input, other).all().item())
