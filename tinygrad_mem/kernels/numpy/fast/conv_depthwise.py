"""Depthwise convolution of stride 1 over one or two axes: sums of shifted maps, without windows.

A few channels of one image are copied into a scratch tile, padded with zeros. The tile's rows are contiguous, so for each tap
the whole tile is read with an offset: one multiplication and one addition over long runs that fit the cache. The gradient of w
is one dot product per tap and channel, of the same runs with gy (with zeros at the end of each row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from . import threads
from .blas import single
from .conv_geometry import Geometry, lift_array

_NUMBERS = threads.SCRATCH // 4  # bytes of each of the three tiles; a quarter of the scratch is left


def fits(geo: Geometry, kind: str) -> bool:
    """True for such a convolution if the input rows of an output row fit a tile, and the taps an eighth of the scratch."""
    if geo.cin != 1 or geo.cout != 1 or geo.inside[0] != 1 or geo.kernel[0] != 1 or geo.low[0] or geo.outside[0] != 1:
        return False
    small = geo.groups * geo.taps * geo.wide.itemsize <= threads.SCRATCH // 8
    return geo.stride == (1, 1, 1) and small and _width(geo) * geo.reach((1, 1, 1))[1] * geo.wide.itemsize < _NUMBERS // 2


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes of workspace: none, because tiles fit the scratch of each thread."""
    return 0


def _width(geo: Geometry) -> int:
    """The length of a row with its zeros."""
    return geo.outside[2] + geo.dilation[2] * (geo.kernel[2] - 1)


def _tiles(geo: Geometry, start: int, stop: int) -> Iterator[tuple[slice, int, int]]:
    """(channels, first output row, last) that fit a tile, all rows of a channel if possible."""
    room = _NUMBERS // geo.wide.itemsize - geo.kernel[2] * geo.dilation[2]
    width, height, halo = _width(geo), geo.outside[1], geo.reach((1, 1, 1))[1] - 1
    rows = min(height, room // width - halo)
    channels = max(room // (width * (rows + halo)), 1)
    for c in range(start, stop, channels):
        for r in range(0, height, rows):
            yield slice(c, min(c + channels, stop)), r, min(r + rows, height)


def _between_zeros(x: np.ndarray, first: int, left: int, rows: int, width: int, slot: int, dtype: np.dtype) -> np.ndarray:
    """(channels, rows * width) of scratch: rows of x (channels, height, columns) from ``first`` on, behind ``left`` zeros."""
    channels, height, columns = x.shape
    tile = threads.scratch((channels, rows * width), dtype, slot, 4)
    tile.fill(0)
    a, b = max(-first, 0), min(rows, height - first)
    c, d = max(left, 0), min(left + columns, width)
    if a < b and c < d:
        part = x[:, first + a : first + b, c - left : d - left]
        np.copyto(tile.reshape(channels, rows, width)[:, a:b, c:d], part)
    return tile


def _taps(geo: Geometry, rows: int) -> tuple[int, list[int]]:
    """The length of an output tile's run, and the start of each tap's run in the input tile."""
    width = _width(geo)
    starts = [i * geo.dilation[1] * width + j * geo.dilation[2] for i, j in np.ndindex(*geo.kernel[1:])]
    return (rows - 1) * width + geo.outside[2], starts


def _by_channels(geo: Geometry, channels: int, run: Callable[[int, int], None]) -> None:
    """``run(start, stop)`` over channels, on several cores."""
    work = geo.images * geo.pixels * geo.taps
    with single():  # long lines are multiplied by BLAS, whose threads would occupy our cores
        threads.split(channels, run, max(threads.GRAIN * channels // max(work, 1), 1))


def _correlate(geo: Geometry, source: np.ndarray, w: np.ndarray, low: tuple[int, int], bias, out: np.ndarray) -> None:
    """out (images, channels, rows, columns) = each channel of source convolved with its own taps w (channels, taps)."""
    width, halo = _width(geo), geo.reach((1, 1, 1))[1] - 1

    def run(start: int, stop: int) -> None:
        for n in range(geo.images):
            for channels, r0, r1 in _tiles(geo, start, stop):
                tile = _between_zeros(source[n, channels], r0 - low[0], low[1], r1 - r0 + halo, width, 0, geo.wide)
                length, starts = _taps(geo, r1 - r0)
                total, part = (threads.scratch((len(tile), (r1 - r0) * width), geo.wide, k, 4) for k in (1, 2))
                for k, first in enumerate(starts):
                    target = part if k else total
                    np.multiply(tile[:, first : first + length], w[channels, k, None], out=target[:, :length])
                    if k:
                        np.add(total[:, :length], part[:, :length], out=total[:, :length])
                values = total.reshape(len(tile), r1 - r0, width)[:, :, : geo.outside[2]]
                if bias is None:
                    np.copyto(out[n, channels, r0:r1], values, casting="same_kind")
                else:
                    np.add(values, bias[channels, None, None], out=out[n, channels, r0:r1], casting="same_kind")

    _by_channels(geo, geo.groups, run)


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias."""
    _correlate(geo, _planes(x), w.reshape(geo.groups, geo.taps), geo.low[1:], bias, _planes(out))


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x: the same computation on gy with flipped taps."""
    low = tuple(d * (k - 1) - p for d, k, p in zip(geo.dilation[1:], geo.kernel[1:], geo.low[1:], strict=True))
    turned = replace(geo, inside=geo.outside, outside=geo.inside)
    _correlate(turned, _planes(gy), w.reshape(geo.groups, geo.taps)[:, ::-1], low, bias, _planes(out))


def backward_weight(geo, gy, x, work, out):
    """The gradient of w: each core sums some channels over all images."""
    gy, x, gw = _planes(gy), _planes(x), out.reshape(geo.groups, geo.taps)
    width, halo = _width(geo), geo.reach((1, 1, 1))[1] - 1

    def run(start: int, stop: int) -> None:
        sums = threads.scratch((stop - start, geo.taps), geo.wide, 6, 8)
        sums.fill(0)
        for n in range(geo.images):
            for channels, r0, r1 in _tiles(geo, start, stop):
                tile = _between_zeros(x[n, channels], r0 - geo.low[1], geo.low[2], r1 - r0 + halo, width, 0, geo.wide)
                grad = _between_zeros(gy[n, channels], r0, 0, r1 - r0, width, 1, geo.wide)
                length, starts = _taps(geo, r1 - r0)
                dots = threads.scratch((len(tile),), geo.wide, 7, 8)
                total = sums[channels.start - start : channels.stop - start]
                for k, first in enumerate(starts):
                    np.vecdot(tile[:, first : first + length], grad[:, :length], out=dots)
                    total[:, k] += dots
        np.copyto(gw[start:stop], sums, casting="same_kind")

    _by_channels(geo, geo.groups, run)


def _planes(x: np.ndarray) -> np.ndarray:
    """(images, channels, rows, columns) of one or two axes."""
    return lift_array(x)[:, :, 0]
