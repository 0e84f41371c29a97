"""Values of images at places between their pixels, point after point.

A place is a number an axis, -1 and 1 at the ends of it. An output is a sum of pixels around it, its corners: along each axis
1 (nearest), 2 (bilinear) or 4 (bicubic) of them, each with a weight, and with the slope of that weight for the way back.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast import threads

# --- the formulas


def _unnormalized(place, size, align):
    """A place from -1 to 1 along an axis as a number of pixels."""
    return (place + 1) / 2 * (size - 1) if align else ((place + 1) * size - 1) / 2


def _bounded(u, size, padding, align):
    """A place along an axis, moved into the image as ``padding`` says."""
    if padding == "reflection":
        low, span = (0, size - 1) if align else (-0.5, size)
        u = abs(u - low) % (2 * span) if span else 0
        u = min(u, 2 * span - u) + low
    return u if padding == "zeros" else min(max(u, 0), size - 1)


def _keys(d):
    """Keys' cubic weight at the distance d, with a = -0.75."""
    a, d = -0.75, abs(d)
    return ((a + 2) * d - (a + 3)) * d**2 + 1 if d <= 1 else ((d - 5) * d + 8) * d * a - 4 * a


def _around(place, size, mode, padding, align):
    """(pixel, weight) of each pixel along an axis that a place reads; a pixel may be outside."""
    u = _unnormalized(place, size, align)
    if mode == "bicubic":
        first = np.floor(u)
        return [(_bounded(first + k, size, padding, align), _keys(u - first - k)) for k in (-1, 0, 1, 2)]
    u = _bounded(u, size, padding, align)
    first = np.floor(u)
    return [(np.rint(u), 1)] if mode == "nearest" else [(first, first + 1 - u), (first + 1, u - first)]


def _corners(grid, sizes, mode, padding, align):
    """(image, place in the grid, pixel, weight) of all that is read."""
    for n, *at in np.ndindex(grid.shape[:-1]):
        axes = zip(grid[n, *at][::-1], sizes, strict=True)
        for corner in product(*[_around(place, size, mode, padding, align) for place, size in axes]):
            pixel = tuple(int(i) for i, _ in corner)
            if all(0 <= i < size for i, size in zip(pixel, sizes, strict=True)):
                yield n, at, pixel, np.prod([weight for _, weight in corner])


def _sampled(x, grid, mode, padding, align):
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for n, at, pixel, weight in _corners(grid, x.shape[2:], mode, padding, align):
        y[n, :, *at] += weight * x[n, :, *pixel]
    return y


def _to_pixels(gy, grid, mode, padding, align, out):
    gx = np.zeros(out.shape)
    for n, at, pixel, weight in _corners(grid, out.shape[2:], mode, padding, align):
        gx[n, :, *pixel] += weight * gy[n, :, *at]
    return gx


def _to_places(gy, x, grid, mode, padding, align):
    """By how much each place changes the sum of gy times the result: a difference quotient."""
    found, step = np.zeros(grid.shape), 1e-6
    for axis in range(grid.shape[-1] if mode != "nearest" else 0):
        move = step * (np.arange(grid.shape[-1]) == axis)
        ahead, behind = (_sampled(x, grid + sign * move, mode, padding, align) for sign in (1, -1))
        found[..., axis] = (gy * (ahead - behind)).sum(1) / (2 * step)
    return found


# --- the fast ways

_POINTS = 1 << 10  # at a time
_CHANNELS = 64  # at a time: a tile of them is a fourth of the scratch
_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
_FAR = 2.0**31


class _Rows:
    """Rows of numbers, one number per point, in the first quarter of the scratch, handed out in order."""

    def __init__(self, count, wide):
        self._rows, self._next, self.count, self.wide = threads.scratch((64, _POINTS), np.float64, 0, 4), 0, count, wide

    def take(self, dtype=None):
        row = self._rows[self._next].view(self.wide if dtype is None else dtype)[: self.count]
        self._next += 1
        return row


def _padded(u, slope, size, padding, align, rows):
    """Move u into the image as ``padding`` says, and multiply slope (or ``None``) by the slope of the new place."""
    flag, t = rows
    if padding == "reflection":
        low, span = (0.0, size - 1) if align else (-0.5, size)
        np.subtract(u, low, out=u)
        np.less(u, 0, out=flag)
        if slope is not None:
            np.negative(slope, out=slope, where=flag)
        np.absolute(u, out=u)
        if span:
            np.floor_divide(u, span, out=t)
            np.remainder(u, span, out=u)
            np.remainder(t, 2, out=t)
            np.not_equal(t, 0, out=flag)
            np.subtract(span, u, out=u, where=flag)
            if slope is not None:
                np.negative(slope, out=slope, where=flag)
        else:
            u.fill(0)
        np.add(u, low, out=u)
    if padding != "zeros":
        if slope is not None:
            for beyond, bound in ((np.less_equal, 0), (np.greater_equal, size - 1)):
                beyond(u, bound, out=flag)
                np.copyto(slope, 0, where=flag)
        np.maximum(u, 0, out=u)
        np.minimum(u, size - 1, out=u)
    np.absolute(u, out=t)
    np.less(t, _FAR, out=flag)
    np.logical_not(flag, out=flag)  # nan too
    np.copyto(u, -100, where=flag)


