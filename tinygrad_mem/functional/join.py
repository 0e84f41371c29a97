"""Joining and splitting tensors. Parts are views; joined tensors are copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..ops import join as ops
from . import creation, shape
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
    """Stack tensors of one shape along a new dimension. Saves nothing. Raises: ShapeError: no tensors, or shapes differ."""
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
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All combinations of one entry of each 1-d tensor, as rows, in the order of :func:`itertools.product`. Saves nothing.

    A single tensor is returned itself.

    Raises:
        ShapeError: a tensor is not 1-d, or there is none.
        DTypeError: their dtypes differ.
    """
    if not tensors:
        raise ShapeError("cartesian_prod: expected at least one tensor")
    for x in tensors:
        if x.ndim != 1:
            raise ShapeError(f"cartesian_prod: expected 1-d tensors, but got one of shape {list(x.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack(creation.meshgrid(*tensors, indexing="ij"), -1).reshape(-1, len(tensors))


@public("torch")
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors horizontally: along the second dimension, vectors along their only one."""
    rows = [atleast_1d(x) for x in tensors]
    return cat(rows, 0 if rows[0].ndim == 1 else 1)


@public("torch", "torch.row_stack")
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors vertically, as rows."""
    return cat([x if x.ndim > 1 else shape.reshape(x, (1, -1)) for x in tensors], 0)


@public("torch", "Tensor")
def atleast_1d(*tensors: Any) -> Any:
    """The tensor with at least one dimension; for several tensors, or a list of them, a tuple."""
    alone = len(tensors) == 1 and not isinstance(tensors[0], (list, tuple))
    given = tensors[0] if len(tensors) == 1 and not alone else tensors
    for i, each in enumerate(given):
        if not isinstance(each, Tensor):
            raise ArgumentTypeError(f"expected Tensor as element {i} in argument 0, but got {type(each).__name__}")
    made = tuple(x if x.ndim else shape.reshape(x, 1) for x in given)
    return made[0] if alone else made


@public("torch")
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Expand all tensors to their common shape, as views. Raises: ValueError: the shapes do not broadcast."""
    common = np.broadcast_shapes(*(tuple(x.shape) for x in tensors))
    return tuple(shape.expand(x, common) for x in tensors)


@public("torch", "Tensor")
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The number of times that each value of a vector of non-negative integers occurs, int64, or the sum of its ``weights``.

    Raises:
        ShapeError: not a vector of non-negative integers, or weights of another length.
        ArgumentError: ``minlength`` is negative.
        DataDependenceError: on device meta, where the largest value is not known.
    """
    if input.ndim != 1 or input.dtype.kind not in "iu" or (input.numel() and int(input.min().item()) < 0):  # type: ignore[attr-defined]
        found = f"found {input.dtype} of shape {list(input.shape)}"
        raise ShapeError(f"bincount only supports 1-d non-negative integral inputs, {found}")
    if weights is not None and weights.shape != input.shape:
        raise ShapeError(f"weights should be 1-d and have the same length as input: {list(weights.shape)}, {list(input.shape)}")
    if minlength < 0:
        raise ArgumentError(f"minlength should be >= 0, found {minlength}")
    if not input.numel():  # whatever the weights are, as in PyTorch
        return creation.zeros(minlength, dtype=np.int64, device=input.device)
    length = max(minlength, int(input.max().item()) + 1)  # type: ignore[attr-defined]
    dtype: Any = np.dtype(np.int64)
    if weights is None:
        weights = creation.ones(input.numel(), dtype=dtype, device=input.device)
    elif weights.dtype != np.float32:
        weights = weights.double()  # type: ignore[attr-defined]
    out = creation.zeros(length, dtype=weights.dtype, device=input.device)
    return out.index_add_(0, input.long(), weights.detach())  # type: ignore[attr-defined]
