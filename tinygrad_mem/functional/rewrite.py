"""In-place forms of functions whose ops make a new array: the result is computed in a temporary, then copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.grad_mode import is_grad_enabled
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..dtypes import as_dtype, category
from ..errors import DTypeError, ShapeError
from ..ops import choose as ops
from . import choose, compare, convert, elementwise, scan, unary
from .door import public
from .elementwise import Number


def _rewrite(function: Callable[..., Tensor], input: Tensor, *args: Any, dtype: Any = None) -> Tensor:
    """``input`` becomes ``function(input, *args)``."""
    if dtype is not None and as_dtype(dtype) != input.dtype:
        raise DTypeError(f"Bad in-place call: input tensor dtype {input.dtype} and output tensor dtype {dtype} should match")
    recorded = is_grad_enabled() and input.requires_grad
    result = function(convert.clone(input) if recorded else input, *args)  # saved arrays must not change
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


@public("Tensor", "Tensor.__ifloordiv__")
def floor_divide_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`floor_divide`, through a temporary of the same size."""
    return _rewrite(elementwise.floor_divide, input, other)


@public("Tensor")
def fmod_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`fmod`, through a temporary of the same size."""
    return _rewrite(elementwise.fmod, input, other)


@public("torch", "Tensor")
def frac_(input: Tensor) -> Tensor:
    """In-place form of :func:`frac`, through a temporary of the same size."""
    return _rewrite(unary.frac, input)


@public("Tensor", "Tensor.arctan2_")
def atan2_(input: Tensor, other: Tensor) -> Tensor:
    """In-place form of :func:`atan2`, through a temporary of the same size."""
    return _rewrite(elementwise.atan2, input, other)


@public("torch", "Tensor")
def xlogy_(input: Tensor, other: Tensor) -> Tensor:
    """In-place form of :func:`xlogy`, through a temporary of the same size."""
    return _rewrite(choose.xlogy, input, other)


@public("torch", "Tensor")
def nan_to_num_(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """In-place form of :func:`nan_to_num`, through a temporary of the same size."""
    return _rewrite(choose.nan_to_num, input, nan, posinf, neginf)


@public("torch", "Tensor")
def clamp_min_(input: Tensor, min: Tensor | Number) -> Tensor:
    """In-place form of :func:`clamp_min`, through a temporary of the same size."""
    return _rewrite(choose.clamp_min, input, min)


@public("torch", "Tensor")
def clamp_max_(input: Tensor, max: Tensor | Number) -> Tensor:
    """In-place form of :func:`clamp_max`, through a temporary of the same size."""
    return _rewrite(choose.clamp_max, input, max)


@public("Tensor")
def cumprod_(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """In-place form of :func:`cumprod`, through a temporary of the same size."""
    return _rewrite(scan.cumprod, input, dim, dtype=dtype)


@public("Tensor")
def eq_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`eq`, through a temporary of the same size."""
    return _rewrite(compare.eq, input, other)


@public("Tensor", "Tensor.not_equal_")
def ne_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`ne`, through a temporary of the same size."""
    return _rewrite(compare.ne, input, other)


@public("Tensor", "Tensor.less_")
def lt_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`lt`, through a temporary of the same size."""
    return _rewrite(compare.lt, input, other)


@public("Tensor", "Tensor.less_equal_")
def le_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`le`, through a temporary of the same size."""
    return _rewrite(compare.le, input, other)


@public("Tensor", "Tensor.greater_")
def gt_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`gt`, through a temporary of the same size."""
    return _rewrite(compare.gt, input, other)


@public("Tensor", "Tensor.greater_equal_")
def ge_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`ge`, through a temporary of the same size."""
    return _rewrite(compare.ge, input, other)


@public("Tensor")
def logical_and_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`logical_and`, through a temporary of the same size."""
    return _rewrite(compare.logical_and, input, other)


@public("Tensor")
def logical_or_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`logical_or`, through a temporary of the same size."""
    return _rewrite(compare.logical_or, input, other)


@public("Tensor")
def logical_xor_(input: Tensor, other: Tensor | Number) -> Tensor:
    """In-place form of :func:`logical_xor`, through a temporary of the same size."""
    return _rewrite(compare.logical_xor, input, other)


@public("Tensor")
def logical_not_(input: Tensor) -> Tensor:
    """In-place form of :func:`logical_not`, through a temporary of the same size."""
    return _rewrite(compare.logical_not, input)


@public("Tensor")
def bitwise_not_(input: Tensor) -> Tensor:
    """In-place form of :func:`bitwise_not`, through a temporary of the same size."""
    return _rewrite(compare.bitwise_not, input)


@public("torch", "Tensor", "torch.clip_", "Tensor.clip_")
def clamp_(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """In-place form of :func:`clamp`; for bounds that are tensors, through a temporary of the same size."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return _rewrite(choose.clamp, input, min, max)
    return apply_(ops.Clamp, input, low=choose.numbers_of(min, max), high=max)


@public("Tensor")
def masked_fill_(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """In-place form of :func:`masked_fill`; for a value that is a tensor, through a temporary of the same size."""
    if not isinstance(value, Tensor):
        return apply_(ops.MaskedFill, input, mask, value=value)
    return _rewrite(choose.masked_fill, input, mask, choose.one_value("masked_fill_", value))