def _cubic(t, part, weight, slope):
    """Keys' weight (a = -0.75) of the corner ``part`` (-1 to 2) where the place is t after corner 0, and its slope in t."""
    a, inner = -0.75, part in (0, 1)
    three, two = (a + 2, -(a + 3)) if inner else (a, -5 * a)
    one, none = (0.0, 1.0) if inner else (8 * a, -4 * a)
    np.subtract(t, part, out=slope)
    np.absolute(slope, out=slope)  # d, how far away the corner is
    d = slope
    np.multiply(d, three, out=weight)
    for more in (two, one):
        np.add(weight, more, out=weight)
        np.multiply(weight, d, out=weight)
    np.add(weight, none, out=weight)
    sign = 1 if part <= 0 else -1  # of d's own slope in t
    _slope_of_cubic(d, three * sign, two * sign, one * sign)


def _slope_of_cubic(d, three, two, one):
    """d becomes 3 * three * d**2 + 2 * two * d + one."""
    t = threads.scratch((_POINTS,), np.float64, 63, 64).view(d.dtype)[: d.size]
    np.multiply(d, 3 * three, out=t)
    np.add(t, 2 * two, out=t)
    np.multiply(t, d, out=d)
    np.add(d, one, out=d)


def _axis(coordinates, size, mode, padding, align, rows):
    """The corners along one axis: (pixel, outside, weight, slope) of each; and what a slope is multiplied by."""
    u, slope, flag, t = rows.take(), rows.take(), rows.take(np.bool_), rows.take()
    np.copyto(u, coordinates)
    np.add(u, 1, out=u)
    np.multiply(u, (size - 1) / 2 if align else size / 2, out=u)
    if not align:
        np.subtract(u, 0.5, out=u)
    slope.fill((size - 1) / 2 if align else size / 2)
    if mode != "bicubic":
        _padded(u, slope, size, padding, align, (flag, t))
    else:
        _padded(u, None, size, "zeros", align, (flag, t))
    corners = []
    first = rows.take()
    (np.rint if mode == "nearest" else np.floor)(u, out=first)
    np.subtract(u, first, out=u)  # the place after the first corner
    for k in range(_TAPS[mode]):
        part = k - 1 if mode == "bicubic" else k
        pixel, outside, weight, bend = rows.take(np.int64), rows.take(np.bool_), rows.take(), rows.take()
        if mode == "bicubic":
            _cubic(u, part, weight, bend)
        elif mode == "bilinear":
            np.copyto(weight, u) if k else np.subtract(1, u, out=weight)
            bend.fill(1 if k else -1)
        else:
            weight.fill(1)
            bend.fill(0)
        at = rows.take()
        np.add(first, part, out=at)
        if mode == "bicubic":
            _padded(at, None, size, padding, align, (flag, t))
        np.less(at, 0, out=outside)
        np.greater(at, size - 1, out=flag)
        np.logical_or(outside, flag, out=outside)
        np.copyto(at, 0, where=outside)
        np.copyto(pixel, at, casting="unsafe")
        corners.append((pixel, outside, weight, bend))
    return corners, slope


class _Tile:
    """The corners of some points of one image."""

    def __init__(self, places, sizes, mode, padding, align, wide):
        rows = _Rows(len(places), wide)
        d = len(sizes)
        self.sizes = sizes
        self.pixel, self.weight, self.t = rows.take(np.int64), rows.take(), rows.take()
        self.outside = rows.take(np.bool_)
        self.sums = [rows.take() for _ in range(d)]
        self.axes = [_axis(places[:, d - 1 - a], sizes[a], mode, padding, align, rows) for a in range(d)]

    def corners(self):
        """Each corner along each axis. Meanwhile ``pixel``, ``outside`` and ``weight`` are those of this corner."""
        for corner in product(*(corners for corners, _ in self.axes)):
            self.pixel.fill(0)
            self.outside.fill(False)
            for (pixel, outside, weight, _), size in zip(corner, self.sizes, strict=True):
                np.multiply(self.pixel, size, out=self.pixel)
                np.add(self.pixel, pixel, out=self.pixel)
                np.logical_or(self.outside, outside, out=self.outside)
                if weight is corner[0][2]:
                    np.copyto(self.weight, weight)
                else:
                    np.multiply(self.weight, weight, out=self.weight)
            yield corner

    def bend(self, corner, axis):
        """The slope of the corner's weight along ``axis``."""
        np.copyto(self.t, corner[axis][3])
        for other, (_, _, weight, _) in enumerate(corner):
            if other != axis:
                np.multiply(self.t, weight, out=self.t)
        return self.t

    def pixels(self, planes, out, raw):
        """out (channels, points) = the pixels of the corner, 0 where it is outside."""
        np.take(planes, self.pixel, axis=1, out=out if raw is None else raw, mode="clip")
        if raw is not None:
            np.copyto(out, raw)
        np.copyto(out, 0, where=self.outside)


