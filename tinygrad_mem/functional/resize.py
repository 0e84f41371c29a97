"""Resampling. Every mode is linear and separable: for each axis, small tables have the inputs of each output."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, SupportsIndex

import numpy as np

from ..autograd.core import apply
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..ops import resize as ops
from ..ops.base import root_of, want_floating, want_real
from . import convert, creation, pool
from .door import FLOAT32, public

_DIMENSIONS = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


@public("nn.functional", cuda=FLOAT32)
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

    Saves: tables of the way back: of each axis, 12 bytes (16 in float64) for each tap of each input.

    Args:
        antialias: when shrinking, average over all inputs that an output covers, as Pillow does (bilinear and bicubic).

    Raises:
        ValueError: neither or both of size and scale_factor, an unknown mode, or align_corners or antialias where they
            have no meaning.
        ShapeError: the input's dimensions do not fit the mode.
        DTypeError: the input is not floating.
    """
    n = input.ndim - 2
    if n not in (1, 2, 3) or _DIMENSIONS.get(mode, n) != n:
        raise ShapeError(f"interpolate: mode {mode!r} does not fit an input of {input.ndim} dimensions {list(input.shape)}")
    want_floating("interpolate", input.array)
    if (size is None) == (scale_factor is None):
        found = "neither" if size is None else "both"
        raise ArgumentError(f"either size or scale_factor should be defined, and only one of them; found {found}")
    if mode not in ("nearest", "nearest-exact", "area", *_DIMENSIONS):
        known = ", ".join(("nearest", "nearest-exact", "area", *_DIMENSIONS))
        raise ArgumentError(f"interpolate: unknown mode {mode!r}: expected one of {known}")
    if align_corners is not None and mode not in _DIMENSIONS:
        raise ArgumentError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear, "
            f"found {mode!r}: leave it out"
        )
    if recompute_scale_factor and size is not None:
        raise ArgumentError("recompute_scale_factor is not meaningful with an explicit size.")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError("Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D tensor as input")
    sizes, scales = _sizes(input, n, size, scale_factor, bool(recompute_scale_factor))
    if mode == "nearest" and n == 2 and tuple(sizes) == input.shape[2:]:
        scales = [None, None]  # PyTorch copies images whose size stays, whatever the scale
    if mode == "area":
        return getattr(pool, f"adaptive_avg_pool{n}d")(input, tuple(sizes))
    wide = np.float64 if input.dtype == np.float64 else np.float32
    corners = bool(align_corners)
    tables, taps = _tables(mode, tuple(input.shape[2:]), tuple(sizes), tuple(scales), corners, antialias, np.dtype(wide))
    if not tables:
        return convert.clone(input)
    options = {"outs": tuple(sizes), "plain": mode.startswith("nearest")}
    options |= {"taps": tuple(t for t, _ in taps), "back_taps": tuple(t for _, t in taps)}
    planes = input.reshape(-1, *input.shape[2:])
    given = [creation.tensor(table, device=input.device) for table in tables]
    return apply(ops.Resize, planes, *given, **options).reshape(*input.shape[:2], *sizes)


@lru_cache(maxsize=64)
def _tables(
    mode: str, lengths: tuple, sizes: tuple, scales: tuple, align: bool, smooth: bool, wide: np.dtype
) -> tuple[list[np.ndarray], list[tuple[int, int]]]:
    """Positions and weights for forward and backward, with all axes in one array each; and the number of taps of each axis."""
    tables, taps = [], []
    for length, out, scale in zip(lengths, sizes, scales, strict=True):
        linear = mode.endswith("linear") and not smooth  # if sizes are equal, PyTorch copies, whatever the scale is
        if out == length and mode != "bicubic" and (linear or scale is None or scale == 1):
            taps.append((0, 0))
            continue
        places, weights = (_smooth if smooth else _taps)(mode, length, out, scale, align)
        back, shares = _turned(places, weights, length)
        tables.append((places, weights.astype(wide), back, shares.astype(wide)))
        taps.append((len(places), len(back)))
    return [np.concatenate([table.reshape(-1) for table in kind]) for kind in zip(*tables, strict=True)], taps


def _sizes(input: Tensor, n: int, size: Any, factor: Any, recompute: bool) -> tuple[list[int], list[float | None]]:
    given = factor if size is None else size
    each: list[Any] = [given] * n if not isinstance(given, (Sequence, Tensor)) or isinstance(given, str) else list(given)
    each = [one.item() if size is None and isinstance(one, Tensor) else one for one in each]
    for one in each:
        if size is None:
            want_real("interpolate", True, scale_factor=one)
        elif not isinstance(one, SupportsIndex):
            raise ArgumentTypeError(f"interpolate(): argument 'size' must be int or tuple of ints, found {size!r:.60}")
    if len(each) != n:
        raise ArgumentError(f"interpolate: size and scale_factor are one number or {n} of them, found {given}")
    sizes = [operator.index(math.floor(s * one) if size is None else one) for s, one in zip(input.shape[2:], each, strict=True)]
    factors = [None if size is not None else float(f) for f in each]
    if min(sizes) < 1 or 0 in input.shape[2:]:
        raise ShapeError(
            f"Input and output sizes should be greater than 0, but got input {list(input.shape)} and output sizes {sizes}"
        )
    if size is not None:
        return sizes, [None] * n
    return sizes, [None] * n if recompute else list(factors)


