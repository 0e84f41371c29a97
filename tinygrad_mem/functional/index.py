"""Indexing, read and write. Basic keys (integers, slices, None, ...) give views; tensors, lists and masks give copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes
from ..autograd.core import apply
from ..autograd.inplace import apply_
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, DimensionError, DTypeError, ShapeError
from ..ops import index as ops
from ..ops import shape as shape_ops
from ..ops.base import root_of
from . import elementwise, rewrite, shape
from .choose import nonzero
from .creation import tensor
from .door import WIDEST, public
from .host import host_array

_NUMBERS = (int, float, np.generic)


def _expanded(input: Tensor, key: Any) -> list:
    """The key as a list with ``...`` replaced by slices, and sequences and arrays by tensors."""
    others = [type(part).__name__ for part in key if not isinstance(part, _NUMBERS)] if isinstance(key, list) else []
    if others:
        raise ArgumentTypeError(
            f"a list as an index may hold only numbers, found {others[0]}: PyTorch 2.13 reads it as x[tuple(index)], NumPy as "
            "x[tensor(index)]. Write the one that you mean"
        )
    parts = list(key) if isinstance(key, tuple) else [key]
    made: list[Any] = []
    for part in parts:
        if isinstance(part, (list, tuple, np.ndarray, range)):
            part = np.asarray(part)
            if part.dtype.kind in "iu" or part.size == 0:
                part = part.astype(np.int64) if part.ndim else int(part)
        if isinstance(part, Tensor) and part.ndim == 0 and part.dtype.kind in "iu" and not _is_mask(part):
            part = _number(input, part)
        made.append(part)
    used = sum(p.ndim if _is_mask(p) else 0 if p is None or p is Ellipsis or isinstance(p, bool) else 1 for p in made)
    if used > input.ndim:
        raise DimensionError(f"too many indices for tensor of dimension {input.ndim}: found {used}")
    dots = [i for i, p in enumerate(made) if p is Ellipsis]
    if len(dots) > 1:
        raise DimensionError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(made)
    return _on_device(input, made[:at] + [slice(None)] * (input.ndim - used) + made[at + 1 :])


def _number(input: Tensor, index: Tensor) -> int:
    """The number of an index without dimensions. Where nobody knows it, the first entry stands for all: each has its shape."""
    if not (index.is_meta and input.is_meta):
        return int(index.item())
    known = index._constant()
    if known is not None:
        return int(known)
    if input._storage is not None:
        input._storage.constant = None  # the view may show any entry, and shares what is known of the memory
    return 0


def _on_device(input: Tensor, parts: list) -> list:
    """Arrays as tensors on the input's device. Their values are checked here, on the host, for every device."""
    axis = 0
    for i, part in enumerate(parts):
        if isinstance(part, np.ndarray):
            if part.dtype == np.int64 and part.size:
                size = input.array.shape[axis]
                refuse_outside(int(part.min()), int(part.max()), size, axis)
                part = np.where(part < 0, part + size, part)
            parts[i] = tensor(part, device=input.device)
        if part is not None and not isinstance(part, bool):
            axis += part.ndim if _is_mask(part) else 1
    return parts


def _is_mask(part: Any) -> bool:
    return isinstance(part, (Tensor, np.ndarray)) and part.dtype in (dtypes.bool, dtypes.uint8)


def _checked(input: Tensor, parts: list) -> list:
    """Check that integers are within bounds and steps of slices are positive; errors have PyTorch's words."""
    axis = 0
    for part in parts:
        if isinstance(part, bool) or part is None:
            continue
        if isinstance(part, slice):
            if part.step is not None and part.step <= 0:
                raise ArgumentError("step must be greater than zero")
            if not all(end is None or hasattr(end, "__index__") for end in (part.start, part.stop)):
                raise ArgumentTypeError(f"slice indices must be integers or None, found {part.start!r}:{part.stop!r}")
        elif not isinstance(part, Tensor):
            try:
                number = part.__index__()
            except AttributeError:
                raise ArgumentTypeError(
                    "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices "
                    f"(got {type(part).__name__})"
                ) from None
            size = input.array.shape[axis]
            if not -size <= number < size:
                raise DimensionError(f"index {number} is out of bounds for dimension {axis} with size {size}")
        axis += part.ndim if isinstance(part, Tensor) and _is_mask(part) else 1
    return parts


def _basic(input: Tensor, parts: list) -> tuple[Tensor, list]:
    """Apply integers, slices and new axes as a view. Returns it with the remaining key of slices and index tensors."""
    key, left = [], []
    beside = sum(isinstance(part, (Tensor, bool)) for part in parts) > 1
    for part in parts:
        if part is False or (part is True and beside):  # an index of a new axis, which is broadcast with the others
            key.append(None)
            left.append(tensor([0] if part else [], dtype=dtypes.int64, device=input.device))
        elif isinstance(part, Tensor):
            if part.ndim == 0 and _is_mask(part):  # on a new axis of one entry, which it keeps or drops
                key.append(None)
                left.append(shape.reshape(part, (1,)))
                continue
            count = part.ndim if _is_mask(part) else 1
            key += [slice(None)] * count
            left.append(part)
        elif part is None or part is True:
            key.append(None)
            left.append(slice(None))
        else:
            key.append(part if isinstance(part, slice) else part.__index__())
            if isinstance(part, slice):
                left.append(slice(None))
    if all(isinstance(k, slice) and k == slice(None) for k in key):
        return input, left
    return apply(shape_ops.Slice, input, key=tuple(key)), left


