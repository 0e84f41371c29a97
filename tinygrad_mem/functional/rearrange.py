"""Copies with entries reordered, repeated or padded. They save nothing for backward."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..autograd.core import apply
from ..autograd.shape import normalize_dim
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..ops import convert
from ..ops import join as ops
from ..ops.base import refuse_bools
from ..scope import setting
from . import shape
from .creation import tensor
from .door import public
from .gather import index_select
from .join import cat


@public("Tensor")
def repeat(input: Tensor, *repeats: Any) -> Tensor:
    """Repeat the tensor along each dimension: a copy. Saves nothing. Raises: ShapeError: too few numbers, or one below 0."""
    times = shape.sizes_of(repeats)
    if any(n < 0 for n in times):
        raise ShapeError(f"repeat: Trying to create tensor with negative dimension: found {list(times)}")
    if len(times) < input.ndim:
        said = "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        raise ShapeError(f"{said}: found {list(times)} for {list(input.shape)}")
    sizes = (1,) * (len(times) - input.ndim) + tuple(input.shape)
    x = shape.reshape(input, [m for n in sizes for m in (1, n)])
    x = shape.expand(x, [m for k, n in zip(times, sizes, strict=True) for m in (k, n)])
    return shape.reshape(apply(convert.Clone, x), [k * n for k, n in zip(times, sizes, strict=True)])


@public("torch", "Tensor")
def tile(input: Tensor, dims: int | Sequence[int], *more: int) -> Tensor:
    """:func:`repeat`, with missing leading counts taken as 1. Raises: ShapeError: a negative count."""
    dims = shape.sizes_of((dims, *more))
    return repeat(input, (1,) * (input.ndim - len(dims)) + tuple(dims))


@public("torch", "Tensor")
def repeat_interleave(
    input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Repeat each entry as often as ``repeats`` says: one number for all, or one for each.

    Raises:
        ArgumentError: a negative number.
        ShapeError: not one number for each entry, or another number of entries comes out than ``output_size``.
    """
    if dim is None:
        return repeat_interleave(shape.reshape(input, -1), repeats, 0, output_size=output_size)
    axis = normalize_dim(dim, input.ndim)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    size = input.size(axis)
    if isinstance(repeats, Tensor) and tuple(repeats.shape) != (size,):
        found = list(repeats.shape)
        raise ShapeError(f"repeat_interleave: expected repeats as one number for each of {size} entries, found {found}")
    counts = [repeats] if isinstance(repeats, int) else repeats.tolist()
    if min(counts, default=0) < 0:
        raise ArgumentError(f"repeat_interleave: repeats must be non-negative, found {min(counts)}")
    total = size * repeats if isinstance(repeats, int) else int(repeats.sum())
    if output_size is not None and output_size != total:
        raise ShapeError(f"repeat_interleave: allocated size does not match required size: {output_size}, found {total}")
    if isinstance(repeats, int):
        x = shape.unsqueeze(input, axis + 1)
        x = apply(convert.Clone, shape.expand(x, *x.shape[: axis + 1], repeats, *x.shape[axis + 2 :]))
        return shape.flatten(x, axis, axis + 1)
    return index_select(input, axis, tensor([i for i, k in enumerate(counts) for _ in range(k)], dtype="int64"))


