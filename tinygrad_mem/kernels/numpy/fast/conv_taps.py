"""Convolution of tiny maps, tap by tap: of the 36 products of a 3x3 kernel on a 2x2 map 20 are with padding, and are left out.

Maps are matrices (pixel, image; channel): a tap connects runs of pixels, and each run is one product, added to the runs of
rows that it belongs to; where a tap reaches whole rows of the map, all of them are one run. Weights are large where maps are
small: they are read once, a few channels at a time, as one matrix a tap. The parts depend on shapes only, so all bits
of the result do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, Geometry, Lane, lane_count

PIXELS = 16  # of a map, at most: in larger ones most taps reach pixels
COLUMNS = 1 << 10  # pixels of all images up to which a 4x4 map is no work for Winograd's algorithm, which transforms weights
IMAGES = 8  # at least: of fewer a weight's copy costs more than the products that it spares
CHANNELS = 96  # at least, on both sides: products of fewer take no longer than it takes to begin them
_LANE = 5 << 17  # numbers of a lane's weights and results, at most
_SUMS = 1 << 19  # numbers of a lane's part of a weight's gradient, at most


class PixelRun(NamedTuple):
    """Output pixels ``to`` and on, ``length`` of them, each have the input pixels ``of`` and on under ``tap``."""

    tap: int
    to: int
    of: int
    length: int


def fits(geo: Geometry, kind: str) -> bool:
    """True if maps are tiny, and the convolution plain: one group, two axes, stride and dilation 1."""
    if kind != "weight" and geo.pixels > 9 and geo.images * geo.pixels > COLUMNS:
        return False
    flat = geo.inside[0] == geo.outside[0] == geo.kernel[0] == 1 and geo.low[0] == 0
    plain = geo.groups == 1 and geo.stride[1:] == geo.dilation[1:] == (1, 1)
    tiny = max(geo.pixels, _inside(geo)) <= PIXELS
    return flat and plain and tiny and geo.images >= IMAGES and min(geo.cin, geo.cout) >= CHANNELS


def _inside(geo: Geometry) -> int:
    return geo.inside[1] * geo.inside[2]


def runs(inside: tuple, outside: tuple, kernel: tuple, low: tuple) -> list[PixelRun]:
    """The runs of pixels under each tap; each argument is (along rows, along columns)."""
    found = []
    for i, j in np.ndindex(*kernel):
        y0, y1 = max(low[0] - i, 0), min(outside[0], inside[0] + low[0] - i)
        x0, x1 = max(low[1] - j, 0), min(outside[1], inside[1] + low[1] - j)
        if y1 <= y0 or x1 <= x0:
            continue
        whole = x1 - x0 == inside[1] == outside[1]
        for y in [y0] if whole else range(y0, y1):
            length = (x1 - x0) * (y1 - y0 if whole else 1)
            of = (y + i - low[0]) * inside[1] + x0 + j - low[1]
            found.append(PixelRun(i * kernel[1] + j, y * outside[1] + x0, of, length))
    return found


@lru_cache(maxsize=256)
def _runs(geo: Geometry, kind: str) -> list[PixelRun]:
    """The runs in rows of matrices (pixel, image; channel); of "input" from the output's to the input's."""
    found, n = runs(geo.inside[1:], geo.outside[1:], geo.kernel[1:], geo.low[1:]), geo.images
    if kind == "input":
        found = [PixelRun(tap, of, to, length) for tap, to, of, length in found]
    return [PixelRun(tap, n * to, n * of, n * length) for tap, to, of, length in found]


def _block(channels: int, each: int, room: int) -> int:
    """Channels of a part, of an even number of parts with ``room`` numbers where one channel takes ``each``."""
    parts = 2 * -(-channels * each // (2 * room))
    return -(-channels // parts)


def _sizes(geo: Geometry, kind: str) -> tuple[int, int, int]:
    """(channels of a part, numbers that a part takes, numbers of the maps that all parts read)."""
    read, written = geo.images * _inside(geo), geo.images * geo.pixels  # pixels
    if kind == "weight":
        each = geo.taps * geo.cin
        block = _block(geo.cout, each, _SUMS)
        return block, block * each, read * geo.cin + written * geo.cout
    cin, cout = geo.cin, geo.cout
    if kind == "input":
        read, written, cin, cout = written, read, cout, cin
    each = geo.taps * cin + written
    block = _block(cout, each, _LANE)
    return block, block * each, read * cin


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes: the maps that are read, and two lanes of 2.5 MiB at most where one channel is not more."""
    _, part, maps = _sizes(geo, kind)
    return geo.wide.itemsize * (2 * part + maps) + 64 * (LANES + 4)