def _indices(input: Tensor, left: list) -> tuple[list[int], list[Tensor], tuple[int, ...]]:
    """The indexed axes, a checked int64 index tensor for each, and the common shape of these.

    Raises:
        DimensionError: they do not broadcast.
    """
    axes, found, axis = [], [], 0
    for part in left:
        if not isinstance(part, Tensor):
            axis += 1
            continue
        if part.dtype.kind not in "iub":
            raise DimensionError(f"tensors used as indices must be long, int, byte or bool tensors, found {part.dtype}")
        if _is_mask(part):
            for positions in nonzero(_fitting(part, input, axis), as_tuple=True):
                axes.append(axis)
                found.append(positions.to(input.device))
                axis += 1
        else:
            axes.append(axis)
            found.append(within(part.to(dtype=dtypes.int64, device=input.device), input.size(axis), axis))
            axis += 1
    try:
        return axes, found, tuple(np.broadcast_shapes(*[tuple(t.shape) for t in found]))
    except ValueError:
        shapes = ", ".join(str(list(t.shape)) for t in found)
        raise DimensionError(f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}") from None


def _fitting(mask: Tensor, input: Tensor, axis: int) -> Tensor:
    """The mask itself, of the input's shape from ``axis`` on."""
    if tuple(mask.shape) != tuple(input.shape[axis : axis + mask.ndim]):
        raise DimensionError(
            f"The shape of the mask {list(mask.shape)} at index {axis} does not match the shape of the indexed tensor "
            f"{list(input.shape)} at index {axis}"
        )
    return mask


def within(index: Tensor, size: int, dim: int, negative: bool = True) -> Tensor:
    """Return ``index``, checked if the device has values; negative entries count from the end.

    Raises:
        DimensionError: an entry is out of bounds.
    """
    found = ends(index)
    if found:
        refuse_outside(found[0], found[1], size, dim, negative)
    return index


def ends(x: Tensor) -> tuple:
    """The smallest and the largest element, as numbers, for a check; empty for an empty tensor or on ``meta``.

    The memory that a check needs does not depend on values: it is the same on every device.
    """
    if x.numel() == 0:
        return ()
    low, high = x.min(), x.max()  # type: ignore[attr-defined]
    return () if x.is_meta else (low.item(), high.item())


def refuse_outside(low: int, high: int, size: int, dim: int, negative: bool = True) -> None:
    """Check that indices from ``low`` to ``high`` are within bounds. Raises: DimensionError: one is not."""
    if high >= size or low < (-size if negative else 0):
        raise DimensionError(f"index {high if high >= size else low} is out of bounds for dimension {dim} with size {size}")


@public("Tensor.__getitem__")
def getitem(input: Tensor, key: Any) -> Tensor:
    """``input[key]``. Saves: the index, joined into one where there are several.

    Raises:
        DimensionError: out of bounds, or too many indices.
        DataDependenceError: a mask on device meta.
    """
    parts = _checked(input, _expanded(input, key))
    view, left = _basic(input, parts)
    if not any(isinstance(part, Tensor) for part in left):
        if any(part is True for part in parts):  # an index like a tensor: the result is a copy
            return view.clone()
        return view if view is not input else apply(shape_ops.Slice, input, key=(...,))
    axes, indices, common = _indices(view, left)
    sizes = [view.size(a) for a in axes]
    flat = indices[0]
    for size, index in zip(sizes[1:], indices[1:], strict=True):  # negative places are valid too
        flat = elementwise.add(elementwise.mul(flat, size), elementwise.remainder(index, max(size, 1)))
    rest = [a for a in range(view.ndim) if a not in axes]
    moved = shape.permute(view, *axes, *rest) if axes != list(range(len(axes))) else view
    rows = shape.reshape(moved, (math.prod(sizes), *[view.size(a) for a in rest])) if len(axes) > 1 else moved
    taken = apply(ops.Take, rows, flat if tuple(flat.shape) == common else flat.expand(*common).contiguous())
    first = axes[0]
    if axes == list(range(first, first + len(axes))) and first:  # adjacent indices stay where they were
        n = len(common)
        order = [*range(n, n + first), *range(n), *range(n + first, taken.ndim)]
        taken = shape.permute(taken, *order).contiguous()
    return taken


