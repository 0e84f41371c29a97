"""Pooling over one, two or three spatial dimensions, with the names and arguments of ``torch.nn.functional``.

Adaptive pooling is given the sizes of the output instead of those of windows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..dtypes import int64, is_floating
from ..errors import ArgumentTypeError, DTypeError, ShapeError
from ..ops import pool as ops
from ..ops.base import want_floating
from . import creation, gather
from .conv import Sizes, sizes_of
from .door import FLOAT32, public


def want_planes(input: Tensor, n: int, name: str) -> None:
    """Check that the last ``n`` sizes are not zero, and that channels, or batch and channels, come before them."""
    if input.ndim not in (n + 1, n + 2) or 0 in input.shape[-n:]:
        raise ShapeError(
            f"{name}: Expected {n + 1}D or {n + 2}D (batch mode) tensor with non-zero sizes, found {list(input.shape)}"
        )


def _out_size(size: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """The number of windows along one axis; with ``ceil_mode`` the last may extend past the end, if it starts inside."""
    span = size + 2 * p - d * (k - 1) - 1
    out = (-(-span // s) if ceil_mode else span // s) + 1
    if ceil_mode and (out - 1) * s >= size + p:
        out -= 1
    return out


def _geometry(
    input: Tensor, n: int, name: str, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[tuple, tuple]:
    kernel = sizes_of(name, "kernel_size", kernel_size, n)
    step = sizes_of(name, "stride", kernel if stride is None or stride == () or stride == [] else stride, n)
    pad, spread = sizes_of(name, "padding", padding, n), sizes_of(name, "dilation", dilation, n)
    outs = _outs(name, input.array.shape, kernel, step, pad, spread, bool(ceil_mode))
    return outs, (kernel, step, pad, spread)


@lru_cache(256)
def _outs(name: str, shape: tuple, kernel: tuple, step: tuple, pad: tuple, spread: tuple, ceil_mode: bool) -> tuple[int, ...]:
    """The sizes of the result. A network asks for the same ones in each step."""
    if min(kernel) <= 0 or min(step) <= 0 or min(spread) <= 0:
        raise ShapeError(
            f"{name}: kernel size, stride and dilation should be greater than zero, found {kernel}, {step}, {spread}"
        )
    for p, k, d in zip(pad, kernel, spread, strict=True):
        if not 0 <= p <= k // 2:
            raise ShapeError(f"pad should be at most half of kernel size, but got pad={p}, kernel_size={k} and dilation={d}")
    outs = tuple(
        _out_size(size, k, s, p, d, ceil_mode)
        for size, k, s, p, d in zip(shape[-len(kernel) :], kernel, step, pad, spread, strict=True)
    )
    if min(outs) < 1:
        raise ShapeError(f"{name}: Given input size {list(shape)}, the calculated output size {list(outs)} is too small")
    return outs


@lru_cache(256)
def _sees_nothing(sizes: tuple[int, ...], outs: tuple[int, ...], geometry: tuple) -> bool:
    """True if some window has only padding: a dilated window may skip a short input."""
    return any(
        all(not 0 <= i * s - p + o * d < size for o in range(k))
        for size, out, k, s, p, d in zip(sizes, outs, *geometry, strict=True)
        if d > 1 and p
        for i in range(out)
    )


def _max_pool(
    n: int, input: Tensor, kernel_size: Sizes, stride: Any, padding: Sizes, dilation: Sizes, ceil_mode: bool, indices: bool
) -> Any:
    name = f"max_pool{n}d"
    if 0 in input.shape[-n - 1 :]:
        raise ShapeError(f"{name}: Expected non-zero sizes but for the batch's, found {list(input.shape)}")
    want_planes(input, n, name)
    outs, geometry = _geometry(input, n, name, kernel_size, stride, padding, dilation, ceil_mode)
    if (indices or input.requires_grad) and _sees_nothing(input.array.shape[-n:], outs, geometry):
        raise ShapeError(
            f"{name}: a window of input size {list(input.shape)} sees only padding: it would have no index and no gradient; "
            "use less padding or dilation, or a larger input"
        )
    return apply(ops.MaxPool, input, outs=outs, geometry=geometry, positions=indices)


@public("nn.functional")
def max_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last dimension. Saves and raises as :func:`max_pool2d`; and DTypeError: integers."""
    want_floating("max_pool1d", input.array)
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@public("nn.functional")
def max_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last 2 dimensions; (N, C, ...) or (C, ...).

    Saves: one byte an output (two for windows of more than 256 entries). ``return_indices`` also gives int64 positions.

    Raises:
        ShapeError: sizes that do not fit, or indices or gradients of a window that sees only padding.
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@public("nn.functional", cpu=FLOAT32)
def max_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window over the last 3 dimensions. Saves and raises as :func:`max_pool2d`."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    n: int, input: Tensor, kernel_size: Sizes, stride: Any, padding: Any, ceil_mode: bool, count_pad: bool, divisor: int | None
) -> Tensor:
    name = f"avg_pool{n}d"
    if divisor is not None and operator.index(divisor) == 0:
        raise ShapeError("divisor must be not zero")
    if not is_floating(input.dtype):
        raise DTypeError(f'"{name}" not implemented for {input.dtype}: convert it with .float()')
    want_planes(input, n, name)
    kernel = sizes_of(name, "kernel_size", kernel_size, n)
    if n == 3 and any(size < k for size, k in zip(input.shape[-n:], kernel, strict=True)):  # padded or not, as in PyTorch
        raise ShapeError(f"{name}: input image {list(input.shape[-n:])} smaller than kernel size {list(kernel)}")
    outs, geometry = _geometry(input, n, name, kernel, stride, padding, 1, ceil_mode)
    return apply(ops.AvgPool, input, outs=outs, geometry=geometry, count_include_pad=count_pad, divisor=divisor)


