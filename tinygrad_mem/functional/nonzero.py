"""The places of elements that are not zero: a result whose shape depends on values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..errors import DataDependenceError
from .creation import tensor
from .door import public


@public("torch", "Tensor")
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """Indices of elements that are not zero, int64: (n, dims), or one vector a dimension.

    Raises:
        DataDependenceError: on device meta, where their number is unknown.
    """
    if input.is_meta:
        raise DataDependenceError(
            "nonzero: how many elements are not zero depends on values, which device meta has not. "
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
