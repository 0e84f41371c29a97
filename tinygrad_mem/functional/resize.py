"""Resampling. Every mode is linear and separable: one small matrix an axis, applied by matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from ..ops import linalg as ops
from . import creation, index, shape

_DIMENSIONS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(N, C, ...) at another size: nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area.

    Saves: the matrices of each axis (output size x input size), or the indices of each axis for nearest.

    Raises:
        ValueError: neither or both of size and scale_factor, an unknown mode, or align_corners where it has no meaning.
        ShapeError: the input's dimensions do not fit the mode.
    """
    n = input.ndim - 2
    if n not in (1, 2, 3) or _DIMENSIONS.get(mode, n) != n:
        raise ShapeError(f"interpolate: mode {mode!r} does not fit an input of {input.ndim} dimensions {list(input.shape)}")
    if (size is None) == (scale_factor is None):
        raise ArgumentError("either size or scale_factor should be defined, and only one of them")
    if mode not in ("nearest", "nearest-exact", "area", *_DIMENSIONS):
        raise ArgumentError(f"interpolate: unknown mode {mode!r}")
    if align_corners is not None and mode not in _DIMENSIONS:
        raise ArgumentError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    if recompute_scale_factor and size is not None:
        raise ArgumentError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias:
        raise ArgumentError("interpolate: antialias is not offered")
    sizes, scales = _sizes(input, n, size, scale_factor, bool(recompute_scale_factor))
    for axis, (out, scale) in enumerate(zip(sizes, scales, strict=True), start=2):
        length = input.size(axis)
        if out == length and mode != "bicubic" and (scale is None or scale == 1):
            continue
        if mode in ("nearest", "nearest-exact"):
            step = (1 / scale) if scale else length / out
            shift = 0.5 if mode == "nearest-exact" else 0.0
            places = [min(int((i + shift) * step), length - 1) for i in range(out)]
            input = index.index_select(input, axis, creation.tensor(places, device=input.device))
        else:
            input = _resampled(input, axis, _matrix(mode, length, out, scale, bool(align_corners)))
    return input


def _sizes(input: Tensor, n: int, size: Any, factor: Any, recompute: bool) -> tuple[list[int], list[float | None]]:
    given = factor if size is None else size
    each = [given] * n if isinstance(given, (int, float)) else list(given)
    if len(each) != n:
        raise ArgumentError(f"interpolate: size and scale_factor are one number or {n} of them, found {given}")
    factors = [None if size is not None else float(f) for f in each]
    sizes = [int(g) if f is None else math.floor(s * f) for s, f, g in zip(input.shape[2:], factors, each, strict=True)]
    if min(sizes) < 1 or 0 in input.shape[2:]:
        raise ShapeError(
            f"Input and output sizes should be greater than 0, but got input {list(input.shape)} and output sizes {sizes}"
        )
    if size is not None:
        return sizes, [None] * n
    return sizes, [None] * n if recompute else list(factors)


def _resampled(input: Tensor, axis: int, matrix: np.ndarray) -> Tensor:
    """The matrix applied along one axis."""
    weights = creation.tensor(matrix.astype(input.dtype), device=input.device)
    moved = shape.transpose(input, axis, input.ndim - 1)
    rows = moved.reshape(-1, moved.size(-1))
    product = apply(ops.MatMul, rows, weights).reshape(*moved.shape[:-1], weights.size(1))
    return shape.transpose(product, axis, input.ndim - 1).contiguous()


def _matrix(mode: str, length: int, out: int, scale: float | None, align: bool) -> np.ndarray:
    """(length, out) weights: column j says how much of each input is in output j."""
    matrix = np.zeros((length, out))
    for j in range(out):
        if mode == "area":
            start, stop = j * length // out, -(-(j + 1) * length // out)
            matrix[start:stop, j] = 1 / (stop - start)
            continue
        if align:
            place = j * (length - 1) / (out - 1) if out > 1 else 0.0
        else:
            place = (j + 0.5) * ((1 / scale) if scale else length / out) - 0.5
        if mode == "bicubic":
            _add_cubic(matrix, j, place, length)
            continue
        place = max(place, 0.0)
        low = min(int(place), length - 1)
        high, part = min(low + 1, length - 1), place - low
        matrix[low, j] += 1 - part
        matrix[high, j] += part
    return matrix


def _add_cubic(matrix: np.ndarray, j: int, place: float, length: int, a: float = -0.75) -> None:
    """Keys' cubic convolution (1981) with PyTorch's coefficient."""
    low = math.floor(place)
    for k in range(-1, 3):
        d = abs(place - (low + k))
        weight = (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
        matrix[min(max(low + k, 0), length - 1), j] += weight


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """:func:`interpolate`, under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C * r * r, H, W) -> (..., C, H * r, W * r). Saves nothing.

    Raises:
        ShapeError: the channels are not a multiple of r * r.
    """
    r = upscale_factor
    *lead, channels, h, w = input.shape
    if channels % (r * r):
        raise ShapeError(f"pixel_shuffle expects its input's 'channel' dimension to be divisible by {r * r}, found {channels}")
    n = len(lead)
    x = input.reshape(*lead, channels // (r * r), r, r, h, w)
    x = x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return x.reshape(*lead, channels // (r * r), h * r, w * r)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H * r, W * r) -> (..., C * r * r, H, W). Saves nothing.

    Raises:
        ShapeError: height or width is not a multiple of r.
    """
    r = downscale_factor
    *lead, channels, h, w = input.shape
    if h % r or w % r:
        raise ShapeError(f"pixel_unshuffle expects height and width to be divisible by {r}, found {h} and {w}")
    n = len(lead)
    x = input.reshape(*lead, channels, h // r, r, w // r, r)
    x = x.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return x.reshape(*lead, channels * r * r, h // r, w // r)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels of the groups interleaved.

    Raises:
        ShapeError: the channels are not a multiple of ``groups``.
    """
    n, channels, *rest = input.shape
    if groups < 1 or channels % groups:
        raise ShapeError(f"channel_shuffle: number of channels must be divisible by groups, got {channels} and {groups}")
    return input.reshape(n, groups, channels // groups, *rest).transpose(1, 2).reshape(n, channels, *rest)
