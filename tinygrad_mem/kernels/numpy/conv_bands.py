"""Convolution with few channels: neighbouring outputs of a row are computed by one product with a banded weight.

With one to eight input channels, columns are short and there are very many. Here a column is the window of ``band``
neighbouring outputs at once, and the weight is repeated along a band, shifted by the stride each time. It multiplies by some
zeros, but copies less, in longer runs, and gives BLAS wider matrices.
"""

from __future__ import annotations

import numpy as np

from . import blas, threads
from .conv_columns import LANES, Geometry, Lane

WORKSPACE = 7 << 18
_MOST_CHANNELS, _MOST_OUT, _MOST_BAND = 8, 32, 16


def band(geo: Geometry) -> int:
    """How many neighbours share a window; 0 where this algorithm is no use."""
    if geo.groups > 1 or geo.cin > _MOST_CHANNELS or geo.cout > _MOST_OUT or geo.dilation != (1, 1, 1) or geo.kernel[2] < 2:
        return 0
    if geo.dtype == np.float16 or geo.outside[0] != 1 or geo.kernel[0] != 1 or geo.inside[0] != 1 or geo.low[0]:
        return 0
    width = geo.outside[2]
    for count in range(_MOST_BAND, 3, -1):
        if width % count == 0 and _run(geo, count) <= 2 * count * geo.stride[2]:  # windows overlap with neighbours only
            per_image = (depth(geo, count) + geo.cout * count) * geo.outside[1] * (width // count) + padded(geo)
            fixed = 2 * depth(geo, count) * geo.cout * count
            if (per_image + fixed) * LANES * geo.dtype.itemsize <= WORKSPACE - 8192:
                return count
    return 0


def depth(geo: Geometry, count: int) -> int:
    """The size of one window: channels, kernel rows, pixels of a row."""
    return geo.cin * geo.kernel[1] * _run(geo, count)


def _run(geo: Geometry, count: int) -> int:
    return (count - 1) * geo.stride[2] + geo.kernel[2]


def _extent(geo: Geometry) -> tuple[int, int]:
    """Height and width of one padded image."""
    return (geo.outside[1] - 1) * geo.stride[1] + geo.kernel[1], (geo.outside[2] - 1) * geo.stride[2] + geo.kernel[2]


def padded(geo: Geometry) -> int:
    """Numbers of one padded image."""
    height, width = _extent(geo)
    return geo.cin * height * width


def _inner(geo: Geometry) -> tuple[slice, slice, slice, slice]:
    """Where an image lies in its padded copy: (rows, columns) there, (rows, columns) of the image that fit."""
    to, of = [], []
    for axis, extent in zip((1, 2), _extent(geo), strict=True):
        size = min(geo.inside[axis], extent - geo.low[axis])
        to.append(slice(geo.low[axis], geo.low[axis] + size))
        of.append(slice(0, size))
    return to[0], to[1], of[0], of[1]


def _windows(geo: Geometry, a: np.ndarray, count: int) -> np.ndarray:
    """(images, rows, bands, channels, kernel rows, run), a view of padded images (images, channels, height, width)."""
    s = a.strides
    shape = (len(a), geo.outside[1], geo.outside[2] // count, geo.cin, geo.kernel[1], _run(geo, count))
    strides = (s[0], geo.stride[1] * s[2], geo.stride[2] * count * s[3], s[1], s[2], s[3])
    return np.lib.stride_tricks.as_strided(a, shape, strides)


def _diagonals(geo: Geometry, banded: np.ndarray, count: int) -> np.ndarray:
    """(channels, kernel rows, outputs of a band, taps, cout), a view of a banded weight's entries that are not zero."""
    matrix = banded.reshape(geo.cin, geo.kernel[1], _run(geo, count), geo.cout, count)
    s = matrix.strides
    shape = (geo.cin, geo.kernel[1], count, geo.kernel[2], geo.cout)
    return np.lib.stride_tricks.as_strided(matrix, shape, (s[0], s[1], geo.stride[2] * s[2] + s[4], s[2], s[3]))


def _spread(geo: Geometry, w: np.ndarray, count: int, lane: Lane) -> np.ndarray:
    """The banded weight (window, cout * band)."""
    banded = lane.take((depth(geo, count), geo.cout * count), geo.dtype)
    banded.fill(0)
    taps = w.reshape(geo.cout, geo.cin, geo.kernel[1], geo.kernel[2]).transpose(1, 2, 3, 0)
    np.copyto(_diagonals(geo, banded, count), taps[:, :, None])
    return banded


def _fill(geo: Geometry, x: np.ndarray, count: int, lane: Lane) -> np.ndarray:
    """The windows (images * rows * bands, window) of some images."""
    to_rows, to_columns, rows, columns = _inner(geo)
    space = lane.take((len(x), geo.cin, *_extent(geo)), geo.dtype)
    space.fill(0)
    np.copyto(space[:, :, to_rows, to_columns], x[:, :, rows, columns])
    view = _windows(geo, space, count)
    windows = lane.take(view.shape, geo.dtype)
    np.copyto(windows, view)
    return windows.reshape(-1, depth(geo, count))


def _rows(geo: Geometry, y: np.ndarray, count: int) -> np.ndarray:
    """(images, rows, bands, cout, band), a view of outputs (images, cout, rows, width)."""
    return y.reshape(len(y), geo.cout, geo.outside[1], -1, count).transpose(0, 2, 3, 1, 4)


def _each(geo: Geometry, work: np.ndarray, count: int, fixed: int, run) -> None:
    """``run(lane, first, last)`` over images, as many at a time as a lane holds beside ``fixed`` numbers."""
    lanes = min(threads.threads(), LANES)
    bands = geo.outside[1] * (geo.outside[2] // count)
    each = (depth(geo, count) + geo.cout * count) * bands + padded(geo)
    images = max((work.nbytes // lanes // geo.dtype.itemsize - fixed - 512) // each, 1)
    starts = list(range(0, geo.images, images))

    def part(number: int, start: int, stop: int) -> None:
        lane = Lane(work, number, lanes)
        run(number, lane, [(n, min(n + images, geo.images)) for n in starts[start:stop]])

    with blas.single(lanes > 1):
        threads.lanes(len(starts), lanes, part)


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias; out is contiguous."""
    count = band(geo)
    x, y = x.reshape(x.shape[0], x.shape[1], *geo.inside[1:]), out.reshape(geo.images, geo.cout, *geo.outside[1:])

    def run(number, lane, spans):
        banded = _spread(geo, w, count, lane)
        mark = lane.next
        for first, last in spans:
            lane.next = mark
            windows = _fill(geo, x[first:last], count, lane)
            result = lane.take((len(windows), geo.cout * count), geo.dtype)
            np.matmul(windows, banded, out=result)
            target = _rows(geo, y[first:last], count)
            result = result.reshape(target.shape)
            if bias is None:
                np.copyto(target, result)
            else:
                np.add(result, bias[:, None], out=target)

    _each(geo, work, count, depth(geo, count) * geo.cout * count, run)


def backward_input(geo, gy, w, bias, work, out):
    """out = the gradient of x, plus a bias."""
    count = band(geo)
    gx, gradient = out.reshape(out.shape[0], out.shape[1], *geo.inside[1:]), gy.reshape(geo.images, geo.cout, *geo.outside[1:])
    to_rows, to_columns, rows, columns = _inner(geo)

    def run(number, lane, spans):
        banded = _spread(geo, w, count, lane)
        mark = lane.next
        for first, last in spans:
            lane.next = mark
            source = _rows(geo, gradient[first:last], count)
            tile = lane.take(source.shape, geo.dtype)
            np.copyto(tile, source)
            windows = lane.take((tile.size // (geo.cout * count), depth(geo, count)), geo.dtype)
            np.matmul(tile.reshape(len(windows), -1), banded.T, out=windows)
            space = lane.take((last - first, geo.cin, *_extent(geo)), geo.dtype)
            space.fill(0)
            target = _windows(geo, space, count)
            windows = windows.reshape(target.shape)
            for row in range(geo.kernel[1]):  # windows of one kernel row overlap only with their neighbours of the row
                for odd in range(2):
                    target[:, :, odd::2, :, row] += windows[:, :, odd::2, :, row]
            gx[first:last] = 0 if bias is None else bias[:, None, None]
            gx[first:last, :, rows, columns] += space[:, :, to_rows, to_columns]

    _each(geo, work, count, depth(geo, count) * geo.cout * count, run)


def backward_weight(geo, gy, x, work, out):
    """out = the gradient of w: lanes sum their images, the sums are added in order."""
    count = band(geo)
    x, gradient = x.reshape(x.shape[0], x.shape[1], *geo.inside[1:]), gy.reshape(geo.images, geo.cout, *geo.outside[1:])
    size = depth(geo, count) * geo.cout * count
    sums: dict[int, np.ndarray] = {}

    def run(number, lane, spans):
        total = lane.take((depth(geo, count), geo.cout * count), geo.dtype)
        mark = lane.next
        for first, last in spans:
            lane.next = mark
            windows = _fill(geo, x[first:last], count, lane)
            source = _rows(geo, gradient[first:last], count)
            tile = lane.take(source.shape, geo.dtype)
            np.copyto(tile, source)
            blas.product(windows.T, tile.reshape(len(windows), -1), total, first != spans[0][0])
        sums[number] = total

    _each(geo, work, count, size, run)
    totals = [sums[number] for number in sorted(sums)]
    for other in totals[1:]:
        totals[0] += other
    target = out.reshape(geo.cout, geo.cin, geo.kernel[1], geo.kernel[2])
    np.add.reduce(_diagonals(geo, totals[0], count), axis=2, out=target.transpose(1, 2, 3, 0))
