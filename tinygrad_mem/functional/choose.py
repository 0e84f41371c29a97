"""Functions that keep, bound, replace or find elements by a condition, a mask, or their own value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DataDependenceError, ShapeError
from ..ops import choose as ops
from ..ops.base import refuse_bools
from .compare import eq, gt, isnan, le, logical_and, logical_or, lt
from .convert import copy_
from .creation import tensor
from .door import AS_IS, public
from .elementwise import Number, mul
from .unary import log


@public("torch", "Tensor", "torch.clip", "Tensor.clip")
def clamp(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """``input`` within ``[min, max]``, nan where a bound is. Saves: input; for tensors as bounds one byte an element and bound.

    Raises:
        ValueError: neither bound is given, or the tensor's dtype does not hold one.
        DTypeError: all are bools.
    """
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        low = input if min is None else where(_or_nan(lt(input, min), min), min, input)
        both = low if max is None else where(_or_nan(gt(low, max), max), max, low)
        if min is not None and max is not None:  # PyTorch's has kernels for one bound, which are those of maximum and minimum
            refuse_bools("clamp", both.array)
        return both
    return apply(ops.Clamp, input, low=numbers_of(min, max), high=max)


def _or_nan(beyond: Tensor, bound: Tensor | Number) -> Tensor:
    """True also where the bound is nan."""
    if isinstance(bound, Tensor):
        return logical_or(beyond, isnan(bound)) if bound.is_floating_point() else beyond
    return logical_or(beyond, True) if math.isnan(bound) else beyond


def numbers_of(low: Any, high: Any) -> Any:
    """Check that both bounds of a clamp are numbers, and one is given. Returns ``low``."""
    if low is None and high is None:
        raise ArgumentError("clamp: At least one of 'min' or 'max' must not be None")
    for name, bound in (("min", low), ("max", high)):
        if not isinstance(bound, (int, float, np.number, type(None))):
            raise ArgumentTypeError(f"clamp(): argument '{name}' must be Number, not {type(bound).__name__}")
    return low


@public("torch", "Tensor")
def clamp_min(input: Tensor, min: Tensor | Number) -> Tensor:
    """``input``, not below ``min``. Saves: input."""
    return clamp(input, min=min)


@public("torch", "Tensor")
def clamp_max(input: Tensor, max: Tensor | Number) -> Tensor:
    """``input``, not above ``max``. Saves: input."""
    return clamp(input, max=max)


@public("torch", "Tensor")
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of elements that are not zero, int64: (n, dims), or one vector a dimension.

    Raises:
        DataDependenceError: on device meta, where their number is unknown.
    """
    if input.is_meta:
        raise DataDependenceError(
            "nonzero: the number of results depends on values, and a tensor on meta or in a prediction has none. "
            "Use where(condition, a, b) or masked_fill, whose shapes do not depend on values."
        )
    found = np.nonzero(np.atleast_1d(input.detach()._host()))
    if as_tuple:
        return tuple(tensor(f, device=input.device) for f in found)
    count = input.ndim
    return tensor(np.stack(found[:count], 1) if count else np.empty((len(found[0]), 0), np.int64), device=input.device)


@public("torch", "Tensor")
def argwhere(input: Tensor) -> Tensor:
    """:func:`nonzero`."""
    return nonzero(input)


@public("torch")
def where(condition: Tensor, input: Tensor | Number | None = None, other: Tensor | Number | None = None) -> Any:
    """``input`` where ``condition``, else ``other``; with the condition alone, the indices where it holds.

    Saves: the condition, one byte an element.

    Raises:
        TypeError: one of input and other alone.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise ArgumentTypeError("where(): expected both input and other, or neither of them, found one")
    return apply(ops.Where, condition, input, other)


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """``self`` where ``condition``, else ``other``: the method of :func:`where`, whose second argument is the tensor."""
    return where(condition, self, other)


Tensor.where = _where  # type: ignore[method-assign]


def one_value(name: str, value: Tensor, dtype: Any = None) -> Tensor:
    """Return ``value``, a 0-d tensor. Raises: ShapeError: it has dimensions; ArgumentError: ``dtype`` does not hold it."""
    if value.ndim:
        raise ShapeError(
            f"{name} only supports a 0-dimensional value tensor, but got tensor with {value.ndim} dimension(s): "
            f"{list(value.shape)}"
        )
    if dtype not in (None, value.dtype) and value.device.kind != "meta":
        dtypes.fitting(value.item(), dtype)
    return value


@public("torch", "Tensor")
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """``input`` with ``value`` where ``mask``. Saves: the mask, one byte an element.

    Raises:
        ShapeError: ``value`` is a tensor that has dimensions.
    """
    if isinstance(value, Tensor):
        return where(mask, one_value("masked_fill_", value, input.dtype).to(input.dtype), input)
    return apply(ops.MaskedFill, input, mask, value=value)


@public("torch", "Tensor")
def nan_to_num(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace nan, inf and -inf; infinities by the dtype's largest values unless given. Saves: input."""
    if not input.is_floating_point():
        return input.clone()
    info = dtypes.finfo(input.dtype)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    return apply(ops.NanToNum, input, nan=nan or 0.0, high=high, low=low)


@public("torch", "Tensor")
def fill_(input: Tensor, value: Tensor | Number) -> Tensor:
    """Set every element to ``value``. Raises: ShapeError: ``value`` is a tensor with dimensions."""
    if isinstance(value, Tensor):
        return copy_(input, one_value("fill_", value))
    return apply_(ops.Fill, input, value=value)


@public("torch", "Tensor")
def zero_(input: Tensor) -> Tensor:
    """Set every element to 0."""
    return apply_(ops.Fill, input, value=0)


@public("torch", "special", "Tensor", cuda=AS_IS)
def xlogy(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """``input * log(other)``, 0 where input is 0 (nan where other is nan). Saves: what its parts save.

    Where input is 0, and other is 0 or infinite, both gradients are 0. PyTorch's are nan or infinite there.
    """
    dtype = dtypes.result_type(*[x.array if isinstance(x, Tensor) else dtypes.plain(x) for x in (input, other)])
    dtype = dtype if dtypes.is_floating(dtype) else dtypes.get_default_dtype()
    if not isinstance(input, Tensor):
        if not isinstance(other, Tensor):
            raise ArgumentTypeError("xlogy(): one of input and other must be a Tensor, found two numbers")
        input = tensor(input, dtype=dtype, device=other.device)
    other = other.to(dtype=dtype) if isinstance(other, Tensor) else tensor(other, dtype=dtype, device=input.device)
    zero = logical_and(eq(input, 0), logical_or(le(other, 0), eq(other, math.inf)))  # elsewhere 0 * log(other) is 0
    return mul(input, log(where(zero, 1.0, other)))
