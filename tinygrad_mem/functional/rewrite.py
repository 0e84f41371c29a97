"""In-place forms of functions whose ops make a new array: the result is computed beside the tensor, then copied into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.grad_mode import is_grad_enabled
from ..autograd.tensor import Tensor
from ..dtypes import as_dtype, category
from ..errors import DTypeError, ShapeError
from . import choose, compare, convert, elementwise, scan, unary
from .elementwise import Number


def _rewrite(function: Callable[..., Tensor], input: Tensor, *args: Any, dtype: Any = None) -> Tensor:
    """``input`` becomes ``function(input, *args)``."""
    if dtype is not None and as_dtype(dtype) != input.dtype:
        raise DTypeError(f"Bad in-place call: input tensor dtype {input.dtype} and output tensor dtype {dtype} should match")
    recorded = is_grad_enabled() and input.requires_grad
    result = function(convert.clone(input) if recorded else input, *args)  # what it saves must stay
    if result.shape != input.shape:
        raise ShapeError(
            f"output with shape {list(input.shape)} doesn't match the broadcast shape {list(result.shape)}: "
            "an in-place op cannot grow its tensor; use the op that makes a new one"
        )
    if category(result.dtype) > category(input.dtype):
        raise DTypeError(
            f"result type {result.dtype} can't be cast to the desired output type {input.dtype}: "
            "an in-place op keeps its tensor's dtype; use the op that makes a new one"
        )
    return convert.copy_(input, result)


def floor_divide_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`floor_divide`; a second array of its size lives meanwhile."""
    return _rewrite(elementwise.floor_divide, input, other)


def fmod_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`fmod`; a second array of its size lives meanwhile."""
    return _rewrite(elementwise.fmod, input, other)


def frac_(input: Tensor) -> Tensor:
    """In-place :func:`frac`; a second array of its size lives meanwhile."""
    return _rewrite(unary.frac, input)


def atan2_(input: Tensor, other: Tensor) -> Tensor:
    """In-place :func:`atan2`; a second array of its size lives meanwhile."""
    return _rewrite(elementwise.atan2, input, other)


def xlogy_(input: Tensor, other: Tensor) -> Tensor:
    """In-place :func:`xlogy`; a second array of its size lives meanwhile."""
    return _rewrite(choose.xlogy, input, other)


def nan_to_num_(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """In-place :func:`nan_to_num`; a second array of its size lives meanwhile."""
    return _rewrite(choose.nan_to_num, input, nan, posinf, neginf)


def clamp_min_(input: Tensor, min: Tensor | Number) -> Tensor:
    """In-place :func:`clamp_min`; a second array of its size lives meanwhile."""
    return _rewrite(choose.clamp_min, input, min)


def clamp_max_(input: Tensor, max: Tensor | Number) -> Tensor:
    """In-place :func:`clamp_max`; a second array of its size lives meanwhile."""
    return _rewrite(choose.clamp_max, input, max)


def cumprod_(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """In-place :func:`cumprod`; a second array of its size lives meanwhile."""
    return _rewrite(scan.cumprod, input, dim, dtype=dtype)


def eq_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`eq`; a second array of its size lives meanwhile."""
    return _rewrite(compare.eq, input, other)


def ne_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`ne`; a second array of its size lives meanwhile."""
    return _rewrite(compare.ne, input, other)


def lt_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`lt`; a second array of its size lives meanwhile."""
    return _rewrite(compare.lt, input, other)


def le_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`le`; a second array of its size lives meanwhile."""
    return _rewrite(compare.le, input, other)


def gt_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`gt`; a second array of its size lives meanwhile."""
    return _rewrite(compare.gt, input, other)


def ge_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`ge`; a second array of its size lives meanwhile."""
    return _rewrite(compare.ge, input, other)


def logical_and_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`logical_and`; a second array of its size lives meanwhile."""
    return _rewrite(compare.logical_and, input, other)


def logical_or_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`logical_or`; a second array of its size lives meanwhile."""
    return _rewrite(compare.logical_or, input, other)


def logical_xor_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place :func:`logical_xor`; a second array of its size lives meanwhile."""
    return _rewrite(compare.logical_xor, input, other)


def logical_not_(input: Tensor) -> Tensor:
    """In-place :func:`logical_not`; a second array of its size lives meanwhile."""
    return _rewrite(compare.logical_not, input)


def bitwise_not_(input: Tensor) -> Tensor:
    """In-place :func:`bitwise_not`; a second array of its size lives meanwhile."""
    return _rewrite(compare.bitwise_not, input)


def clamp_(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """In-place :func:`clamp`. For bounds that are tensors, a second array of its size lives meanwhile."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return _rewrite(choose.clamp, input, min, max)
    return choose.clamp_by_numbers_(input, min, max)


def masked_fill_(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """In-place :func:`masked_fill`. For a value that is a tensor, a second array of its size lives meanwhile."""
    if not isinstance(value, Tensor):
        return choose.masked_fill_by_number_(input, mask, value)
    return _rewrite(choose.masked_fill, input, mask, choose.one_value("masked_fill_", value))
