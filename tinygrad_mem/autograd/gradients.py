"""Arithmetic of gradients, on raw arrays: copies, sums, and gradients that are not there as a whole.

Two kinds of gradient are no array: :class:`~tinygrad_mem.ops.base.RowsGradient`, a few rows of a table, and
:class:`~tinygrad_mem.ops.base.SliceGradient`, one slice. :func:`add_partial` is all that the engine knows of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ShapeError
from ..ops.base import RowsGradient, SliceGradient

PARTIAL = (RowsGradient, SliceGradient)
_INT64 = np.dtype(np.int64)


def copy(device: Any, array: Any, dtype: np.dtype | None = None) -> Any:
    """A contiguous copy of ``array``, cast to ``dtype`` if one is given."""
    out = device.empty(array.shape, dtype or array.dtype)
    device.kernels.copy(array, out=out)  # copies cast
    return out


def unbroadcast(device: Any, grad: Any, shape: tuple) -> Any:
    """Sum ``grad`` over the axes along which ``shape`` was broadcast.

    Raises:
        ShapeError: ``shape`` does not broadcast to the gradient's.
    """
    lead = grad.ndim - len(shape)
    if lead < 0 or any(n != 1 and n != g for n, g in zip(shape, grad.shape[lead:], strict=True)):
        raise ShapeError(f"a backward returned a gradient of shape {list(grad.shape)} for an input of shape {list(shape)}")
    axes = tuple(range(lead)) + tuple(lead + i for i, n in enumerate(shape) if n == 1 and grad.shape[lead + i] != 1)
    out = device.empty(shape, grad.dtype)
    kept = (1,) * lead + shape
    device.kernels.sum(grad, axes, out=out.reshape(kept))
    return out


def memory_of(grad: Any) -> Any:
    """The array whose memory a gradient shows."""
    return grad.values if type(grad) in PARTIAL else grad


def whole(device: Any, part: SliceGradient, dtype: np.dtype) -> Any:
    """A buffer that is 0 but in the part."""
    out = device.empty(part.shape, dtype)
    device.kernels.fill(0, out=out)
    device.kernels.copy(part.values, out=out[part.key])
    return out


def dense(device: Any, rows: RowsGradient) -> Any:
    """The array that ``rows`` stands for."""
    out = device.empty(rows.shape, rows.dtype)
    device.kernels.fill(0, out=out)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def copy_rows(device: Any, rows: RowsGradient, dtype: np.dtype | None = None) -> RowsGradient:
    """A copy of the values; the indices of a gradient are always its own."""
    return RowsGradient(rows.index, copy(device, rows.values, dtype), rows.shape)


def join_rows(device: Any, first: RowsGradient, second: RowsGradient) -> RowsGradient:
    """The one behind the other."""
    count = len(first.index) + len(second.index)
    made = RowsGradient(device.empty((count,), _INT64), device.empty((count, first.shape[1]), first.dtype), first.shape)
    cut = len(first.index)
    for part, index, values in ((first, made.index[:cut], made.values[:cut]), (second, made.index[cut:], made.values[cut:])):
        device.kernels.copy(part.index, out=index)
        device.kernels.copy(part.values, out=values)
    return made


def add_rows(device: Any, array: Any, owned: bool, rows: RowsGradient) -> Any:
    """``array`` and ``rows`` added, in the array where that is ours."""
    out = array if owned else copy(device, array)
    device.kernels.add_rows(rows.values, rows.index, out)
    return out


def add_part(device: Any, array: Any, owned: bool, part: SliceGradient) -> Any:
    """``array`` and ``part`` added, in the array where that is ours: slices of one tensor share one buffer."""
    out, values = array if owned else copy(device, array), part.values
    if values.dtype != out.dtype:
        values = copy(device, values, out.dtype)
    place = out[part.key]
    device.kernels.add(place, values, out=place)
    return out


def add_partial(
    device: Any, present: Any, present_owned: bool, grad: Any, owned: bool, dtype: np.dtype, leaf: bool
) -> tuple[Any, bool]:
    """The sum of ``grad`` and what is ``present``, where either is of :data:`PARTIAL`. Only a leaf keeps rows.

    Returns:
        The sum, and whether it is the engine's alone.
    """
    if type(grad) is SliceGradient:
        if present is not None and type(present) is not RowsGradient:
            return add_part(device, present, present_owned, grad), True
        grad, owned = whole(device, grad, dtype), True
    if type(grad) is RowsGradient and grad.dtype != dtype:
        grad, owned = copy_rows(device, grad, dtype), True
    if type(grad) is RowsGradient and not leaf:
        grad, owned = dense(device, grad), True
    if present is None:
        return grad, owned
    if type(present) is RowsGradient:
        joins = type(grad) is RowsGradient
        return (join_rows(device, present, grad) if joins else add_rows(device, grad, owned, present)), True
    if type(grad) is RowsGradient:
        return add_rows(device, present, present_owned, grad), True
    out = present if present_owned else copy(device, present)
    device.kernels.add(present, grad, out=out)
    return out, True
