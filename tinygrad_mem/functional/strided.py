"""Views by shape and strides, and in-place changes of a tensor's shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import GraphError, ShapeError
from ..ops import shape as ops
from ..ops.base import root_of
from ..scope import local
from . import shape
from .door import public


@public("torch", "Tensor")
def as_strided(input: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    """A view of the memory that ``input`` shares: any sizes and strides, counted in elements. Saves nothing.

    Args:
        storage_offset: the position of the first element in the memory; by default that of ``input``.

    Raises:
        ShapeError: a stride is negative, or elements are outside of the memory.
        GraphError: a gradient is needed, and ``input`` is not dense, in any order of its axes, or does not contain all
            elements of the result.
    """
    sizes, steps = shape.sizes_of((size,)), shape.sizes_of((stride,))
    if len(sizes) != len(steps):
        raise ShapeError(f"mismatch in length of strides and shape: found {list(steps)} for {list(sizes)}")
    if min(sizes, default=0) < 0 or min(steps, default=0) < 0:
        raise ShapeError(f"as_strided: Negative sizes and strides are not supported: found {list(sizes)}, {list(steps)}")
    here = input.storage_offset()
    first = here if storage_offset is None else operator.index(storage_offset)
    last = first + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    held = root_of(input.array).nbytes // input.element_size()
    if first < 0 or (0 not in sizes and last >= held):
        raise ShapeError(
            f"as_strided: sizes {list(sizes)}, strides {list(steps)}, storage offset {first} are out of bounds for storage of "
            f"{held} elements"
        )
    return apply(ops.AsStrided, input, size=sizes, stride=steps, offset=first - here)


def _become(name: str, input: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Turn ``input``, its array and its node, into the view that ``change`` makes of it."""
    recorded = local.grad_enabled
    base = input._former()
    if recorded and base.requires_grad and base.is_leaf:
        what = "a leaf Variable" if base is input else "a view of a leaf Variable"
        raise GraphError(f"{what} that requires grad is being used in an in-place operation ({name}). Use {name[:-1]}().")
    former = input
    if input._view is None:  # earlier views of it are views of the tensor that it was before
        former = Tensor._wrap(input.array, input.device)
        former._storage, former._inference, former._unseen = input.storage, input._inference, True
        former._node, former._index, former._requires_grad = input._node, input._index, input._requires_grad
    made = change(former)
    with input._retained_anew():
        input.array, input._view = made.array, made._view if recorded else input._view
        if recorded:
            input._node, input._index, input._requires_grad = made._node, made._index, made._requires_grad
    return input


@public("Tensor")
def squeeze_(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """``input`` becomes :func:`squeeze` of itself: the same memory. Saves nothing."""
    return _become("squeeze_", input, lambda x: shape.squeeze(x, dim))


@public("Tensor")
def unsqueeze_(input: Tensor, dim: int) -> Tensor:
    """``input`` becomes :func:`unsqueeze` of itself: the same memory. Saves nothing."""
    return _become("unsqueeze_", input, lambda x: shape.unsqueeze(x, dim))
