"""Loops over arrays (images, channels, places): sums of each channel, and coefficients for each channel."""

from functools import lru_cache

import numpy as np

from .blas import single
from .folds import ONES, RUN
from .halves import cast
from .threads import SCRATCH, scratch, split
from .tiles import boxes

TILE = 1 << 16  # elements at once: a quarter of the scratch in float64
_WHOLE = 1 << 18  # elements at once without scratch: long calls keep all cores busy
_SHORT = 32  # length of a line up to which starting a sum along it costs more than the sum
_GRAIN = 1 << 18  # elements that are worth a core: there are several passes over them
_REPEAT = 2048  # length of a line up to which its coefficients are repeated along it, if there is room


@lru_cache(256)
def _tiles(shape, most, start, stop):
    """(images, channels, places) ranges of at most ``most`` elements, for images start to stop of (n, channels, length)."""
    cut = boxes((stop - start, *shape[1:]), most)
    return [(slice(start + images.start, start + images.stop), *rest) for (images, *rest), _ in cut]


def over_images(x, most, run):
    """``run(images, channels, places)`` over tiles of at most ``most`` elements, on several cores by images."""

    def part(start, stop):
        for tile in _tiles(x.shape, most, start, stop):
            run(*tile)

    with single():  # lines are summed by BLAS, whose threads, once awake, would occupy our cores for a long time
        split(x.shape[0], part, grain=max(_GRAIN // max(x.shape[1] * x.shape[2], 1), 1))


def into(reduction, places, out, *arrays):
    """out += a reduction of the arrays along their last axis; out = it for the first ``places`` of a line."""
    total = out if places.start == 0 else scratch(out.shape, out.dtype, 2, 4)
    reduction(*arrays, out=total)
    add(total, out)


def add(part, out):
    """out += part, unless part is out."""
    if part is not out:
        np.add(out, part, out=out)


def _widened(x, slot, dtype):
    """``x`` in a scratch tile of the wide dtype."""
    tile = scratch(x.shape, dtype, slot, 4)
    cast(x, tile)
    return tile


def sum_lines(x, out):
    """out = x summed along its last axis, by BLAS, as a product with ones."""
    np.matmul(x, _ones(x.shape[2], x.dtype), out=out)


def _ones(length, dtype):
    if length <= RUN:
        return ONES[dtype][:length]
    tile = scratch((length,), dtype, 3, 4)
    tile.fill(1)
    return tile


def channel_sums(x, y, mean, partial, outs):
    """outs[0] = x summed over images and places, outs[1] = the same of x * y; of x * (y - mean) with a mean.

    Long lines are reduced one by one into partial (2, n, channels); short ones column by column, which are then added.
    """
    n, channels, length = x.shape
    wide = partial.dtype
    if length < _SHORT and 8 * channels * length * wide.itemsize <= SCRATCH:
        with single():
            _sum_columns(x.reshape(n, -1), y.reshape(n, -1), mean, outs)
        return

    def run(images, channels, places):
        a, b = x[images, channels, places], y[images, channels, places]
        a = a if a.dtype == wide else _widened(a, 0, wide)
        if mean is not None:
            tile = scratch(b.shape, wide, 1, 4)
            np.subtract(b, mean[channels, None], out=tile)
            b = tile
        elif b.dtype != wide:
            b = _widened(b, 1, wide)
        into(np.vecdot, places, partial[1, images, channels], a, b)
        if outs[0] is not None:  # second: BLAS reads several lines at once, which is slow where they are in no cache
            into(sum_lines, places, partial[0, images, channels], a)

    room = SCRATCH // 4 // wide.itemsize
    over_images(x, _WHOLE if x.dtype == wide and mean is None and length <= room else room, run)
    for part, out in zip(partial, outs, strict=True):
        if out is not None:
            np.add.reduce(part, axis=0, out=out)


def _sum_columns(x, y, mean, outs):
    """:func:`channel_sums` of x and y as (n, channels * length): sums over images by BLAS, then over places."""
    channels, wide = outs[1].size, outs[1].dtype
    length = x.shape[1] // channels
    sums = scratch((2, x.shape[1]), wide, 2, 4)
    sums.fill(0)
    most = max(TILE // x.shape[1], 1)
    ones = _ones(min(most, len(x)), wide)
    for i in range(0, len(x), most):
        a = _widened(x[i : i + most], 0, wide)
        if outs[0] is not None:
            _gather_rows(ones[: len(a)], a, sums[0])
        b = y[i : i + most]
        if mean is not None:
            shape = (len(a), channels, length)
            b = np.subtract(b.reshape(shape), mean[:, None], out=scratch(shape, wide, 1, 4)).reshape(a.shape)
        _gather_rows(ones[: len(a)], np.multiply(a, b, out=a), sums[1])
    for part, out in zip(sums, outs, strict=True):
        if out is not None:
            np.add.reduce(part.reshape(channels, length), axis=1, out=out)


def _gather_rows(ones, x, out):
    """out += x summed over its rows."""
    np.add(out, np.matmul(ones, x, out=scratch(out.shape, out.dtype, 1, 4)), out=out)


def squares(x, mean, partial):
    """partial[1] = the sum of (x - mean)^2 along each line."""

    def run(images, channels, places):
        part = x[images, channels, places]
        tile = scratch(part.shape, mean.dtype, 0, 4)
        np.subtract(part, mean[channels, None], out=tile)
        into(np.vecdot, places, partial[1, images, channels], tile, tile)

    over_images(x, SCRATCH // 4 // mean.dtype.itemsize, run)


def affine(coefficients, run, *arrays):
    """``run(tile, coefficients, *arrays)`` over tiles of arrays (n, channels, length), each with its channels' coefficients.

    If lines are short, NumPy spends most time on starting them. Then the coefficients are repeated along the places, and
    channels and places are one line. ``tile`` is a scratch array of a tile's shape in the wide dtype.
    """
    wide = coefficients[0].dtype
    n, channels, length = arrays[0].shape
    short = length <= _REPEAT and 8 * channels * length * wide.itemsize <= SCRATCH
    if short:
        repeated = [scratch((channels, length), wide, 5 + i, 8) for i in range(len(coefficients))]
        for row, values in zip(repeated, coefficients, strict=True):
            np.copyto(row, values[:, None])
        coefficients = [row.reshape(1, channels * length) for row in repeated]
        arrays = [a.reshape(n, 1, channels * length) for a in arrays]
    else:
        coefficients = [values[:, None] for values in coefficients]

    def part(*place):
        parts = [a[place] for a in arrays]
        tile = scratch(parts[0].shape, wide)
        run(tile, coefficients if short else [values[place[1]] for values in coefficients], *parts)

    slots = 4 if arrays[0].dtype != wide else 2 if short else 1
    over_images(arrays[0], SCRATCH // slots // wide.itemsize, part)


def input_gradient(gy, x, centre, training, work, sums, out, before=None):
    """out = a * gy, and in training the share of the statistics: a * gy + b * (x - centre) - a * mean(gy).

    Args:
        x: what was normalised, or what ``before(x, tile)`` makes it from, in a tile.
        centre: what to subtract from it; ``None`` for nothing.
        work: a; b, still without its factor -sums[1] / count; room for a number a channel.
    """
    a, b, c = work
    if not training:
        affine((a,), lambda _, rows, g, target: np.multiply(g, rows[0], out=target, casting="unsafe"), gy, out)
        return
    share, wide = -1.0 / (x.shape[0] * x.shape[2]), a.dtype
    np.multiply(b, sums[1], out=b)
    np.multiply(b, share, out=b)
    np.multiply(a, sums[0], out=c)
    np.multiply(c, share, out=c)
    if centre is not None:
        small = np.multiply(b, centre, out=scratch(b.shape, wide, 0, 4))
        np.subtract(c, small, out=c)

    def run(tile, coefficients, g, x, target):
        a, b, c = coefficients
        np.multiply(x if before is None else before(x, tile), b, out=tile)
        np.add(tile, c, out=tile)
        scaled = target if target.dtype == wide else scratch(g.shape, wide, 1, 4)  # of a half, the sum is rounded once
        np.multiply(g, a, out=scaled)
        np.add(scaled, tile, out=target, casting="unsafe")

    affine((a, b, c), run, gy, x, out)
