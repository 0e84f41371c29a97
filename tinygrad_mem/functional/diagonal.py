"""Diagonals and triangles of matrices."""

from __future__ import annotations

from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops import convert
from ..ops import join as ops
from . import creation, shape
from .door import public
from .elementwise import Number
from .index import index_put_


@public("torch", "Tensor")
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and below a diagonal, 0 elsewhere. Saves nothing."""
    return apply(ops.Triangle, input, diagonal=diagonal, lower=True)


@public("torch", "Tensor")
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and above a diagonal, 0 elsewhere. Saves nothing."""
    return apply(ops.Triangle, input, diagonal=diagonal, lower=False)


@public("torch", "Tensor")
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with this diagonal, or the diagonal of a matrix.

    Raises:
        ShapeError: the input is neither a vector nor a matrix.
    """
    if input.ndim not in (1, 2):
        raise ShapeError(f"diag(): Supports 1D or 2D tensors. Got {input.ndim}D; use diagonal() or diag_embed()")
    return apply(convert.Clone, shape.diagonal(input, diagonal)) if input.ndim == 2 else diag_embed(input, diagonal)


@public("Tensor")
def tril_(input: Tensor, diagonal: int = 0) -> Tensor:
    return apply_(ops.Triangle, input, diagonal=diagonal, lower=True)


@public("Tensor")
def triu_(input: Tensor, diagonal: int = 0) -> Tensor:
    return apply_(ops.Triangle, input, diagonal=diagonal, lower=False)


@public("Tensor")
def fill_diagonal_(input: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """Set the main diagonal to a number. With more than two dimensions, all of one size, set entries of equal indices.

    Args:
        wrap: in a matrix with more rows than columns, skip a row after the square and begin again.

    Raises:
        ShapeError: fewer than two dimensions, or more of unequal size.
    """
    if input.ndim < 2:
        raise ShapeError(f"fill_diagonal_: dimensions must larger than 1, found shape {list(input.shape)}")
    if input.ndim == 2:
        height, width = input.shape
        for first in range(0, height if wrap else min(height, 1), width + 1):
            shape.diagonal(shape.narrow(input, 0, first, min(width, height - first))).fill_(fill_value)
        return input
    if len(set(input.shape)) > 1:
        raise ShapeError(f"fill_diagonal_: all dimensions of input must be of equal length, found shape {list(input.shape)}")
    each = creation.arange(input.size(0), device=input.device)
    return index_put_(input, (each,) * input.ndim, creation.tensor(fill_value, dtype=input.dtype, device=input.device))


@public("torch", "Tensor")
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices in ``dim1`` and ``dim2`` whose diagonals are the lines of the last dimension, 0 elsewhere. Saves nothing.

    Raises:
        ShapeError: ``dim1`` and ``dim2`` are the same.
        DimensionError: one of them is outside the result.
    """
    a, b = normalize_dim(dim1, input.ndim + 1), normalize_dim(dim2, input.ndim + 1)
    if a == b:
        raise ShapeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = input.size(-1) + abs(offset)
    sizes = list(input.shape[:-1])
    for axis in sorted((a, b)):
        sizes.insert(axis, size)
    out = creation.zeros(sizes, dtype=input.dtype, device=input.device)
    shape.diagonal(out, offset, a, b).copy_(input)
    return out
