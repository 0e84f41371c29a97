"""In-place forms of functions whose ops make a new array: the result is computed beside the tensor, then copied into it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autograd.grad_mode import is_grad_enabled
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from . import choose, compare, convert, elementwise, scan, unary


def _rewrites(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def in_place(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        recorded = is_grad_enabled() and input.requires_grad
        result = function(convert.clone(input) if recorded else input, *args, **kwargs)  # what it saves must stay
        if result.shape != input.shape:
            raise ShapeError(
                f"output with shape {list(input.shape)} doesn't match the broadcast shape {list(result.shape)}: "
                "an in-place op cannot grow its tensor; use the op that makes a new one"
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