def _taps(mode: str, length: int, out: int, scale: float | None, align: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each output, (taps, out) positions in the input, and their weights."""
    step = (1 / scale) if scale else length / out
    j = np.arange(out)
    if mode.startswith("nearest"):
        places = ((j + (0.5 if mode == "nearest-exact" else 0.0)) * step).astype(np.int64)[None]
        return np.minimum(places, length - 1), np.ones((1, out))
    if align:
        place = j * (length - 1) / (out - 1) if out > 1 else np.zeros(out)
    else:
        place = (j + 0.5) * step - 0.5
    if mode == "bicubic":  # Keys' cubic convolution (1981) with PyTorch's coefficient
        near = np.floor(place).astype(np.int64) + np.arange(-1, 3)[:, None]
        return np.clip(near, 0, length - 1), _keys(np.abs(place - near), -0.75)
    place = np.maximum(place, 0.0)
    low = np.minimum(place.astype(np.int64), length - 1)
    part = place - low
    return np.stack([low, np.minimum(low + 1, length - 1)]), np.stack([1 - part, part])


def _keys(d: np.ndarray, a: float) -> np.ndarray:
    """Keys' weight for the distance ``d``, up to 2."""
    inside, outside = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, inside, np.where(d < 2, outside, 0))


def _smooth(mode: str, length: int, out: int, scale: float | None, align: bool) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_taps` of a filter widened by the ratio of the sizes, so that it covers all inputs of an output."""
    step = ((length - 1) / (out - 1) if out > 1 else 0.0) if align else 1 / scale if scale else length / out
    wider = max(step, 1.0)
    reach = wider * (2 if mode == "bicubic" else 1)
    center = step * (np.arange(out) + 0.5)
    first = np.maximum((center - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((center + reach + 0.5).astype(np.int64), length)
    places = first + np.arange((last - first).max())[:, None]
    d = np.abs(places - center + 0.5) / wider
    weights = np.where(places < last, _keys(d, -0.5) if mode == "bicubic" else np.maximum(1 - d, 0), 0)
    return np.minimum(places, length - 1), weights / weights.sum(0)


def _turned(places: np.ndarray, weights: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The tables of backward, (taps, length): for each input, the outputs that use it, and their weights."""
    used, out = weights.reshape(-1) != 0, places.shape[1]
    pairs = (places * out + np.arange(out)).reshape(-1)[used]  # at a border two taps of an output may be one input
    pairs, which = np.unique(pairs, return_inverse=True)
    inputs, outputs = np.divmod(pairs, out)
    both = np.bincount(which, weights.reshape(-1)[used])
    count = np.bincount(inputs, minlength=length)
    rank = np.arange(inputs.size) - (np.cumsum(count) - count)[inputs]
    back, shares = np.zeros((count.max(), length), np.int64), np.zeros((count.max(), length))
    back[rank, inputs], shares[rank, inputs] = outputs, both
    return back, shares


@public("nn.functional", cuda=FLOAT32)
def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """:func:`interpolate`, under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


@public("nn.functional")
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C * r * r, H, W) -> (..., C, H * r, W * r). Saves nothing.

    Raises:
        ShapeError: the channels are not a multiple of r * r.
    """
    r = operator.index(upscale_factor)
    if r < 1:
        raise ShapeError(f"pixel_shuffle expects a positive upscale_factor, but got {r}")
    *lead, channels, h, w = input.shape
    if channels % (r * r):
        raise ShapeError(f"pixel_shuffle expects its input's 'channel' dimension to be divisible by {r * r}, found {channels}")
    n = len(lead)
    x = input.reshape(*lead, channels // (r * r), r, r, h, w)
    x = x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return _copied(x.reshape(*lead, channels // (r * r), h * r, w * r), input)


def _copied(result: Tensor, input: Tensor) -> Tensor:
    """``result``, or a copy of it if it shares the memory of ``input``: a reshape is a view where no element moves."""
    return result.clone() if root_of(result.array) is root_of(input.array) else result


@public("nn.functional")
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H * r, W * r) -> (..., C * r * r, H, W). Saves nothing.

    Raises:
        ShapeError: height or width is not a multiple of r.
    """
    r = operator.index(downscale_factor)
    if r < 1:
        raise ShapeError(f"pixel_unshuffle expects a positive downscale_factor, but got {r}")
    *lead, channels, h, w = input.shape
    if h % r or w % r:
        raise ShapeError(f"pixel_unshuffle expects height and width to be divisible by {r}, found {h} and {w}")
    n = len(lead)
    x = input.reshape(*lead, channels, h // r, r, w // r, r)
    x = x.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return _copied(x.reshape(*lead, channels * r * r, h // r, w // r), input)


@public("nn.functional")
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Interleave the channels of the groups. Raises: ShapeError: the channels are not a multiple of ``groups``."""
    n, channels, *rest = input.shape
    if groups < 1 or channels % groups:
        raise ShapeError(f"channel_shuffle: number of channels must be divisible by groups, got {channels} and {groups}")
    shuffled = input.reshape(n, groups, channels // groups, *rest).transpose(1, 2).reshape(n, channels, *rest)
    return _copied(shuffled, input)
