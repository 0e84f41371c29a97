"""Diagonals and triangles of matrices."""

from __future__ import annotations

from ..autograd.inplace import apply_
from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops import convert
from ..ops import join as ops
from . import creation, shape
from .elementwise import Number
from .index import index_put_


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and below a diagonal, 0 elsewhere. Saves nothing."""
    return apply(ops.Triangle, input, diagonal=diagonal, lower=True)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The part on and above a diagonal, 0 elsewhere. Saves nothing."""
    return apply(ops.Triangle, input, diagonal=diagonal, lower=False)


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with this diagonal, or the diagonal of a matrix."""
    if input.ndim == 2:
        return apply(convert.Clone, shape.diagonal(input, diagonal))
    size = input.numel() + abs(diagonal)
    out = creation.zeros(size, size, dtype=input.dtype, device=input.device)
    shape.diagonal(out, diagonal).copy_(input)
    return out


def tril_(input: Tensor, diagonal: int = 0) -> Tensor:
    """In-place :func:`tril`."""
    return apply_(ops.Triangle, input, diagonal=diagonal, lower=True)


def triu_(input: Tensor, diagonal: int = 0) -> Tensor:
    """In-place :func:`triu`."""
    return apply_(ops.Triangle, input, diagonal=diagonal, lower=False)


def fill_diagonal_(input: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """The main diagonal set to a number; of more than two dimensions, which must be equal, the entries of equal indices.

    Args:
        wrap: in a matrix with more rows than columns, begin again after a row left out.

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
