"""Writes into parts of a tensor, composed of views and ``index_put_``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from . import choose, elementwise, shape
from . import index as indexing
from .door import public

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
    places = indexing.nonzero(shape.expand(mask, input.shape), as_tuple=True)
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


@public("Tensor")
def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write (or, with ``accumulate``, add) the entries of ``source`` at ``index`` of the flattened tensor.

    Saves: the indices.

    Raises:
        DTypeError: the indices are not int64, or source and input differ in dtype.
        ShapeError: there are not as many entries as indices.
        IndexError: an index is out of range.
    """
    if index.dtype.kind != "i":
        raise DTypeError(f"put_: expected a long tensor for index, but got {index.dtype}")
    if index.numel() != source.numel():
        raise ShapeError(
            f"put_: expected source and index to have the same number of elements, but got source {list(source.shape)} and "
            f"index {list(index.shape)}"
        )
    if not input.ndim:
        put_(shape.reshape(input, (1,)), index, source, accumulate)
        return input
    at = shape.reshape(index, (-1,))
    at = choose.where(at < 0, at + input.numel(), at)
    at = choose.where(at < 0, input.numel(), at)  # still negative: out of range, for which index_put_ raises
    places: list[Tensor] = []
    for size in reversed(input.shape[1:]):
        places.insert(0, elementwise.remainder(at, size))
        at = elementwise.div(at, size, rounding_mode="floor")
    return indexing.index_put_(input, (at, *places), shape.reshape(source, (-1,)), accumulate)


@public("torch", "Tensor")
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """:func:`put_` on a copy."""
    return put_(input.clone(), index, source, accumulate)


def written(name: str, input: Tensor, src: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of ``input`` with a part of it, a view, replaced by ``src``.

    Raises:
        ShapeError: ``src`` has another shape than the part.
        ArgumentTypeError: ``src`` is not a tensor.
    """
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(f"{name}(): argument 'src' must be Tensor, not {type(src).__name__}")
    out = input.clone()
    view = part(out)
    if view.shape != src.shape:
        raise ShapeError(
            f"{name}: expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(view.shape)}"
        )
    view.copy_(src)
    return out


@public("torch", "Tensor")
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with one entry of ``dim`` replaced by ``src``. Saves nothing. Raises: ShapeError: ``src`` has another shape."""
    return written("select_scatter", input, src, lambda x: shape.select(x, dim, index))


@public("torch", "Tensor")
def slice_scatter(
    input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    """A copy with the entries ``start:end:step`` of ``dim`` replaced by ``src``. Saves nothing.

    Raises:
        ShapeError: ``src`` has another shape.
        ArgumentError: the step is not positive.
    """
    axis = normalize_dim(dim, input.ndim)
    if step < 1:
        raise ArgumentError(f"slice step must be positive, found {step}")
    key = (slice(None),) * axis + (slice(start, end, step),)
    return written("slice_scatter", input, src, lambda x: indexing.getitem(x, key))
