"""Joining and splitting tensors. Parts are views; joined tensors are copies."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..ops import join as ops
from . import creation, shape
from . import index as indexing
from .door import WIDEST, public


@public("torch", "torch.concat", "torch.concatenate", cpu=WIDEST)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along ``dim``. Saves nothing; gradients are views of one.

    Raises:
        ShapeError: no tensors, or other dimensions differ.
    """
    if not tensors:
        raise ShapeError("torch.cat(): expected a non-empty list of Tensors")
    shaped = next((x for x in tensors if x.array.shape != (0,)), tensors[0])  # shape (0,) can be joined with every shape
    return apply(ops.Cat, *tensors, axis=normalize_dim(dim, shaped.ndim))


@public("torch", cpu=WIDEST)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Stack tensors of one shape along a new dimension. Saves nothing.

    Raises:
        ShapeError: no tensors, or shapes differ.
    """
    if not tensors:
        raise ShapeError("stack expects a non-empty TensorList")
    for i, x in enumerate(tensors):
        if x.array.shape != tensors[0].array.shape:
            raise ShapeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(x.shape)} at entry {i}"
            )
    axis = normalize_dim(dim, tensors[0].ndim + 1)
    return cat([shape.unsqueeze(x, axis) for x in tensors], axis)


@public("torch")
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors horizontally: along the second dimension, vectors along their only one."""
    rows = [atleast_1d(x) for x in tensors]
    return cat(rows, 0 if rows[0].ndim == 1 else 1)


@public("torch", "torch.row_stack")
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors vertically, as rows."""
    return cat([x if x.ndim > 1 else shape.reshape(x, (1, -1)) for x in tensors], 0)


def _of_each(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """Decorator: ``function`` also takes several tensors, or a list of them, and then returns a tuple."""

    @functools.wraps(function)
    def of_each(*tensors: Any) -> Any:
        alone = len(tensors) == 1 and not isinstance(tensors[0], (list, tuple))
        given = tensors[0] if len(tensors) == 1 and not alone else tensors
        for i, each in enumerate(given):
            if not isinstance(each, Tensor):
                raise ArgumentTypeError(f"expected Tensor as element {i} in argument 0, but got {type(each).__name__}")
        return function(given[0]) if alone else tuple(map(function, given))

    del of_each.__wrapped__  # its own signature is what callers see
    return of_each


@public("torch", "Tensor")
@_of_each
def atleast_1d(input: Tensor) -> Tensor:
    """The tensor with at least one dimension; for several tensors, a tuple."""
    return input if input.ndim else shape.reshape(input, 1)


@public("torch")
@_of_each
def atleast_2d(input: Tensor) -> Tensor:
    """The tensor with at least two dimensions: a vector becomes a row. For several tensors, a tuple."""
    return input if input.ndim > 1 else shape.reshape(input, (1, -1))


@public("torch")
@_of_each
def atleast_3d(input: Tensor) -> Tensor:
    """The tensor with at least three dimensions: (n) -> (1, n, 1), (m, n) -> (m, n, 1). For several tensors, a tuple."""
    if input.ndim > 2:
        return input
    return shape.unsqueeze(input, 2) if input.ndim == 2 else shape.reshape(input, (1, -1, 1))


@public("torch")
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors along the third dimension."""
    return cat([atleast_3d(x) for x in tensors], 2)


@public("torch")
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as columns, matrices side by side."""
    return hstack([x if x.ndim > 1 else shape.reshape(x, (-1, 1)) for x in tensors])


@public("torch")
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Expand all tensors to their common shape, as views.

    Raises:
        ValueError: the shapes do not broadcast.
    """
    common = np.broadcast_shapes(*(tuple(x.shape) for x in tensors))
    return tuple(shape.expand(x, common) for x in tensors)