def _matrix(x: np.ndarray, lane: Lane, wide: np.dtype) -> np.ndarray:
    """x (images, channels, ..., rows, columns) as (pixels, images, channels), on all cores."""
    x = x.reshape(*x.shape[:2], -1)
    images, channels, pixels = x.shape
    out = lane.take((pixels, images, channels), wide)

    def part(start: int, stop: int) -> None:
        np.copyto(out[..., start:stop], x[:, start:stop].transpose(2, 0, 1))

    threads.split(channels, part, grain=max(threads.GRAIN // 4 * channels // max(x.size, 1), 1))
    return out


def _in_parts(channels: int, block: int, whole: Lane, part: int, size: int, run: Any) -> None:
    """``run(lane, first channel, last)`` for all blocks, on as many lanes as there are cores and room for."""
    lanes = max(min(lane_count(whole.buffer), (whole.stop - whole.next) // (part * size + 64)), 1)
    firsts = range(0, channels, block)

    def some(number: int, i: int) -> None:
        run(whole.part(number, lanes), firsts[i], min(firsts[i] + block, channels))

    threads.lanes(len(firsts), lanes, some)


def _correlate(geo: Geometry, kind: str, source: np.ndarray, w: np.ndarray, bias: Any, work: np.ndarray, out: np.ndarray):
    """out = the products of source's pixels and the taps of w (cout, cin, taps), gathered (forward) or spread (input)."""
    forward = kind == "forward"
    whole = Lane(work, 0, 1)
    block, part, _ = _sizes(geo, kind)
    pixels = _matrix(source, whole, geo.wide)
    images, rows, chosen = geo.images, pixels.reshape(-1, pixels.shape[2]), _runs(geo, kind)
    target = out.reshape(*out.shape[:2], -1)

    def run(lane: Lane, first: int, last: int) -> None:
        if forward:
            turned = lane.take((geo.cin, geo.taps, last - first), geo.wide)
            blas.copy_turned(w[first:last].reshape(last - first, -1), turned.reshape(-1, last - first))
            matrices = turned.swapaxes(0, 1)
        else:
            matrices = lane.take((geo.taps, geo.cout, last - first), geo.wide)
            np.copyto(matrices, w[:, first:last].transpose(2, 0, 1))
        result = lane.take((target.shape[2] * images, last - first), geo.wide)
        np.copyto(result, 0 if bias is None else bias[first:last])
        blas.add_runs(rows, matrices, result, chosen)
        values = result.reshape(target.shape[2], images, last - first).transpose(1, 2, 0)
        np.copyto(target[:, first:last], values, casting="same_kind")

    _in_parts(target.shape[1], block, whole, part, geo.wide.itemsize, run)


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias."""
    with blas.single():
        _correlate(geo, "forward", x, w.reshape(*w.shape[:2], -1), bias, work, out)


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x, which is also the transposed convolution of gy; a bias is added to it."""
    with blas.single():
        _correlate(geo, "input", gy, w.reshape(*w.shape[:2], -1), bias, work, out)


def backward_weight(geo, gy, x, work, out):
    """The gradient of w: of each tap the product of all pixels that it connects."""
    whole = Lane(work, 0, 1)
    block, part, _ = _sizes(geo, "weight")
    target = out.reshape(*out.shape[:2], -1)

    def run(lane: Lane, first: int, last: int) -> None:
        sums = lane.take((geo.taps, last - first, geo.cin), geo.wide)
        sums.fill(0)
        blas.add_turned_runs(incoming[:, first:last], rows, sums, _runs(geo, "weight"))
        blas.copy_turned(sums.reshape(geo.taps, -1), target[first:last].reshape(-1, geo.taps))

    with blas.single():
        rows = _matrix(x, whole, geo.wide).reshape(-1, geo.cin)
        incoming = _matrix(gy, whole, geo.wide).reshape(-1, geo.cout)
        _in_parts(geo.cout, block, whole, part, geo.wide.itemsize, run)
