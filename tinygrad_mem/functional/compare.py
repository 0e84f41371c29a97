"""Comparison, logic and bits, elementwise: no gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DTypeError
from ..ops import compare as ops
from .door import public
from .elementwise import Number, add, mul, sub
from .unary import abs


@public("torch", "Tensor", "Tensor.__eq__")
def eq(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input == other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="equal")


@public("torch", "Tensor", "torch.not_equal", "Tensor.not_equal", "Tensor.__ne__")
def ne(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input != other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="not_equal")


@public("torch", "Tensor", "torch.less", "Tensor.less", "Tensor.__lt__")
def lt(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input < other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="less")


@public("torch", "Tensor", "torch.less_equal", "Tensor.less_equal", "Tensor.__le__")
def le(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input <= other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="less_equal")


@public("torch", "Tensor", "torch.greater", "Tensor.greater", "Tensor.__gt__")
def gt(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input > other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="greater")


@public("torch", "Tensor", "torch.greater_equal", "Tensor.greater_equal", "Tensor.__ge__")
def ge(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input >= other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="greater_equal")


@public("torch", "Tensor")
def logical_and(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input and other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_and")


@public("torch", "Tensor")
def logical_or(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input or other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_or")


@public("torch", "Tensor")
def logical_xor(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input xor other``, elementwise: bool. No gradient."""
    return apply(ops.Compare, input, other, kernel="logical_xor")


@public("torch", "Tensor", "Tensor.__and__", "Tensor.__rand__")
def bitwise_and(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input & other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_and")


@public("Tensor", "Tensor.__iand__")
def bitwise_and_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input &= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_and")


@public("torch", "Tensor", "Tensor.__or__", "Tensor.__ror__")
def bitwise_or(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input | other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_or")


@public("Tensor", "Tensor.__ior__")
def bitwise_or_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input |= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_or")


@public("torch", "Tensor", "Tensor.__xor__", "Tensor.__rxor__")
def bitwise_xor(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input ^ other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="bitwise_xor")


@public("Tensor", "Tensor.__ixor__")
def bitwise_xor_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input ^= other``."""
    return apply_(ops.Bitwise, input, other, kernel="bitwise_xor")


@public("torch", "Tensor", "Tensor.__lshift__")
def bitwise_left_shift(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input << other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="left_shift")


@public("Tensor.__rlshift__")
def rlshift(input: Tensor, other: int) -> Tensor:
    """``other << input``."""
    return bitwise_left_shift(other, input)


@public("Tensor", "Tensor.__ilshift__")
def bitwise_left_shift_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input <<= other``."""
    return apply_(ops.Bitwise, input, other, kernel="left_shift")


@public("torch", "Tensor", "Tensor.__rshift__")
def bitwise_right_shift(input: Tensor | int, other: Tensor | int) -> Tensor:
    """``input >> other`` of integers or bools. No gradient."""
    return apply(ops.Bitwise, input, other, kernel="right_shift")


@public("Tensor.__rrshift__")
def rrshift(input: Tensor, other: int) -> Tensor:
    """``other >> input``."""
    return bitwise_right_shift(other, input)


@public("Tensor", "Tensor.__irshift__")
def bitwise_right_shift_(input: Tensor, other: Tensor | int) -> Tensor:
    """``input >>= other``."""
    return apply_(ops.Bitwise, input, other, kernel="right_shift")


@public("torch", "Tensor", "Tensor.__invert__")
def bitwise_not(input: Tensor) -> Tensor:
    """``~input`` of integers or bools. No gradient."""
    return apply(ops.BitwiseNot, input)


@public("torch", "Tensor")
def logical_not(input: Tensor) -> Tensor:
    """``not input``, elementwise: bool. No gradient."""
    return apply(ops.Classify, input, kernel="logical_not")


@public("torch", "Tensor")
def isnan(input: Tensor) -> Tensor:
    """bool: True where an element is nan. No gradient."""
    return apply(ops.Classify, input, kernel="isnan")


@public("torch", "Tensor")
def isinf(input: Tensor) -> Tensor:
    """bool: True where an element is infinite. No gradient."""
    return apply(ops.Classify, input, kernel="isinf")


@public("torch", "Tensor")
def isfinite(input: Tensor) -> Tensor:
    """bool: True where an element is neither nan nor infinite. No gradient."""
    return apply(ops.Classify, input, kernel="isfinite")


@public("torch", "Tensor")
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """``|input - other| <= atol + rtol * |other|``, or equal: bool.

    Raises:
        DTypeError: the dtypes differ.
        ArgumentError: a negative tolerance.
    """
    if not (rtol >= 0 and atol >= 0):
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


@public("torch", "Tensor")
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """True if all elements are close, see :func:`isclose`."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


@public("torch", "Tensor")
def equal(input: Tensor, other: Tensor) -> bool:
    """True if both have the same shape and the same elements."""
    return input.shape == other.shape and bool(eq(input, other).all().item())


def _unless_none(compare: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Any]:
    """The operator: ``t == None`` is False and ``t != None`` is True, as of any object."""

    @functools.wraps(compare)
    def operator(self: Tensor, other: Any) -> Any:
        return NotImplemented if other is None else compare(self, other)

    return operator


Tensor.__eq__ = _unless_none(Tensor.__eq__)  # type: ignore[method-assign]
Tensor.__ne__ = _unless_none(Tensor.__ne__)  # type: ignore[method-assign]
