"""Adaptive pooling, to given output sizes, with the names and arguments of ``torch.nn.functional``."""

from __future__ import annotations

import math
from typing import Any

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ShapeError
from ..ops import pool as ops
from .door import FLOAT32, public
from .pool import want_planes


def _adaptive_sizes(input: Tensor, output_size: Any, n: int, name: str) -> tuple[int, ...]:
    want_planes(input, n, name)
    wanted = (output_size,) * n if output_size is None or isinstance(output_size, int) else tuple(output_size)
    wanted = wanted * n if len(wanted) == 1 else wanted
    if len(wanted) != n or any(out is not None and out < 0 for out in wanted):
        raise ShapeError(f"{name}: output_size must be one number or {n} of them, none negative, found {output_size}")
    return tuple(size if out is None else int(out) for size, out in zip(input.shape[-n:], wanted, strict=True))


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
    outs = _adaptive_sizes(input, output_size, n, f"adaptive_avg_pool{n}d")
    geometry = _even(input, outs, n)
    if geometry is not None:
        return apply(ops.AvgPool, input, outs=outs, geometry=geometry, count_include_pad=True, divisor=None)
    return apply(ops.AdaptiveAvgPool, input, outs=outs)


@public("nn.functional")
def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last dimension. Saves nothing."""
    return _adaptive_avg_pool(1, input, output_size)


@public("nn.functional")
def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last 2 dimensions. Saves nothing."""
    return _adaptive_avg_pool(2, input, output_size)


@public("nn.functional", cpu=FLOAT32)
def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` cells over the last 3 dimensions. Saves nothing."""
    return _adaptive_avg_pool(3, input, output_size)


def _adaptive_max_pool(n: int, input: Tensor, output_size: Any, return_indices: bool) -> Any:
    outs = _adaptive_sizes(input, output_size, n, f"adaptive_max_pool{n}d")
    geometry = _even(input, outs, n)
    if geometry is not None and not return_indices:
        return apply(ops.MaxPool, input, outs=outs, geometry=geometry)
    found = apply(ops.AdaptiveMaxPool, input, outs=outs)
    return found if return_indices else found[0]


@public("nn.functional")
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last dimension. Saves as :func:`adaptive_max_pool2d`."""
    return _adaptive_max_pool(1, input, output_size, return_indices)


@public("nn.functional")
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last 2 dimensions.

    Saves: one byte an output where the sizes are multiples, else the int64 positions.
    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


@public("nn.functional", cpu=FLOAT32)
def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest of each of ``output_size`` cells over the last 3 dimensions. Saves as :func:`adaptive_max_pool2d`."""
    return _adaptive_max_pool(3, input, output_size, return_indices)