@public("Tensor.__setitem__")
def setitem(input: Tensor, key: Any, value: Any) -> None:
    """``input[key] = value``, in place, with gradients for both. Saves: the indices; one mask, for one value, as a mask.

    Raises:
        DTypeError: the key holds tensors, and the value is a tensor of another dtype.
        ArgumentError: a number that the dtype cannot hold.
    """
    given, value = value if isinstance(value, Tensor) else None, dtypes.plain(value)
    if isinstance(value, (int, float)) and input.dtype not in dtypes.HALVES:  # beyond a half is inf, in PyTorch too
        value = dtypes.fitting(value, input.dtype)
    view, left = _basic(input, _checked(input, _expanded(input, key)))
    arrays = [part for part in left if isinstance(part, Tensor)]
    if len(arrays) == 1 and _is_mask(arrays[0]) and np.ndim(value) == 0:
        _fill_masked(view, left, value)
        return
    if not isinstance(value, Tensor):
        value = tensor(value, dtype=input.dtype, device=input.device)
    value = value.to(device=input.device)
    if not arrays:
        if view is input:
            view = apply(shape_ops.Slice, input, key=(...,))
        while value.ndim > view.ndim and value.size(0) == 1:
            value = value.squeeze(0)
        shared = value.numel() < view.numel() and root_of(value.array) is root_of(view.array)  # a part of the tensor itself
        view.copy_(value.clone() if shared else value)
        return
    if given is not None and (given.ndim or len(arrays) < len(left) or any(part.dtype != dtypes.bool for part in arrays)):
        same_dtype("index_put_", input, given)
    while value.ndim and value.size(0) == 1:  # as in PyTorch, it may have more axes than what is written
        value = value.squeeze(0)
    axes, indices, _ = _indices(view, left)
    key = tuple((axes.index(a),) if a in axes else slice(None) for a in range(view.ndim))
    apply_(ops.IndexPut, view, value.to(dtype=input.dtype), *indices, key=key, accumulate=False)


def _fill_masked(view: Tensor, left: list, value: Any) -> None:
    """Write one value where the only mask of ``left`` is True. It does not need the number of places, so it works on meta."""
    axis = next(i for i, part in enumerate(left) if isinstance(part, Tensor))
    mask = _fitting(left[axis], view, axis)
    mask = shape.reshape(mask, (*mask.shape, *[1] * (view.ndim - axis - mask.ndim))).to(dtypes.bool)
    if isinstance(value, Tensor):
        rewrite.masked_fill_(view, mask, value.to(device=view.device))
    else:
        rewrite.masked_fill_(view, mask, host_array(value, view.dtype).item())


@public("torch", "Tensor")
def index_put_(input: Tensor, indices: tuple, values: Tensor, accumulate: bool = False) -> Tensor:
    """``input[indices] = values``, or ``+=`` with repeated entries adding up. Saves: the indices.

    Raises:
        DTypeError: the values are of another dtype.
        ArgumentError: there are no indices.
    """
    same_dtype("index_put_", input, values)
    if not indices:
        raise ArgumentError("index_put_: expected at least one tensor of indices, found none; to write all, use copy_ or add_")
    for i, each in enumerate(indices):
        if not isinstance(each, Tensor):
            raise ArgumentTypeError(f"index_put_: expected Tensor as element {i} of the indices, but got {type(each).__name__}")
    parts = [shape.reshape(p, (1,)) if p.ndim == 0 else p for p in indices]
    axes, found, _ = _indices(input, _expanded(input, tuple(parts)))
    key = tuple((axes.index(a),) if a in axes else slice(None) for a in range(input.ndim))
    return apply_(ops.IndexPut, input, values, *found, key=key, accumulate=accumulate)


def same_dtype(name: str, input: Tensor, source: Tensor) -> None:
    if source.dtype != input.dtype:
        raise DTypeError(f"{name}(): self and source expected to have the same dtype, but got {input.dtype} and {source.dtype}")


@public("torch", "Tensor", cuda=WIDEST)
def index_put(input: Tensor, indices: tuple, values: Tensor, accumulate: bool = False) -> Tensor:
    """:func:`index_put_` on a copy."""
    return index_put_(input.clone(), indices, values, accumulate)


@public("torch", "Tensor")
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """Elements where ``mask``, as a vector. Saves: the index of each, 8 bytes. Raises: DTypeError: the mask is not bool."""
    if mask.dtype != dtypes.bool:
        raise DTypeError(
            f"masked_select: expected BoolTensor for mask, found {mask.dtype}; compare it, or convert it with .bool()"
        )
    wanted = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return getitem(input.expand(*wanted), mask.expand(*wanted))


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
    if not input.ndim:
        masked_scatter_(shape.unsqueeze(input, 0), shape.unsqueeze(mask, 0), source)
        return input
    places = nonzero(shape.expand(mask, input.shape), as_tuple=True)
    count = places[0].size(0)
    if source.numel() < count:
        raise ShapeError(
            f"masked_scatter_: expected the number of elements of the source to be at least the {count} that the mask has "
            f"True, found {source.numel()}"
        )
    return index_put_(input, places, shape.narrow(shape.reshape(source, (-1,)), 0, 0, count))


@public("torch", "Tensor")
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """:func:`masked_scatter_` on a copy; input and mask are broadcast."""
    common = np.broadcast_shapes(tuple(input.shape), tuple(mask.shape))
    return masked_scatter_(shape.expand(input, common).clone(), mask, source)
