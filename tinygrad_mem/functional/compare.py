"""Comparison, logic and bits, elementwise: no gradients."""

from __future__ import annotations

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError
from ..ops import compare as ops
from .elementwise import Number, add, mul, sub
from .unary import abs


def eq(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input == other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="equal")


def ne(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input != other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="not_equal")


def lt(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input < other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="less")


def le(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input <= other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="less_equal")


def gt(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input > other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="greater")


def ge(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input >= other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="greater_equal")


def logical_and(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input and other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_and")


def logical_or(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input or other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_or")


def logical_xor(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input xor other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_xor")


def bitwise_and(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input & other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_and")


def bitwise_and_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input &= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_and")


def bitwise_or(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input | other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_or")


def bitwise_or_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input |= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_or")


def bitwise_xor(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input ^ other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_xor")


def bitwise_xor_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input ^= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_xor")


def bitwise_left_shift(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input << other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="left_shift")


def bitwise_left_shift_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input <<= other``."""
    return apply_(ops.Bitwise, input, other, kernel="left_shift")


def bitwise_right_shift(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input >> other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="right_shift")


def bitwise_right_shift_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input >>= other``."""
    return apply_(ops.Bitwise, input, other, kernel="right_shift")


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
