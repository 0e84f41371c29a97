"""Sorting and selection along one dimension. nan counts as the largest value; equal elements keep their order.

All raise DimensionError if the dimension is outside the tensor.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, DimensionError
from ..ops import sort as ops
from ..ops.base import refuse_bools
from .door import public


class ValuesIndices(NamedTuple):
    """The result of a selection along one dimension: the values, and their indices (int64)."""

    values: Tensor
    indices: Tensor


@public("torch", "Tensor")
def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """``(values, indices)`` in order along ``dim``, both of input's shape; always stable.

    Saves: the indices, 8 bytes an element.
    """
    axis = normalize_dim(dim, input.ndim)
    return ValuesIndices(*apply(ops.Sort, input, axis=axis, descending=bool(descending)))


@public("torch", "Tensor")
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort along ``dim``, int64; always stable. No gradient."""
    return apply(ops.ArgSort, input, axis=normalize_dim(dim, input.ndim), descending=bool(descending))


@public("torch", "Tensor")
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """The ``k`` largest (or smallest) along ``dim``, in order whatever ``sorted`` says.

    Saves: the indices, 8 bytes each.

    Raises:
        RuntimeError: ``k`` is negative or larger than the dimension.
        DTypeError: bools.
    """
    refuse_bools("topk", input.array)
    k, axis = operator.index(k), normalize_dim(dim, input.ndim)
    size = input.size(axis) if input.ndim else 1
    if not 0 <= k <= size:
        raise ArgumentError(f"selected index k out of range: topk was asked for {k} of {size} along dimension {dim}")
    if input.ndim == 0 and k == 0:
        raise ArgumentError("topk: k is 0 for a 0-d tensor; give k = 1, or a tensor with a dimension")
    return ValuesIndices(*apply(ops.TopK, input, k=k, axis=axis, largest=bool(largest)))


@public("torch", "Tensor")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all elements, or ``(values, indices)`` along ``dim``; nan where there is one.

    Of all, equal elements share the gradient.

    Saves: input and output; along ``dim`` the indices, 8 bytes each.

    Raises:
        DimensionError: ``dim`` is outside the tensor, or has no elements.
        DTypeError: bools.
    """
    if input.numel() or dim is not None:  # of nothing at all PyTorch has an answer, for bools too
        refuse_bools("median", input.array)
    if dim is None:
        return apply(ops.MedianOfAll, input)
    axis = normalize_dim(dim, input.ndim)
    if input.ndim and input.size(axis) == 0:
        raise DimensionError(f"median(): Expected reduction dim {dim} to have non-zero size, found shape {list(input.shape)}")
    return ValuesIndices(*apply(ops.Median, input, axis=axis, keepdim=keepdim))