@public("torch", "Tensor")
def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Shift entries cyclically."""
    if dims is None:
        return shape.reshape(roll(shape.reshape(input, -1), shifts, 0), input.shape)
    moves = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    axes = (dims,) if isinstance(dims, int) else tuple(dims)
    if len(moves) != len(axes):
        raise ShapeError(f"shifts and dimensions must align. shifts: {len(moves)}, dims: {len(axes)}")
    pairs = list(zip(moves, axes, strict=True))
    for shift, dim in pairs:
        size = input.size(dim)
        k = shift % size if size else 0
        if k:
            input = cat([shape.narrow(input, dim, size - k, k), shape.narrow(input, dim, 0, size - k)], dim)
    return input.clone() if all(s % max(input.size(d), 1) == 0 for s, d in pairs) else input


@public("torch", "Tensor")
def flip(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """Reverse dimensions, ``flip(x, 0, 1)`` or ``flip(x, dims=(0, 1))``: a copy. Saves nothing."""
    if not axes and dims is None:
        raise ArgumentTypeError('flip() missing 1 required positional arguments: "dims"')
    axes = tuple(normalize_dim(d, input.ndim) for d in shape.sizes_of(axes if dims is None else (dims,)))
    twice = [axis for axis in axes if axes.count(axis) > 1]
    if twice:
        raise ArgumentError(f"dim {twice[0]} appears multiple times in the list of dims: each is reversed once")
    return apply(ops.Flip, input, axes=axes)


@public("Tensor.__reversed__")
def reversed(input: Tensor) -> Tensor:
    """:func:`flip` of the first dimension. Saves nothing."""
    return flip(input, 0) if input.ndim else input


@public("torch", "Tensor")
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Differences of neighbours, ``n`` times, of ``prepend``, input and ``append`` concatenated; of bools, where they differ.

    Saves nothing.

    Raises:
        ArgumentError: ``n`` is negative.
        ShapeError: input has no dimension; ``prepend`` or ``append`` differs from input in another dimension than ``dim``.
    """
    if not input.ndim:
        raise ShapeError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise ArgumentError(f"diff: order must be non-negative but got {n}")
    if n == 0:
        return input.clone()
    axis = normalize_dim(dim, input.ndim)
    row = [t for t in (prepend, input, append) if t is not None]
    for t in row:
        if t.ndim != input.ndim or any(t.size(a) != input.size(a) for a in range(input.ndim) if a != axis):
            raise ShapeError(
                "diff expects the shape of tensor to prepend or append to match that of input except along the differencing "
                f"dimension {axis}: found {list(t.shape)} beside {list(input.shape)}"
            )
    input = cat(row, axis) if len(row) > 1 else input
    for _ in range(min(n, input.size(dim))):
        rest = max(input.size(dim) - 1, 0)
        late, early = shape.narrow(input, dim, input.size(dim) - rest, rest), shape.narrow(input, dim, 0, rest)
        input = late.ne(early) if input.dtype == np.bool_ else late - early
    return input


@public("nn.functional")
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the last dimensions: ``pad`` has (before, after) from the last dimension backwards; a negative size crops.

    Modes: constant, reflect, replicate, circular. Saves nothing.

    Raises:
        ValueError: an unknown mode, or a value that the dtype does not hold.
        ShapeError: ``pad`` has an odd length, is too long, or reaches further than the data.
    """
    amounts = tuple(map(operator.index, pad))
    if len(amounts) % 2 or len(amounts) // 2 > input.ndim:
        raise ShapeError(f"Padding length must be divisible by 2 and at most {2 * input.ndim}, found {list(amounts)}")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: unrecognised padding mode {mode!r}; use constant, reflect, replicate or circular")
    pairs = [(0, 0)] * (input.ndim - len(amounts) // 2) + [
        (amounts[i], amounts[i + 1]) for i in range(len(amounts) - 2, -2, -2)
    ]
    if any(min(pair) < 0 and n + sum(min(end, 0) for end in pair) < 0 for n, pair in zip(input.shape, pairs, strict=True)):
        raise ShapeError(f"pad: narrow(): length must be non-negative: {list(amounts)} crops more than {list(input.shape)} has")
    if mode == "constant":
        if input.dtype.kind == "u" and value is not None and value < 0:
            raise ArgumentError(
                f"pad: value {value} cannot be converted to type {input.dtype} without overflow; choose another"
            )
        return apply(ops.Pad, input, pairs=tuple(pairs), value=0 if value is None else value)
    if mode != "circular":
        refuse_bools(f"pad: mode {mode}", input.array)
    if value is not None:
        raise ArgumentError(f"Padding mode {mode!r} doesn't take in value argument")
    if not any(amounts):
        return input.clone()
    with setting(autocast=None):  # numbers are only moved
        for axis, (before, after) in enumerate(pairs):
            if before or after:
                input = _pad_with_data(input, axis, before, after, mode)
    return input


def _pad_with_data(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis padded with entries of the tensor itself."""
    size = x.size(axis)
    most = size - 1 if mode == "reflect" else size
    if mode != "replicate" and max(before, after) > most:
        raise ShapeError(
            f"Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at "
            f"dimension {axis} of input {list(x.shape)}"
        )
    crop = shape.narrow(x, axis, max(-before, 0), size + min(before, 0) + min(after, 0))
    if mode == "circular":  # what is cropped is gone before anything goes round
        x, size = crop, crop.size(axis)
        if max(before, after) > size:
            raise ShapeError(
                f"Padding value causes wrapping around more than once: ({before}, {after}) of {size} that are left"
            )

    def beyond(count: int, mirrored: int, around: int, edge: int) -> list[Tensor]:
        """``count`` entries to pad with, taken as the mode says."""
        if count <= 0:
            return []
        if mode == "replicate":
            return [shape.expand(shape.narrow(x, axis, edge, 1), *[count if i == axis else -1 for i in range(x.ndim)])]
        return [
            flip(shape.narrow(x, axis, mirrored, count), axis) if mode == "reflect" else shape.narrow(x, axis, around, count)
        ]

    return cat([*beyond(before, 1, size - before, 0), crop, *beyond(after, size - 1 - after, 0, size - 1)], axis)
