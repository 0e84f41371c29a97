"""Writes into parts of a tensor, composed of views and ``index_put_``."""

from __future__ import annotations

import numpy as np

from ..autograd.tensor import Tensor
from ..errors import DTypeError, ShapeError
from . import index as indexing
from . import shape
from .door import public
from .nonzero import nonzero

Number = int | float | bool


@public("Tensor")
def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write the first entries of ``source``, in order, where ``mask`` is True; the mask is broadcast to the input's shape.

    Saves: the places that were written, 8 bytes an entry and dimension.

    Raises:
        DTypeError: the mask is not bool, or source and input differ in dtype.
        ShapeError: the source has fewer entries than the mask has True.
        DataDependenceError: on ``meta``, where the number of True entries is unknown.
    """
    if mask.dtype != bool:
        raise DTypeError(f"masked_scatter_: mask must be of bool type, found {mask.dtype}")
    if source.dtype != input.dtype:
        raise DTypeError(
            f"masked_scatter_: expected self and source to have same dtypes but got {input.dtype} and {source.dtype}"
        )
    places = nonzero(shape.expand(mask, input.shape), as_tuple=True)
    count = places[0].size(0) if input.ndim else int(mask.item())
    if source.numel() < count:
        raise ShapeError(
            f"masked_scatter_: expected the number of elements of the source to be at least the {count} that the mask has "
            f"True, found {source.numel()}"
        )
    values = shape.narrow(shape.reshape(source, (-1,)), 0, 0, count)
    if not input.ndim:
        return input.copy_(shape.reshape(values, ())) if count else input
    return indexing.index_put_(input, places, values)


@public("torch", "Tensor")
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """:func:`masked_scatter_` on a copy; input and mask are broadcast."""
    common = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return masked_scatter_(shape.expand(input, common).clone(), mask, source)
