"""Pooling without windows: a loop over the offsets in the kernel, each a strided view of the input, in chunks of planes.

``geometry`` is (kernel, stride, padding, dilation), each a tuple with a number a spatial axis. x is (planes, *sizes), out is
(planes, *output sizes).
"""

from __future__ import annotations

from itertools import product
from math import prod as _prod

import numpy as np

from ...dtypes import arithmetic as _arithmetic
from ...dtypes import is_floating as _is_floating
from ...dtypes import is_half as _is_half
from .cells import PLACES as _PLACES
from .cells import cells as _cells
from .cells import each_cell as _each_cell
from .cells import largest as _largest
from .cells import largest_by_rows as _largest_by_rows
from .cells import unravel as _unravel
from .threads import SCRATCH as _SCRATCH
from .threads import scratch as _scratch
from .threads import split as _split
from .tiles import blocks as _blocks
from .tiles import keep as _keep
from .window_places import box_of as _box
from .window_places import corners as _corners
from .window_places import offset_places as _offset_places
from .window_places import tiles_of as _tiles_of

_TILE = 1 << 18  # elements of a chunk: long calls, for two cores take turns in making them
_GRAIN = 1 << 17  # elements that pay for a core of their own: every offset in the kernel is a pass
_HALVES = 1 << 14  # elements of a tile whose sums are made in float32: it and three others share the scratch


