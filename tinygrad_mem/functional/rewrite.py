"""In-place forms of functions whose ops make a new array: the result is computed in a temporary, then copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..ops import choose as ops
from ..ops.base import want_target
from ..scope import local
from . import choose, compare, convert, elementwise
from .door import public
from .elementwise import Number

_TEMPORARY = "a temporary of the same size"


def _rewrite(function: Callable[..., Tensor], input: Tensor, *args: Any) -> Tensor:
    """``input`` becomes ``function(input, *args)``."""
    recorded = local.grad_enabled and input.requires_grad
    result = function(convert.clone(input) if recorded else input, *args)  # saved arrays must not change
    want_target(input.array, result.array.shape, result.dtype)
    return convert.copy_(input, result)


@public("Tensor", "Tensor.__ifloordiv__", through=_TEMPORARY)
def floor_divide_(input: Tensor, other: Tensor | Number) -> Tensor:
    return _rewrite(elementwise.floor_divide, input, other)


@public("torch", "Tensor", through=_TEMPORARY)
def nan_to_num_(input: Tensor, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    return _rewrite(choose.nan_to_num, input, nan, posinf, neginf)


@public("torch", "Tensor", through=_TEMPORARY)
def clamp_min_(input: Tensor, min: Tensor | Number) -> Tensor:
    return _rewrite(choose.clamp_min, input, min)


@public("torch", "Tensor", through=_TEMPORARY)
def clamp_max_(input: Tensor, max: Tensor | Number) -> Tensor:
    return _rewrite(choose.clamp_max, input, max)


@public("Tensor", "Tensor.greater_equal_", through=_TEMPORARY)
def ge_(input: Tensor, other: Tensor | Number) -> Tensor:
    return _rewrite(compare.ge, input, other)


@public("Tensor", through=_TEMPORARY)
def logical_and_(input: Tensor, other: Tensor | Number) -> Tensor:
    return _rewrite(compare.logical_and, input, other)


@public("Tensor", through=_TEMPORARY)
def logical_or_(input: Tensor, other: Tensor | Number) -> Tensor:
    return _rewrite(compare.logical_or, input, other)


@public("Tensor", through=_TEMPORARY)
def logical_not_(input: Tensor) -> Tensor:
    return _rewrite(compare.logical_not, input)


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
    return _rewrite(choose.masked_fill, input, mask, value)