def _tiles(x_channels, dtype, points):
    """(channels, points) of each piece of an image, and tiles of that size: two wide ones, and one of ``dtype`` if half."""
    wide = arithmetic(dtype)
    for p in range(0, points, _POINTS):
        here = slice(p, min(p + _POINTS, points))
        for c in range(0, x_channels, _CHANNELS):
            some = slice(c, min(c + _CHANNELS, x_channels))
            shape = (some.stop - some.start, here.stop - here.start)
            raw = None if wide == dtype else threads.scratch(shape, dtype, 3, 4)
            yield some, here, threads.scratch(shape, wide, 1, 4), threads.scratch(shape, wide, 2, 4), raw


def _flat(x, grid, gy):
    """x (N, C, pixels), grid (N, points, d) and gy (N, C, points)."""
    n, d, count = len(grid), grid.shape[-1], gy.shape[1]
    return x.reshape(n, count, -1), grid.reshape(n, -1, d), gy.reshape(n, count, -1)


@formula(_sampled)
def grid_sample(x, grid, mode, padding, align, out):
    """out (N, C, *outs) = x (N, C, *sizes) at the places grid (N, *outs, d), all contiguous."""
    if not out.size:
        return
    wide, sizes = arithmetic(x.dtype), x.shape[2:]
    planes, places, flat = _flat(x, grid, out)

    def run(lane, n):
        for some, here, total, tile, raw in _tiles(x.shape[1], x.dtype, flat.shape[2]):
            corners = _Tile(places[n, here], sizes, mode, padding, align, wide)
            total.fill(0)
            for _ in corners.corners():
                corners.pixels(planes[n, some], tile, raw)
                np.multiply(tile, corners.weight, out=tile)
                np.add(total, tile, out=total)
            np.copyto(flat[n, some, here], total, casting="unsafe")

    threads.lanes(len(x), len(x), run)


def grid_sample_input_workspace(shape, dtype):
    """Bytes of workspace of :func:`grid_sample_input`: for half precision the sums of one image per thread, else 0."""
    if arithmetic(dtype) == dtype:
        return 0
    return min(threads.threads(), shape[0]) * 4 * int(np.prod(shape[1:]))


@formula(_to_pixels)
def grid_sample_input(gy, grid, mode, padding, align, work, out):
    """out (N, C, *sizes) = the sum of each corner's weight times gy (N, C, *outs)."""
    out.fill(0)
    if not out.size or not gy.size:
        return
    wide, sizes = arithmetic(gy.dtype), out.shape[2:]
    sums, places, flat = _flat(out, grid, gy)
    buffers = None if work is None else work.view(wide).reshape(-1, *sums.shape[1:])

    def run(lane, n):
        target = sums[n] if buffers is None else buffers[lane]
        target.fill(0)
        for some, here, part, tile, _ in _tiles(gy.shape[1], gy.dtype, flat.shape[2]):
            corners = _Tile(places[n, here], sizes, mode, padding, align, wide)
            np.copyto(part, flat[n, some, here])
            for _ in corners.corners():
                np.multiply(part, corners.weight, out=tile)
                np.copyto(tile, 0, where=corners.outside)
                for line, values in zip(target[some], tile, strict=True):
                    np.add.at(line, corners.pixel, values)
        if buffers is not None:
            np.copyto(sums[n], target, casting="unsafe")

    threads.lanes(len(out), len(out), run)


@formula(_to_places)
def grid_sample_grid(gy, x, grid, mode, padding, align, out):
    """out (N, *outs, d) = the gradient of the places: pixels times slopes times gy, summed over channels and corners."""
    out.fill(0)
    if not gy.size or mode == "nearest":
        return
    wide, sizes = arithmetic(x.dtype), x.shape[2:]
    planes, places, flat = _flat(x, grid, gy)
    target, d = out.reshape(places.shape), len(sizes)

    def run(lane, n):
        for some, here, part, tile, raw in _tiles(x.shape[1], x.dtype, flat.shape[2]):
            corners = _Tile(places[n, here], sizes, mode, padding, align, wide)
            np.copyto(part, flat[n, some, here])
            for total in corners.sums:
                total.fill(0)
            for corner in corners.corners():
                corners.pixels(planes[n, some], tile, raw)
                np.multiply(tile, part, out=tile)
                np.add.reduce(tile, axis=0, out=corners.weight)
                for axis, total in enumerate(corners.sums):
                    bend = corners.bend(corner, axis)
                    np.multiply(bend, corners.weight, out=bend)
                    np.add(total, bend, out=total)
            for axis, total in enumerate(corners.sums):
                np.multiply(total, corners.axes[axis][1], out=total)
                column, before = target[n, here, d - 1 - axis], corners.t
                np.copyto(before, column)
                np.add(before, total, out=total)
                np.copyto(column, total, casting="unsafe")

    threads.lanes(len(x), len(x), run)