@public("torch", "Tensor")
def tensor_split(
    input: Tensor, indices_or_sections: int | Tensor | Sequence[int] | None = None, dim: int = 0, **either: Any
) -> tuple[Tensor, ...]:
    """Split into a number of nearly equal pieces, or before each of the given indices. The pieces are views.

    Args:
        either: ``sections=`` or ``indices=``, PyTorch's other names of the argument.

    Raises:
        ShapeError: the tensor is 0-d, or the number of pieces is less than 1.
        TypeError: neither or more than one of them is given.
    """
    given: list[Any] = [indices_or_sections] * (indices_or_sections is not None) + list(either.values())
    if len(given) != 1 or not either.keys() <= {"sections", "indices"}:
        raise ArgumentTypeError(
            "tensor_split: expected one of indices_or_sections, sections= and indices=, found "
            f"{', '.join(['indices_or_sections'] * (indices_or_sections is not None) + list(either)) or 'none'}"
        )
    if not input.ndim:
        raise ShapeError("tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    axis = normalize_dim(dim, input.ndim)
    size = input.size(axis)
    asked: Any = given[0].tolist() if isinstance(given[0], Tensor) else given[0]
    if isinstance(asked, int):
        pieces = asked
        if pieces <= 0:
            raise ShapeError(f"number of sections must be larger than 0, got {pieces}")
        small, larger = divmod(size, pieces)
        cuts = [i * small + min(i, larger) for i in range(pieces + 1)]
        bounds = list(pairwise(cuts))
    else:
        cuts = [0, *asked, size]
        bounds = [slice(a, b).indices(size)[:2] for a, b in pairwise(cuts)]
    return tuple(shape.narrow(input, axis, a, max(b - a, 0)) for a, b in bounds)


@public("torch", "Tensor")
def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Split along the second dimension (a vector along its only one) into views, as :func:`tensor_split` does.

    Raises:
        ShapeError: the tensor is 0-d, or the size is not a multiple of the number of pieces.
    """
    return _split_along("hsplit", input, indices_or_sections, 0 if input.ndim == 1 else 1, 1)


@public("torch", "Tensor")
def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Split along the first of two or more dimensions into views; see :func:`hsplit`."""
    return _split_along("vsplit", input, indices_or_sections, 0, 2)


@public("torch", "Tensor")
def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Split along the third dimension into views; see :func:`hsplit`."""
    return _split_along("dsplit", input, indices_or_sections, 2, 3)


def _split_along(name: str, input: Tensor, cuts: int | Sequence[int], dim: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise ShapeError(
            f"torch.{name} requires a tensor with at least {least} dimension{'s' * (least > 1)}, but got a tensor with "
            f"{input.ndim} dimensions!"
        )
    if isinstance(cuts, int) and (cuts < 1 or input.size(dim) % cuts):
        raise ShapeError(
            f"torch.{name} attempted to split along dimension {dim}, but the size of the dimension {input.size(dim)} is not "
            f"divisible by the split_size {cuts}!"
        )
    return tensor_split(input, cuts, dim)


@public("torch", "Tensor")
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of times that each value of a vector of non-negative integers occurs, int64, or the sum of its ``weights``.

    Raises:
        ShapeError: not a vector of non-negative integers, or weights of another length.
        DataDependenceError: on device meta, where the largest value is not known.
    """
    if input.ndim != 1 or input.dtype.kind not in "iu" or (input.numel() and int(input.min().item()) < 0):  # type: ignore[attr-defined]
        raise ShapeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != input.shape:
        raise ShapeError(f"weights should be 1-d and have the same length as input: {list(weights.shape)}, {list(input.shape)}")
    length = max(minlength, int(input.max().item()) + 1 if input.numel() else 0)  # type: ignore[attr-defined]
    dtype: Any = np.dtype(np.int64)
    if weights is None:
        weights = creation.ones(input.numel(), dtype=dtype, device=input.device)
    elif weights.dtype != np.float32:
        weights = weights.double()  # type: ignore[attr-defined]
    out = creation.zeros(length, dtype=weights.dtype, device=input.device)
    return out.index_add_(0, input.long(), weights.detach())  # type: ignore[attr-defined]


@public("torch")
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """The Cartesian product of vectors, one combination a row; a single vector is returned as it is. Saves nothing.

    Raises:
        ShapeError: one is not a vector.
        ArgumentError: there are none.
    """
    if not tensors:
        raise ArgumentError("cartesian_prod expects a non-empty list of Tensors")
    for x in tensors:
        if x.ndim != 1:
            raise ShapeError(f"Expect a 1D vector, but got shape {list(x.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    grids = creation.meshgrid(*tensors, indexing="ij")
    return stack([shape.reshape(grid, -1) for grid in grids], 1)


@public("torch")
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of ``r`` elements of a vector, one a row. Saves: the index of each, 8 bytes.

    Raises:
        ShapeError: it is not a vector.
        ArgumentError: ``r`` is negative.
    """
    if input.ndim != 1:
        raise ShapeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise ArgumentError(f"Expect a non-negative number, but got {r}")
    if not r:
        return creation.empty(0, dtype=input.dtype, device=input.device)
    ways = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = np.array(list(ways(range(input.numel()), r)), np.int64).reshape(-1, r)
    return indexing.getitem(input, (creation.tensor(chosen, device=input.device),))
