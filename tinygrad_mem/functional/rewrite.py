"""In-place forms of functions whose ops make a new array: the result is computed beside the tensor, then copied into it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autograd.grad_mode import is_grad_enabled
from ..autograd.tensor import Tensor
from ..dtypes import as_dtype, category
from ..errors import DTypeError, ShapeError
from . import choose, compare, convert, elementwise, scan, unary
from .elementwise import Number


def _rewrites(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def in_place(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("dtype") is not None and as_dtype(kwargs["dtype"]) != input.dtype:
            raise DTypeError(
                f"Bad in-place call: input tensor dtype {input.dtype} and output tensor dtype {kwargs['dtype']} should match"
            )
        recorded = is_grad_enabled() and input.requires_grad
        result = function(convert.clone(input) if recorded else input, *args, **kwargs)  # what it saves must stay
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

    in_place.__module__ = __name__
    in_place.__doc__ = f"``input`` becomes ``{function.__name__}(input, ...)``; a second array of its size lives meanwhile."
    return in_place


floor_divide_ = _rewrites(elementwise.floor_divide)
fmod_ = _rewrites(elementwise.fmod)
frac_ = _rewrites(unary.frac)
atan2_ = _rewrites(elementwise.atan2)
xlogy_ = _rewrites(choose.xlogy)
nan_to_num_ = _rewrites(choose.nan_to_num)
clamp_min_ = _rewrites(choose.clamp_min)
clamp_max_ = _rewrites(choose.clamp_max)
cumprod_ = _rewrites(scan.cumprod)
eq_ = _rewrites(compare.eq)
ne_ = _rewrites(compare.ne)
lt_ = _rewrites(compare.lt)
le_ = _rewrites(compare.le)
gt_ = _rewrites(compare.gt)
ge_ = _rewrites(compare.ge)
logical_and_ = _rewrites(compare.logical_and)
logical_or_ = _rewrites(compare.logical_or)
logical_xor_ = _rewrites(compare.logical_xor)
logical_not_ = _rewrites(compare.logical_not)
bitwise_not_ = _rewrites(compare.bitwise_not)
_clamp_ = _rewrites(choose.clamp)
_masked_fill_ = _rewrites(choose.masked_fill)


def clamp_(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """In-place :func:`clamp`. For bounds that are tensors, a second array of its size lives meanwhile."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return _clamp_(input, min, max)
    return choose.clamp_by_numbers_(input, min, max)


def masked_fill_(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """In-place :func:`masked_fill`. For a value that is a tensor, a second array of its size lives meanwhile."""
    if not isinstance(value, Tensor):
        return choose.masked_fill_by_number_(input, mask, value)
    return _masked_fill_(input, mask, choose.one_value("masked_fill_", value))