@public("nn.functional")
def avg_pool1d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last dimension. Saves nothing. Raises as :func:`avg_pool2d`."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@public("nn.functional")
def avg_pool2d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last 2 dimensions; (N, C, ...) or (C, ...). Saves nothing.

    Raises:
        ShapeError: sizes that do not fit, or a divisor of 0.
        DTypeError: the input is not floating.
    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@public("nn.functional", cpu=FLOAT32)
def avg_pool3d(
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window over the last 3 dimensions. Saves nothing. Raises as :func:`avg_pool2d`."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@public("nn.functional")
def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The values of a max_pool2d back at their ``indices``, 0 elsewhere. Saves: the indices.

    Raises:
        ShapeError: ``output_size`` is not one that such a pooling takes, or indices and input differ in shape.
        DTypeError: the indices are not int64.
        DimensionError: an index outside of the output.
    """
    name = "max_unpool2d"
    want_floating(name, input.array)
    kernel = sizes_of(name, "kernel_size", kernel_size, 2)
    step = kernel if stride is None else sizes_of(name, "stride", stride, 2)
    if indices.dtype != int64:
        raise DTypeError(f"elements in indices should be type int64 but got: {indices.dtype}")
    if indices.shape != input.shape:
        raise ShapeError(
            f"{name}: expected indices of the input's shape {list(input.shape)}, found {list(indices.shape)}: "
            "take both from the same pooling"
        )
    sizes = _unpooled_sizes(input, kernel, step, sizes_of(name, "padding", padding, 2), output_size)
    want_planes(input, 2, name)
    planes, length = math.prod(input.shape[:-2]), math.prod(input.shape[-2:])
    flat, places = input.reshape(planes, length), indices.reshape(planes, length)
    whole = creation.zeros(planes, math.prod(sizes), dtype=input.dtype, device=input.device)
    return gather.scatter_(whole, 1, places, flat).reshape(*input.shape[:-2], *sizes)


def _unpooled_sizes(input: Tensor, kernel: tuple, step: tuple, pad: tuple, output_size: Any) -> tuple[int, ...]:
    """The sizes before pooling: the given ones, with or without batch and channels; by default the smallest possible."""
    least = tuple((o - 1) * s + k - 2 * p for o, k, s, p in zip(input.shape[-2:], kernel, step, pad, strict=True))
    if output_size is None:
        return least
    sizes = tuple(output_size)[2:] if len(output_size) == 4 else tuple(output_size)
    if len(sizes) != 2:
        raise ShapeError(
            f"output_size should be a sequence containing 2 or 4 elements, but it has a length of '{len(output_size)}'"
        )
    for axis, (size, small, s) in enumerate(zip(sizes, least, step, strict=True)):
        if not small - s < size < small + s:
            raise ShapeError(f'invalid output_size "{sizes}" (dim {axis} must be between {small - s} and {small + s})')
    return sizes


# --- adaptive pooling


def _adaptive_sizes(input: Tensor, output_size: Any, n: int, name: str) -> tuple[int, ...]:
    want_planes(input, n, name)
    given: Any = (
        output_size if isinstance(output_size, (Sequence, Tensor)) and not isinstance(output_size, str) else (output_size,)
    )
    try:
        wanted = tuple(None if out is None else operator.index(out) for out in given)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}(): argument 'output_size' must be int or tuple of ints, found {output_size!r:.60}"
        ) from None
    wanted = wanted * n if len(wanted) == 1 else wanted
    if len(wanted) != n or any(out is not None and out < 0 for out in wanted):
        raise ShapeError(f"{name}: output_size must be one number or {n} of them, none negative, found {output_size}")
    return tuple(size if out is None else out for size, out in zip(input.shape[-n:], wanted, strict=True))


def _even(input: Tensor, outs: tuple[int, ...], n: int) -> tuple | None:
    """The geometry of an ordinary pooling with the same result, if each size is a multiple of the output's size; else ``None``.

    ``None`` also for a few large cells (global pooling), each of which is a single reduction.
    """
    sizes = input.shape[-n:]
    if any(o == 0 or s % o for s, o in zip(sizes, outs, strict=True)):
        return None
    kernel = tuple(s // o for s, o in zip(sizes, outs, strict=True))
    return (kernel, kernel, (0,) * n, (1,) * n) if math.prod(kernel) <= math.prod(outs) else None


def _adaptive_avg_pool(n: int, input: Tensor, output_size: Any) -> Tensor:
    want_floating(f"adaptive_avg_pool{n}d", input.array)
    outs = _adaptive_sizes(input, output_size, n, f"adaptive_avg_pool{n}d")
    geometry = _even(input, outs, n)
    if geometry is not None:
        return apply(ops.AvgPool, input, outs=outs, geometry=geometry, count_include_pad=True, divisor=None)
    return apply(ops.AdaptiveAvgPool, input, outs=outs)


@public("nn.functional")
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last dimension. Saves nothing. Raises: DTypeError: integers."""
    return _adaptive_avg_pool(1, input, output_size)


@public("nn.functional")
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last 2 dimensions. Saves nothing. Raises: DTypeError: integers."""
    return _adaptive_avg_pool(2, input, output_size)


@public("nn.functional", cpu=FLOAT32)
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last 3 dimensions. Saves nothing. Raises: DTypeError: integers."""
    return _adaptive_avg_pool(3, input, output_size)


def _adaptive_max_pool(n: int, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    want_floating(f"adaptive_max_pool{n}d", input.array)
    outs = _adaptive_sizes(input, output_size, n, f"adaptive_max_pool{n}d")
    geometry = _even(input, outs, n)
    if geometry is not None and not return_indices:
        return apply(ops.MaxPool, input, outs=outs, geometry=geometry)
    found = apply(ops.AdaptiveMaxPool, input, outs=outs)
    return found if return_indices else found[0]


@public("nn.functional")
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last dimension. As :func:`adaptive_max_pool2d`."""
    return _adaptive_max_pool(1, input, output_size, return_indices)


@public("nn.functional")
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last 2 dimensions.

    Saves: one byte an output where the sizes are multiples, else the int64 positions.

    Raises:
        DTypeError: integers.
    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


@public("nn.functional", cpu=FLOAT32)
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last 3 dimensions. As :func:`adaptive_max_pool2d`."""
    return _adaptive_max_pool(3, input, output_size, return_indices)
