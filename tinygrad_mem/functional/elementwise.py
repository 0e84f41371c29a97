"""Arithmetic of two operands, elementwise. All broadcast and promote as PyTorch does; names that end in ``_`` work in place.

``Saves`` in a docstring is what the tape keeps for backward when the input requires a gradient.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..dtypes import is_floating, plain, result_type, want_fitting
from ..errors import ArgumentError, DTypeError
from ..ops import addcmul as three
from ..ops import elementwise as ops
from ..ops.unary import Square
from .creation import tensor
from .door import FLOAT32, WIDEST, public

Number = float | int | bool


@public("torch", "Tensor", "Tensor.__add__", "Tensor.__radd__")
def add(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input + alpha * other``. Saves nothing. Raises: DTypeError: alpha is floating, and the result is not."""
    return apply(ops.Add, input, times(input, other, alpha))


@public("Tensor", "Tensor.__iadd__")
def add_(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input += alpha * other``. Saves nothing."""
    return apply_(ops.Add, input, times(input, other, alpha))


@public("torch", "Tensor", "torch.subtract", "Tensor.subtract", "Tensor.__sub__")
def sub(input: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input - alpha * other``. Saves nothing. Raises: DTypeError: alpha is floating, and the result is not."""
    return apply(ops.Sub, input, _subtracted(input, other, alpha))


@public("Tensor", "Tensor.subtract_", "Tensor.__isub__")
def sub_(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``input -= alpha * other``. Saves nothing."""
    return apply_(ops.Sub, input, _subtracted(input, other, alpha))


def times(input: Tensor | Number, other: Tensor | Number, alpha: Number) -> Tensor | Number:
    """``alpha * other``, computed in the dtype of the sum."""
    if alpha == 1:
        return other
    alpha, dtype = plain(alpha), _dtype_of(input, other)
    if is_floating(_dtype_of(alpha)) and not is_floating(dtype):
        raise DTypeError(f"For integral input tensors, argument alpha must not be a floating point number: found {alpha}")
    if dtype.kind == "b":
        return other if alpha else False
    if is_floating(dtype):
        want_fitting(dtype, alpha)
    return mul(other.to(dtype=dtype), alpha) if isinstance(other, Tensor) else other * alpha


def _subtracted(input: Tensor | Number, other: Tensor | Number, alpha: Number) -> Tensor | Number:
    """As :func:`times`; a bool is returned as it is, and the subtraction refuses it."""
    is_bool = other.dtype.kind == "b" if isinstance(other, Tensor) else isinstance(other, bool)
    return other if is_bool else times(input, other, alpha)


def _dtype_of(*operands: Any) -> Any:
    """The dtype of the result of an op on these operands."""
    return result_type(*[x.array if isinstance(x, Tensor) else x for x in operands])


@public("torch", "Tensor", "Tensor.__rsub__")
def rsub(input: Tensor, other: Tensor | Number, *, alpha: Number = 1) -> Tensor:
    """``other - alpha * input``. Saves nothing."""
    return sub(other, input, alpha=alpha)


@public("torch", "Tensor", "torch.multiply", "Tensor.multiply", "Tensor.__mul__", "Tensor.__rmul__")
def mul(input: Tensor | Number, other: Tensor | Number) -> Any:
    """``input * other``. Saves: each factor that the other's gradient needs."""
    return apply(ops.Mul, input, other)


@public("Tensor", "Tensor.multiply_", "Tensor.__imul__")
def mul_(input: Tensor, other: Tensor | Number) -> Tensor:
    """``input *= other``. Saves: each factor that the other's gradient needs."""
    return apply_(ops.Mul, input, other)


@public("torch", "Tensor", "torch.divide", "torch.true_divide", "Tensor.true_divide", "Tensor.divide", "Tensor.__truediv__")
def div(input: Tensor | Number, other: Tensor | Number, *, rounding_mode: str | None = None) -> Tensor:
    """``input / other``; rounded towards zero (``"trunc"``) or down (``"floor"``) on request.

    Saves: other, and input if other needs a gradient; nothing when rounding.

    Raises:
        ValueError: another rounding mode.
        DivisionError: integers divided by 0 and rounded. A GPU does not look for a 0 in a tensor, as PyTorch's does not.
    """
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = tensor(input)  # two numbers give a tensor in PyTorch too, and published files use that for sizes
    if rounding_mode is None:
        return apply(ops.Div, input, other)
    return apply(ops.DivRound, input, other, rounding=_rounding(rounding_mode))


@public("Tensor", "Tensor.divide_", "Tensor.true_divide_", "Tensor.__itruediv__")
def div_(input: Tensor, other: Tensor | Number, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return apply_(ops.Div, input, other)
    return apply_(ops.DivRound, input, other, rounding=_rounding(rounding_mode))


def _rounding(mode: str) -> str:
    if mode not in ("trunc", "floor"):
        raise ArgumentError(f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found {mode!r}")
    return mode


@public("torch", "Tensor", "Tensor.__floordiv__")
def floor_divide(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``floor(input / other)``: :func:`div` with ``rounding_mode="floor"``.

    Saves nothing; the gradient is zero, as that of ``div`` is. PyTorch has no gradient under this name.

    Raises:
        DivisionError: as :func:`div`.
    """
    return apply(ops.DivRound, input, other, rounding="floor")


@public("torch", "Tensor", "Tensor.__pow__", cuda=FLOAT32)
def pow(input: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """``input ** exponent``. Saves: both tensors, and the output if the exponent needs a gradient."""
    if isinstance(input, Tensor) and not isinstance(exponent, Tensor) and exponent == 2 and isinstance(exponent, Real):
        return apply(Square, input)  # half of the work
    return apply(ops.Pow, input, exponent)


@public("Tensor", "Tensor.__ipow__")
def pow_(input: Tensor, exponent: Tensor | Number) -> Tensor:
    return apply_(ops.Pow, input, exponent)


@public("torch", "Tensor", "Tensor.__mod__")
def remainder(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """Python's ``%``: the sign of the divisor. Saves: both if other needs a gradient. Raises: DivisionError: as :func:`div`."""
    return apply(ops.Remainder, input, other, kernel="remainder")


@public("Tensor", "Tensor.__imod__")
def remainder_(input: Tensor, other: Tensor | Number) -> Tensor:
    return apply_(ops.Remainder, input, other, kernel="remainder")


@public("torch", "Tensor")
def fmod(input: Tensor, other: Tensor | Number) -> Tensor:
    """C's fmod: the sign of the dividend. Saves: both if other needs a gradient. Raises: DivisionError: as :func:`div`."""
    return apply(ops.Remainder, input, other, kernel="fmod")


@public("torch", "Tensor")
def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of two tensors; nan wins. Saves: both."""
    return apply(ops.Maximum, input, other)


@public("torch", "Tensor")
def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of two tensors; nan wins. Saves: both."""
    return apply(ops.Minimum, input, other)


@public("torch", "Tensor", "torch.arctan2", "Tensor.arctan2", cuda=WIDEST)
def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle of the point (other, input), from -pi to pi. Saves: both."""
    return apply(ops.Atan2, input, other)


@public("torch", "Tensor")
def lerp(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    """``input + weight * (end - input)``, rounded once. Saves: weight, and both tensors if weight needs a gradient."""
    return apply(three.Lerp, input, end, weight)


@public("Tensor")
def lerp_(input: Tensor, end: Tensor, weight: Tensor | Number) -> Tensor:
    return apply_(three.Lerp, input, end, weight)


def _together(*operands: Any) -> list:
    """The operands in the dtype of the result, in which their product or quotient is computed."""
    dtype = _dtype_of(*operands)
    return [x.to(dtype=dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in operands]


def _beside(input: Tensor, *parts: Any) -> list:
    """:func:`_together` for what is written into ``input``; integers wrap round there as well as before."""
    dtype = _dtype_of(input, *parts)
    dtype = dtype if is_floating(dtype) else input.dtype
    return [x.to(dtype=dtype) if isinstance(x, Tensor) and x.dtype != dtype else x for x in parts]


@public("torch", "Tensor", cuda=WIDEST)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """``input + value * tensor1 * tensor2``, rounded once. Saves: tensor1 and tensor2, each for the other's gradient."""
    return apply(three.Addcmul, *_together(input, tensor1, tensor2), value=value)


@public("Tensor")
def addcmul_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    return apply_(three.Addcmul, input, *_beside(input, tensor1, tensor2), value=value)


@public("torch", "Tensor", cuda=WIDEST)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """``input + value * tensor1 / tensor2``, rounded once. Saves: tensor2, and tensor1 if tensor2 needs a gradient.

    Raises:
        DTypeError: neither tensor1 nor tensor2 is floating.
    """
    _want_floating_quotient(tensor1, tensor2)
    return apply(three.Addcdiv, *_together(input, tensor1, tensor2), value=value)


@public("Tensor")
def addcdiv_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    _want_floating_quotient(tensor1, tensor2)
    return apply_(three.Addcdiv, input, *_beside(input, tensor1, tensor2), value=value)


def _want_floating_quotient(tensor1: Tensor, tensor2: Tensor) -> None:
    if not is_floating(_dtype_of(tensor1, tensor2)):
        raise DTypeError(
            "Integer division with addcdiv is no longer supported: make a tensor floating, or add trunc(tensor1 / tensor2)"
        )


# --- the reflected operators


@public("Tensor.__rtruediv__")
def rdiv(input: Tensor, other: Tensor | Number) -> Tensor:
    """``other / input``."""
    return div(other, input)


@public("Tensor.__rfloordiv__")
def rfloor_divide(input: Tensor, other: Tensor | Number) -> Tensor:
    """``other // input``."""
    return floor_divide(other, input)


@public("Tensor.__rmod__")
def rremainder(input: Tensor, other: Tensor | Number) -> Tensor:
    """``other % input``."""
    return remainder(other, input)


@public("Tensor.__rpow__", cuda=FLOAT32)
def rpow(input: Tensor, other: Tensor | Number) -> Tensor:
    """``other ** input``."""
    return pow(other, input)