def _offsets(sizes, outs, geometry):
    """For each offset in the kernel: its number, and the slices of input and output that it connects."""
    kernel, stride, padding, dilation = geometry
    for number, offset in enumerate(product(*map(range, kernel))):
        source, target = [], []
        for size, out, o, s, p, d in zip(sizes, outs, offset, stride, padding, dilation, strict=True):
            start = o * d - p  # of output 0
            first = max(-(start // s), 0) if start < 0 else 0
            last = min((size - 1 - start) // s, out - 1)
            target.append(slice(first, last + 1))
            source.append(slice(start + first * s, start + last * s + 1, s))
            if last < first:
                break
        else:
            yield number, (slice(None), *source), (slice(None), *target)


def _planes(x, out, run):
    """``run(start, stop)`` over chunks of planes, on several cores."""
    size = max(_prod(x.shape[1:]), _prod(out.shape[1:]), 1)
    step = max(_TILE // size, 1)

    def part(start, stop):
        for i in range(start, stop, step):
            run(slice(i, min(i + step, stop)))

    _split(x.shape[0], part, grain=max(_GRAIN // size, 1))


def _flag(shape):
    """A bool scratch for one chunk; larger planes than the scratch are cut by the caller."""
    return _scratch(shape, np.bool_, 0, 2)


def _rows(target, itemsize=1):
    """Cuts of a chunk's first spatial axis that fit half of the scratch, in elements of ``itemsize`` bytes."""
    limit = _SCRATCH // 2 // itemsize
    rows = target.shape[1] if target.ndim > 1 else 1
    step = max(limit // max(target.size // max(rows, 1), 1), 1)
    for i in range(0, rows, step):
        yield (slice(None), slice(i, i + step)) if target.ndim > 1 else (slice(None),)


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


def max_pool(x, geometry, index, out):
    """out = the largest in each window, or nan; index (or None) = the number of its offset, the first of several."""

    def run(planes):
        part, result = x[planes], out[planes]
        low = -np.inf if _is_floating(out.dtype) else np.iinfo(out.dtype).min
        result.fill(low)
        which = None if index is None else index[planes]
        if which is not None:
            _first_inside(geometry, which)
        for number, source, target in _offsets(x.shape[1:], out.shape[1:], geometry):
            values, best = part[source], result[target]
            if which is not None and number:
                places = which[target]
                for cut in _rows(best):
                    flag = _flag(best[cut].shape)
                    np.greater(values[cut], best[cut], out=flag)
                    if number < 256 and places.dtype == np.uint8:  # numbers rise: the largest so far is the newest
                        np.multiply(flag.view(np.uint8), number, out=flag.view(np.uint8))
                        np.maximum(places[cut], flag.view(np.uint8), out=places[cut])
                    else:
                        np.copyto(places[cut], number, where=flag)
            elif which is not None:
                which[target] = 0
            np.maximum(values, best, out=best)
        if which is not None and _is_floating(result.dtype) and np.isnan(np.add.reduce(result, axis=None)):
            point_at_nan(part, which)

    def point_at_nan(part, which):
        """No comparison finds nan: the windows that have one (rare) point at their last, as PyTorch's do."""
        for number, source, target in _offsets(x.shape[1:], out.shape[1:], geometry):
            values, places = part[source], which[target]
            for cut in _rows(values):
                flag = _flag(values[cut].shape)
                np.isnan(values[cut], out=flag)
                np.copyto(places[cut], number, where=flag)

    _planes(x, out, run)


def max_pool_backward(gy, index, geometry, out):
    """out = gy at the place that each window's index names, added up where windows overlap (in their order), 0 elsewhere."""
    if _is_half(out.dtype):
        _sum_halves(lambda _, windows: gy[windows], gy.shape[1:], geometry, index, out)
        return
    sizes = out.shape[1:]

    def part(first, last):
        grads, which = gy[first:last], index[first:last]
        flat = out[first:last].reshape(last - first, _prod(sizes))
        flat.fill(0)
        known = None
        for box, shape, starts in _tiles_of(grads.shape):
            places, rest, first_places = (_scratch(shape, np.int64, slot, 4) for slot in range(3))
            if known != (shape, starts):  # the next planes have their windows at the same places
                _corners(sizes, geometry, starts, flat.shape[1], first_places)
                known = shape, starts
            np.copyto(rest, which[box])
            _offset_places(rest, sizes, geometry, first_places, places)
            values = grads[box]
            if not values.flags.c_contiguous:
                values = _scratch(shape, out.dtype, 3, 4)
                np.copyto(values, grads[box])
            np.add.at(flat[box[0]].reshape(-1), places.reshape(-1), values.reshape(-1))

    _split(len(out), part, grain=max(_GRAIN // max(_prod(sizes), 1), 1))


def _sum_halves(pick, outs, geometry, index, out):
    """out = the gradients of the windows that see each entry, summed in float32; with an index, of those that name it.

    ``pick(number, windows)`` is what windows give to the entry at offset ``number``. Tiles of out are made from all windows
    that reach into them.
    """
    offsets = list(_offsets(out.shape[1:], outs, geometry))

    def part(first, last):
        for tile in _blocks((last - first, *out.shape[1:]), _HALVES):
            box = _box(tile, (last - first, *out.shape[1:]))
            planes = slice(first + box[0].start, first + box[0].stop)
            total = _scratch(tuple([cut.stop - cut.start for cut in box]), np.float32, 0, 4)
            total.fill(0)
            for number, source, target in offsets:
                cuts = [cut for axis in zip(source[1:], target[1:], box[1:], strict=True) if (cut := _inside(*axis))]
                if len(cuts) < len(box) - 1:
                    continue
                here, windows = total[:, *[c[0] for c in cuts]], (planes, *[c[1] for c in cuts])
                work = _scratch(here.shape, np.float32, 1, 4)
                np.copyto(work, pick(number, windows))
                if index is not None:
                    flag = _scratch(here.shape, np.bool_, 2, 4)
                    np.equal(index[windows], number, out=flag)
                    _keep(work, flag, _scratch(here.shape, np.float32, 3, 4), work)
                np.add(here, work, out=here)
            np.copyto(out[planes, *box[1:]], total, casting="unsafe")

    _split(out.shape[0], part, grain=max(_GRAIN // max(_prod(out.shape[1:]), 1), 1))


def _inside(source, target, bounds):
    """Of one axis's pair of slices the part whose source lies within bounds, counted from there; None if none does."""
    step = source.step
    first = max(-((source.start - bounds.start) // step), 0)  # rounded up
    last = min((bounds.stop - 1 - source.start) // step, target.stop - target.start - 1)
    if last < first:
        return None
    start = source.start + first * step - bounds.start
    return slice(start, start + (last - first) * step + 1, step), slice(target.start + first, target.start + last + 1)


def pool_positions(index, sizes, geometry, out):
    """out = int64 position in the input plane of each window's index."""
    for box, shape, starts in _tiles_of(out.shape):
        first, rest = (_scratch(shape, np.int64, slot, 4) for slot in range(2))
        _corners(sizes, geometry, starts, 0, first)
        np.copyto(rest, index[box])
        _offset_places(rest, sizes, geometry, first, out[box])


def _counts(sizes, outs, geometry, count_include_pad):
    """The number of entries that each window averages, one vector an axis."""
    kernel, stride, padding, _ = geometry
    for size, out, k, s, p in zip(sizes, outs, kernel, stride, padding, strict=True):
        starts = [i * s - p for i in range(out)]
        if count_include_pad:
            yield [min(a + k, size + p) - a for a in starts]
        else:
            yield [min(a + k, size) - max(a, 0) for a in starts]


def _divide(x, sizes, geometry, count_include_pad, divisor, out):
    """out = x divided by each window's count."""
    _divide_by(x, list(_counts(sizes, x.shape[1:], geometry, count_include_pad)), divisor, out)


def _divide_by(x, counts, divisor, out):
    """out = x divided by ``divisor``, or by the product of the counts along each axis; halves are rounded once."""
    wide = _arithmetic(out.dtype)
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


def avg_pool(x, geometry, count_include_pad, divisor, out):
    """out = the mean of each window."""
    if _is_half(out.dtype):
        _average_halves(x, geometry, count_include_pad, divisor, out)
        return

    def run(planes):
        part, result = x[planes], out[planes]
        result.fill(0)
        for _, source, target in _offsets(x.shape[1:], out.shape[1:], geometry):
            here = result[target]
            np.add(here, part[source], out=here)
        _divide(result, x.shape[1:], geometry, count_include_pad, divisor, result)

    _planes(x, out, run)


def _average_halves(x, geometry, count_include_pad, divisor, out):
    """:func:`avg_pool` with sums in float32, a tile of windows at a time, rounded once."""
    offsets = list(_offsets(x.shape[1:], out.shape[1:], geometry))
    counts = list(_counts(x.shape[1:], out.shape[1:], geometry, count_include_pad))

    def part(first, last):
        for tile in _blocks((last - first, *out.shape[1:]), _HALVES):
            box = _box(tile, (last - first, *out.shape[1:]))
            planes = slice(first + box[0].start, first + box[0].stop)
            total = _scratch(tuple([cut.stop - cut.start for cut in box]), np.float32, 0, 4)
            total.fill(0)
            for _, source, target in offsets:
                cuts = [cut for axis in zip(source[1:], target[1:], box[1:], strict=True) if (cut := _within(*axis))]
                if len(cuts) == len(box) - 1:
                    here = total[:, *[c[1] for c in cuts]]
                    np.add(here, x[planes, *[c[0] for c in cuts]], out=here)
            _divide_by(total, [c[cut] for c, cut in zip(counts, box[1:], strict=True)], divisor, total)
            np.copyto(out[planes, *box[1:]], total, casting="unsafe")

    _split(out.shape[0], part, grain=max(_GRAIN // max(_prod(x.shape[1:]), 1), 1))


def _within(source, target, bounds):
    """Of one axis's pair of slices the part whose target lies within bounds, counted from there; None if none does."""
    first, last = max(target.start, bounds.start), min(target.stop, bounds.stop)
    if last <= first:
        return None
    start, step = source.start + (first - target.start) * source.step, source.step
    return slice(start, start + (last - first - 1) * step + 1, step), slice(first - bounds.start, last - bounds.start)


def avg_pool_backward(gy, geometry, count_include_pad, divisor, work, out):
    """out = each window's gradient, divided by its count, added to each of its entries; work is like gy and may be gy."""

    def run(planes):
        result, grads = out[planes], work[planes]
        _divide(gy[planes], out.shape[1:], geometry, count_include_pad, divisor, grads)
        if _is_half(out.dtype):
            return
        result.fill(0)
        for _, source, target in _offsets(out.shape[1:], gy.shape[1:], geometry):
            total = result[source]
            np.add(total, grads[target], out=total)

    _planes(out, gy, run)
    if _is_half(out.dtype):
        _sum_halves(lambda _, windows: work[windows], gy.shape[1:], geometry, None, out)


def adaptive_avg_pool(x, out):
    """out = the mean of each of out's cells."""
    for cell, at, count in _each_cell(x, out):
        target = out[at]
        total = target if not _is_half(out.dtype) else _scratch(target.shape, np.float32)  # sums of halves are not halves
        np.add.reduce(x[cell], axis=tuple(range(1, x.ndim)), dtype=total.dtype, out=total)
        np.multiply(total, 1.0 / count, out=target, casting="unsafe")


def adaptive_avg_pool_backward(gy, out):
    """out = each cell's gradient, divided by its count, added to every entry of the cell."""
    if _is_half(out.dtype):
        _spread_halves(gy, out)
        return
    out.fill(0)
    for cell, at, count in _each_cell(out, gy):
        here = out[cell]
        small = _scratch(here.shape[:1], out.dtype)
        np.multiply(gy[at], 1.0 / count, out=small)
        np.add(here, small.reshape((-1,) + (1,) * (out.ndim - 1)), out=here)


def _spread_halves(gy, out):
    """:func:`adaptive_avg_pool_backward` summed in float32, a tile of out at a time from the cells that reach into it."""
    windows = [_cells(size, n) for size, n in zip(out.shape[1:], gy.shape[1:], strict=True)]
    for tile in _blocks(out.shape, _HALVES):
        box = _box(tile, out.shape)
        total = _scratch(tuple([cut.stop - cut.start for cut in box]), np.float32, 0, 4)
        small = _scratch((len(total), *[1] * (out.ndim - 1)), np.float32, 1, 4)
        total.fill(0)
        for at in np.ndindex(gy.shape[1:]):
            bounds = [windows[axis][i] for axis, i in enumerate(at)]
            pairs = zip(bounds, box[1:], strict=True)
            cuts = [slice(max(a, cut.start) - cut.start, min(b, cut.stop) - cut.start) for (a, b), cut in pairs]
            if all(cut.start < cut.stop for cut in cuts):
                np.copyto(small.reshape(-1), gy[(box[0], *at)])
                np.multiply(small, 1.0 / _prod(stop - start for start, stop in bounds), out=small)
                here = total[(slice(None), *cuts)]
                np.add(here, small, out=here)
        np.copyto(out[tuple(box)], total, casting="unsafe")


def adaptive_max_pool(x, index, out):
    """out = the largest of each cell (nan if there is one); index = its int64 position in the input plane."""
    windows = [_cells(size, n) for size, n in zip(x.shape[1:], out.shape[1:], strict=True)]
    for at in np.ndindex(out.shape[1:]):
        bounds = [windows[a][i] for a, i in enumerate(at)]
        cell = x[(slice(None), *[slice(*b) for b in bounds])]
        inner = int(np.prod(cell.shape[1:]))
        step = min(max((1 << 19) // (inner * x.itemsize), 1), _PLACES)
        for i in range(0, x.shape[0], step):
            planes = slice(i, min(i + step, x.shape[0]))
            best, place = out[(planes, *at)], index[(planes, *at)]
            if inner * x.itemsize <= 1 << 19:
                tile = _scratch(cell[planes].shape, x.dtype, 0, 2)
                np.copyto(tile, cell[planes])
                _largest(tile.reshape(tile.shape[0], inner), best, place)
            else:  # a cell larger than the scratch: row by row
                _largest_by_rows(cell[i], best, place)
            _unravel(place, cell.shape[1:], [b[0] for b in bounds], x.shape[1:])


def unpool(gy, index, out):
    """out = 0, but gy added at each index (a position in the plane)."""
    out.fill(0)
    for plane in range(out.shape[0]):
        np.add.at(out[plane].reshape(-1), index[plane].reshape(-1), gy[plane].reshape(-1))
