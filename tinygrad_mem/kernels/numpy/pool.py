"""Pooling. No window is copied: for each offset in the kernel a strided view of the input is read, in chunks of planes.

``geometry`` is (kernel, stride, padding, dilation), each a tuple with a number a spatial axis. x is (planes, *sizes), out is
(planes, *output sizes).
"""

from math import prod as _prod

import numpy as np

from ...dtypes import arithmetic, is_floating, is_half
from ..formula import formula
from .fast import cells, pairs, threads, tiles, windows

# --- the formulas


def _offsets(sizes, outs, geometry):
    """(place, number, pixel) of each offset in each window that is not in the padding; ``place``: of the window."""
    kernel, stride, padding, dilation = geometry
    for place in np.ndindex(*outs):
        for number, offset in enumerate(np.ndindex(*kernel)):
            pixel = tuple(i * s + o * d - p for i, s, o, d, p in zip(place, stride, offset, dilation, padding, strict=True))
            if all(0 <= i < n for i, n in zip(pixel, sizes, strict=True)):
                yield place, number, pixel


def _seen(x, outs, geometry, beyond):
    """seen[plane, *place, number] = the pixel of x that a window sees at the offset of that number, or ``beyond``."""
    seen = np.full((len(x), *outs, _prod(geometry[0])), beyond, x.dtype)
    for place, number, pixel in _offsets(x.shape[1:], outs, geometry):
        seen[:, *place, number] = x[:, *pixel]
    return seen


def _largest_seen(x, geometry, out):
    seen = _seen(x, out.shape[1:], geometry, -np.inf if is_floating(x.dtype) else np.iinfo(x.dtype).min)
    return {"out": seen.max(-1), "index": seen.argmax(-1)}


def _to_largest(gy, index, geometry, out):
    gx = np.zeros(out.shape)
    for place, number, pixel in _offsets(out.shape[1:], gy.shape[1:], geometry):
        gx[:, *pixel] += np.where(index[:, *place] == number, gy[:, *place], 0)
    return gx


def _positions(index, sizes, geometry, out):
    found = np.zeros(out.shape, np.int64)
    for place, number, pixel in _offsets(sizes, index.shape[1:], geometry):
        found[:, *place] += (index[:, *place] == number) * np.ravel_multi_index(pixel, sizes)
    return found


def _divisor(sizes, outs, geometry, count_include_pad, divisor):
    """The number that each window's sum is divided by: that of its entries, with or without those in the padding."""
    kernel, stride, padding, dilation = geometry
    if divisor is not None:
        return divisor
    if count_include_pad:
        sizes, padding = [n + 2 * p for n, p in zip(sizes, padding, strict=True)], [0] * len(sizes)
    return _seen(np.ones((1, *sizes)), outs, (kernel, stride, padding, dilation), 0).sum(-1)


def _mean_seen(x, geometry, count_include_pad, divisor, out):
    outs = out.shape[1:]
    return _seen(x, outs, geometry, 0).sum(-1) / _divisor(x.shape[1:], outs, geometry, count_include_pad, divisor)


def _spread_over_window(gy, geometry, count_include_pad, divisor, out):
    gx = np.zeros(out.shape)
    shares = gy / _divisor(out.shape[1:], gy.shape[1:], geometry, count_include_pad, divisor)
    for place, _, pixel in _offsets(out.shape[1:], gy.shape[1:], geometry):
        gx[:, *pixel] += shares[:, *place]
    return gx


