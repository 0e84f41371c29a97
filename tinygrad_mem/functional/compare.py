"""Comparison, logic and bits, elementwise: no gradients."""

from __future__ import annotations

from typing import Any

from ..autograd.inplace import apply_
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError
from ..ops import compare as ops
from .elementwise import Number, add, mul, sub
from .unary import abs


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
        ArgumentError: a negative tolerance.
    """
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol and atol must be greater than or equal to zero, found {rtol} and {atol}")
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
