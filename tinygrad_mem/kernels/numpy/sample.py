"""Values of images at places between their pixels, point after point.

A place is a number an axis, -1 and 1 at the ends of it. An output is a sum of pixels around it, its corners: along each axis
1 (nearest), 2 (bilinear) or 4 (bicubic) of them, each with a weight, and with the slope of that weight for the way back.
"""

from itertools import product

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast import threads
from .fast.computed import Written
from .fast.tiles import cuts

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


def _nowhere(grid, padding):
    """True for a place with a nan; an infinite one has no reflection either."""
    return np.isnan(grid - grid if padding == "reflection" else grid).any(-1)


def _corners(grid, sizes, mode, padding, align):
    """(image, place in the grid, pixel, weight) of all that is read."""
    for n, *at in np.argwhere(~_nowhere(grid, padding)):
        axes = zip(grid[n, *at][::-1], sizes, strict=True)
        for corner in product(*[_around(place, size, mode, padding, align) for place, size in axes]):
            pixel = tuple(int(i) for i, _ in corner)
            if all(0 <= i < size for i, size in zip(pixel, sizes, strict=True)):
                yield n, at, pixel, np.prod([weight for _, weight in corner])


def _sampled(x, grid, mode, padding, align):
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1])) + np.where(_nowhere(grid, padding), np.nan, 0)[:, None]
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
_PARTS = {"nearest": (0,), "bilinear": (0, 1), "bicubic": (-1, 0, 1, 2)}  # corners along an axis, from the first one on
_FAR = 1e30  # an infinite place would have nan as its weight


class _Rows:
    """Rows of numbers, one number per point, in the first quarter of the scratch, handed out in order."""

    def __init__(self, count, wide):
        self._rows, self._next, self.count, self.wide = threads.scratch((64, _POINTS), np.float64, 0, 4), 0, count, wide

    def take(self, dtype=None):
        self._next += 1
        return self._rows[self._next - 1].view(self.wide if dtype is None else dtype)[: self.count]

    def compute(self, written, *arguments):
        """Run a formula, with rows from the end as its scratch."""
        run, temps = written(*arguments)
        run(*arguments, *[self._rows[-1 - k].view(self.wide)[: self.count] for k in range(temps)])


def _padded(u, slope, size, padding, align):
    """u, moved into the image as ``padding`` says, and ``slope`` times the slope of the new place."""
    if padding == "reflection":
        low, span = (0.0, size - 1) if align else (-0.5, size)
        slope = np.where(u < low, -slope, slope)
        u = np.abs(u - low)
        if span:
            slope = np.where(np.floor_divide(u, span) % 2 != 0, -slope, slope)
            rest = u % span
            u = np.where(np.floor_divide(u, span) % 2 != 0, span - rest, rest)
        else:
            u = np.where(u > 0, 0, 0)  # nan too
        u = u + low
    if padding != "zeros":
        slope = np.where(u <= 0, 0, slope)
        slope = np.where(u >= size - 1, 0, slope)
        u = np.minimum(np.maximum(u, 0), size - 1)
    return np.where(np.isnan(u), -100, np.minimum(np.maximum(u, -_FAR), _FAR)), slope


def _place(coordinate, size, mode, padding, align, slope, first, rest):
    """Along one axis the first corner, the place after it, and by what slopes are multiplied: nan if the place is none."""
    scale = (size - 1) / 2 if align else size / 2
    u = (coordinate + 1) * scale
    u, slope = _padded(u if align else u - 0.5, scale, size, "zeros" if mode == "bicubic" else padding, align)
    first = np.rint(u) if mode == "nearest" else np.floor(u)
    unknown = coordinate - coordinate if padding == "reflection" else coordinate  # nan for an infinite one too
    slope = np.where(np.isnan(unknown), np.nan, scale if mode == "bicubic" else slope)
    return {"slope": slope, "first": first, "rest": u - first}


def _corner(first, rest, part, inner, sign, size, mode, padding, align, at, weight, bend):
    """The pixel ``part`` after the first corner, its weight (of Keys' cubic with a = -0.75), and the weight's slope."""
    at = first + part
    if mode == "nearest":
        return {"at": at, "weight": 1, "bend": 0}
    if mode == "bilinear":
        return {"at": at, "weight": rest if part else 1 - rest, "bend": 1 if part else -1}
    a, d = -0.75, np.abs(rest - part)
    if inner:
        weight, bend = (d * (a + 2) - (a + 3)) * d * d + 1, (d * (3 * (a + 2)) - 2 * (a + 3)) * d
    else:
        weight, bend = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a, (d * (3 * a) - 10 * a) * d + 8 * a
    return {"at": _padded(at, 0, size, padding, align)[0], "weight": weight, "bend": bend * sign}


_PLACE, _CORNER = Written(_place), Written(_corner)


def _axis(coordinates, size, mode, padding, align, rows):
    """The corners along one axis: (pixel, outside, weight, slope) of each; and what a slope is multiplied by."""
    slope, first, rest, at, flag = rows.take(), rows.take(), rows.take(), rows.take(), rows.take(np.bool_)
    np.copyto(at, coordinates)
    rows.compute(_PLACE, at, size, mode, padding, align, slope, first, rest)
    corners = []
    for part in _PARTS[mode]:
        pixel, outside, weight, bend = rows.take(np.int64), rows.take(np.bool_), rows.take(), rows.take()
        inner, sign = part in (0, 1), 1 if part <= 0 else -1
        rows.compute(_CORNER, first, rest, part, inner, sign, size, mode, padding, align, at, weight, bend)
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
        self.t.fill(0)
        for _, slope in self.axes:
            np.add(self.t, slope, out=self.t)
        self.nowhere = np.isnan(self.t, out=rows.take(np.bool_))  # places with a nan

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
    for here, some in product(cuts(0, points, _POINTS), cuts(0, x_channels, _CHANNELS)):
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
            np.copyto(total, np.nan, where=corners.nowhere)
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
                np.copyto(total, np.nan, where=corners.nowhere)
                column, before = target[n, here, d - 1 - axis], corners.t
                np.copyto(before, column)
                np.add(before, total, out=total)
                np.copyto(column, total, casting="unsafe")

    threads.lanes(len(x), len(x), run)