def _cell(place, sizes, outs):
    """The pixels of an adaptive pooling's window: equal parts of each axis, rounded outwards."""
    return tuple(slice(i * n // m, -(-(i + 1) * n // m)) for i, n, m in zip(place, sizes, outs, strict=True))


def _cell_means(x, out):
    y = np.zeros(out.shape)
    for place in np.ndindex(*out.shape[1:]):
        y[:, *place] = x[:, *_cell(place, x.shape[1:], out.shape[1:])].mean(tuple(range(1, x.ndim)))
    return y


def _to_cells(gy, out):
    gx = np.zeros(out.shape)
    for place in np.ndindex(*gy.shape[1:]):
        cell = gx[:, *_cell(place, out.shape[1:], gy.shape[1:])]
        cell += gy[:, *place].reshape(-1, *[1] * (gy.ndim - 1)) / cell[0].size
    return gx


def _cell_maxima(x, out):
    y, index = np.zeros(out.shape, x.dtype), np.zeros(out.shape, np.int64)
    positions = np.arange(x[0].size).reshape(x.shape[1:])
    for place in np.ndindex(*out.shape[1:]):
        cell = _cell(place, x.shape[1:], out.shape[1:])
        values = x[:, *cell].reshape(len(x), -1)
        y[:, *place], index[:, *place] = values.max(-1), positions[cell].reshape(-1)[values.argmax(-1)]
    return {"out": y, "index": index}


def _unpooled(gy, index, out):
    y = np.zeros((len(out), out[0].size))
    for plane, positions, values in zip(y, index.reshape(len(y), -1), gy.reshape(len(y), -1), strict=True):
        np.add.at(plane, positions, values)
    return y.reshape(out.shape)


# --- the fast ways

_TILE = 1 << 18  # elements of a chunk: long calls, for two cores take turns in making them
_GRAIN = 1 << 17  # elements that pay for a core of their own: every offset in the kernel is a pass
_IN_PAIRS = 1 << 19  # the same for windows in pairs: maps of 28 x 28 took 1.25 of the time on two cores in a step of LeNet


def _planes(x, out, run, grain=_GRAIN):
    """``run(start, stop)`` over chunks of planes, on several cores."""
    size = max(_prod(x.shape[1:]), _prod(out.shape[1:]), 1)
    step = max(_TILE // size, 1)

    def part(start, stop):
        for planes in tiles.cuts(start, stop, step):
            run(planes)

    threads.split(x.shape[0], part, grain=max(grain // size, 1))


def _flag(shape):
    """A bool scratch for one chunk; larger planes than the scratch are cut by the caller."""
    return threads.scratch(shape, np.bool_, 0, 2)


def _rows(target, itemsize=1):
    """Cuts of a chunk's first spatial axis that fit half of the scratch, in elements of ``itemsize`` bytes."""
    limit = threads.SCRATCH // 2 // itemsize
    rows = target.shape[1] if target.ndim > 1 else 1
    step = max(limit // max(target.size // max(rows, 1), 1), 1)
    for cut in tiles.cuts(0, rows, step):
        yield (slice(None), cut) if target.ndim > 1 else (slice(None),)


def _first_inside(geometry, index):
    """index = the number of each window's first offset that is not padding: where it points if all it sees is -inf."""
    kernel, stride, padding, dilation = geometry
    index.fill(0)
    weight = 1
    for axis in reversed(range(len(kernel))):
        s, p, d = stride[axis], padding[axis], dilation[axis]
        for i in range(min(-(-p // s), index.shape[axis + 1])):
            border = index[(slice(None),) * (axis + 1) + (i,)]
            np.add(border, weight * -(-(p - i * s) // d), out=border, casting="unsafe")
        weight *= kernel[axis]


def _max_pool(x, geometry, index, out):
    """:func:`max_pool` of a chunk; index is as if there were no nan."""
    out.fill(-np.inf if is_floating(out.dtype) else np.iinfo(out.dtype).min)
    if index is not None:
        _first_inside(geometry, index)
    for number, _, target, source in windows.overlaps(x.shape[1:], out.shape[1:], *geometry):
        values, best = x[:, *source], out[:, *target]
        if index is not None and number:
            places = index[:, *target]
            for cut in _rows(best):
                flag = _flag(best[cut].shape)
                np.greater(values[cut], best[cut], out=flag)
                if number < 256 and places.dtype == np.uint8:  # numbers rise: the largest so far is the newest
                    np.multiply(flag.view(np.uint8), number, out=flag.view(np.uint8))
                    np.maximum(places[cut], flag.view(np.uint8), out=places[cut])
                else:
                    np.copyto(places[cut], number, where=flag)
        elif index is not None:
            index[:, *target] = 0
        np.maximum(values, best, out=best)


@formula(_largest_seen)
def max_pool(x, geometry, index, out):
    """out = the largest in each window, or nan; index (or None) = the number of its offset, the first of several."""

    in_pairs = x.dtype == np.float32 and pairs.covered(x.shape[1:], out.shape[1:], geometry)

    def run(planes):
        part, result = x[planes], out[planes]
        which = None if index is None else index[planes]
        if which is not None and in_pairs:
            pairs.largest(part, which, result)
        else:
            _max_pool(part, geometry, which, result)
        if which is not None and is_floating(result.dtype) and np.isnan(np.add.reduce(result, axis=None)):
            point_at_nan(part, which)

    def point_at_nan(part, which):
        """No comparison finds nan. So windows with one (rare) are looked for: they point at their last nan, as in PyTorch."""
        for number, _, target, source in windows.overlaps(x.shape[1:], out.shape[1:], *geometry):
            values, places = part[:, *source], which[:, *target]
            for cut in _rows(values):
                flag = _flag(values[cut].shape)
                np.isnan(values[cut], out=flag)
                np.copyto(places[cut], number, where=flag)

    _planes(x, out, run, _IN_PAIRS if in_pairs else _GRAIN)


@formula(_to_largest)
def max_pool_backward(gy, index, geometry, out):
    """out = gy at the place of each window's index, summed in the order of windows where these overlap; 0 elsewhere."""
    if out.itemsize <= 4 and pairs.covered(out.shape[1:], gy.shape[1:], geometry):
        grain = max(_IN_PAIRS // _prod(out.shape[1:]), 1)
        threads.split(len(out), lambda i, j: pairs.to_largest(gy[i:j], index[i:j], out[i:j]), grain)
        return
    if is_half(out.dtype):
        windows.sum_halves(lambda _, seen: gy[seen], gy.shape[1:], geometry, index, out)
        return
    sizes = out.shape[1:]

    def part(first, last):
        grads, which = gy[first:last], index[first:last]
        flat = out[first:last].reshape(last - first, _prod(sizes))
        flat.fill(0)
        known = None
        for box, shape, starts in windows.tiles_of(grads.shape):
            places, rest, first_places = (threads.scratch(shape, np.int64, slot, 4) for slot in range(3))
            if known != (shape, starts):  # the next planes have their windows at the same places
                windows.corners(sizes, geometry, starts, flat.shape[1], first_places)
                known = shape, starts
            np.copyto(rest, which[box])
            windows.offset_places(rest, sizes, geometry, first_places, places)
            np.add.at(flat[box[0]].reshape(-1), places.reshape(-1), grads[box].reshape(-1))

    threads.split(len(out), part, grain=max(_GRAIN // max(_prod(sizes), 1), 1))


@formula(_positions)
def pool_positions(index, sizes, geometry, out):
    """out = int64 position in the input plane of each window's index."""
    for box, shape, starts in windows.tiles_of(out.shape):
        first, rest = (threads.scratch(shape, np.int64, slot, 4) for slot in range(2))
        windows.corners(sizes, geometry, starts, 0, first)
        np.copyto(rest, index[box])
        windows.offset_places(rest, sizes, geometry, first, out[box])


def _counts(sizes, outs, geometry, count_include_pad):
    """The number of entries that each window averages, one vector an axis."""
    kernel, stride, padding, _ = geometry
    for size, out, k, s, p in zip(sizes, outs, kernel, stride, padding, strict=True):
        starts = [i * s - p for i in range(out)]
        if count_include_pad:
            yield [min(a + k, size + p) - a for a in starts]
        else:
            yield [min(a + k, size) - max(a, 0) for a in starts]


def _divide(x, counts, divisor, out):
    """out = x divided by ``divisor``, or by the product of the counts along each axis; halves are rounded once."""
    wide = arithmetic(out.dtype)
    if divisor is not None:
        np.multiply(x, 1.0 / divisor, out=out, dtype=wide, casting="unsafe")
        return
    if all(c == counts[i][0] for i in range(len(counts)) for c in counts[i]):
        np.multiply(x, 1.0 / int(np.prod([c[0] for c in counts])), out=out, dtype=wide, casting="unsafe")
        return
    np.copyto(out, x)
    for axis, c in enumerate(counts, start=1):
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        np.divide(out, np.array(c, dtype=out.dtype).reshape(shape), out=out)


@formula(_mean_seen)
def avg_pool(x, geometry, count_include_pad, divisor, out):
    """out = the mean of each window: a tile of windows is summed, divided and rounded once."""
    met = list(windows.overlaps(x.shape[1:], out.shape[1:], *geometry))
    counts = list(_counts(x.shape[1:], out.shape[1:], geometry, count_include_pad))

    def add(total, box):
        for _, _, target, source in met:
            cuts = [cut for a in zip(target, source, box[1:], strict=True) if (cut := windows.windows_inside(*a))]
            if len(cuts) == len(box) - 1:
                here = total[:, *[c[0] for c in cuts]]
                np.add(here, x[box[0], *[c[1] for c in cuts]], out=here)
        _divide(total, [c[cut] for c, cut in zip(counts, box[1:], strict=True)], divisor, total)

    windows.add_up(add, out)


@formula(_spread_over_window)
def avg_pool_backward(gy, geometry, count_include_pad, divisor, work, out):
    """out = each window's gradient, divided by its count, added to each of its entries; work is like gy and may be gy."""
    counts = list(_counts(out.shape[1:], gy.shape[1:], geometry, count_include_pad))

    def run(planes):
        result, grads = out[planes], work[planes]
        _divide(gy[planes], counts, divisor, grads)
        if is_half(out.dtype):
            return
        result.fill(0)
        for _, _, target, source in windows.overlaps(out.shape[1:], gy.shape[1:], *geometry):
            total = result[:, *source]
            np.add(total, grads[:, *target], out=total)

    _planes(out, gy, run)
    if is_half(out.dtype):
        windows.sum_halves(lambda _, seen: work[seen], gy.shape[1:], geometry, None, out)


@formula(_cell_means)
def adaptive_avg_pool(x, out):
    """out = the mean of each of out's cells."""
    for cell, at, count in cells.each_cell(x, out):
        target = out[at]
        total = target if not is_half(out.dtype) else threads.scratch(target.shape, np.float32)  # sums of halves are not halves
        np.add.reduce(x[cell], axis=tuple(range(1, x.ndim)), dtype=total.dtype, out=total)
        np.multiply(total, 1.0 / count, out=target, casting="unsafe")


@formula(_to_cells)
def adaptive_avg_pool_backward(gy, out):
    """out = each cell's gradient, divided by its count, added to every entry of the cell."""
    if is_half(out.dtype):
        _spread_halves(gy, out)
        return
    out.fill(0)
    for cell, at, count in cells.each_cell(out, gy):
        here = out[cell]
        small = threads.scratch(here.shape[:1], out.dtype)
        np.multiply(gy[at], 1.0 / count, out=small)
        np.add(here, small.reshape((-1,) + (1,) * (out.ndim - 1)), out=here)


def _spread_halves(gy, out):
    """:func:`adaptive_avg_pool_backward` summed in float32, a tile of out at a time from the cells that reach into it."""
    borders = [cells.cells(size, n) for size, n in zip(out.shape[1:], gy.shape[1:], strict=True)]

    def add(total, box):
        small = threads.scratch((len(total), *[1] * (out.ndim - 1)), np.float32, 1, 4)
        for at in np.ndindex(gy.shape[1:]):
            bounds = [borders[axis][i] for axis, i in enumerate(at)]
            pairs = zip(bounds, box[1:], strict=True)
            cuts = [slice(max(a, cut.start) - cut.start, min(b, cut.stop) - cut.start) for (a, b), cut in pairs]
            if all(cut.start < cut.stop for cut in cuts):
                np.copyto(small.reshape(-1), gy[(box[0], *at)])
                np.multiply(small, 1.0 / _prod(stop - start for start, stop in bounds), out=small)
                here = total[(slice(None), *cuts)]
                np.add(here, small, out=here)

    windows.add_up(add, out)


@formula(_cell_maxima)
def adaptive_max_pool(x, index, out):
    """out = the largest of each cell (nan if there is one); index = its int64 position in the input plane."""
    borders = [cells.cells(size, n) for size, n in zip(x.shape[1:], out.shape[1:], strict=True)]
    for at in np.ndindex(out.shape[1:]):
        bounds = [borders[a][i] for a, i in enumerate(at)]
        cell = x[(slice(None), *[slice(*b) for b in bounds])]
        inner = int(np.prod(cell.shape[1:]))
        step = min(max((1 << 19) // (inner * x.itemsize), 1), cells.PLACES)
        for planes in tiles.cuts(0, x.shape[0], step):
            best, place = out[(planes, *at)], index[(planes, *at)]
            if inner * x.itemsize <= 1 << 19:
                tile = threads.scratch(cell[planes].shape, x.dtype, 0, 2)
                np.copyto(tile, cell[planes])
                cells.largest(tile.reshape(tile.shape[0], inner), best, place)
            else:  # a cell larger than the scratch: row by row
                cells.largest_by_rows(cell[planes.start], best, place)
            cells.unravel(place, cell.shape[1:], [b[0] for b in bounds], x.shape[1:])


@formula(_unpooled)
def unpool(gy, index, out):
    """out = 0, but gy added at each index (a position in the plane)."""
    out.fill(0)
    for plane in range(out.shape[0]):
        np.add.at(out[plane].reshape(-1), index[plane].reshape(-1), gy[plane].reshape(-1))
