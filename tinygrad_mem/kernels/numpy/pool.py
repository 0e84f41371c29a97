"""Pooling without windows: a loop over the offsets in the kernel, each a strided view of the input, in chunks of planes.

``geometry`` is (kernel, stride, padding, dilation), each a tuple with a number a spatial axis. x is (planes, *sizes), out is
(planes, *output sizes).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from .threads import scratch as _scratch
from .threads import split as _split
from .tiles import keep as _keep

_TILE = 1 << 16


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
    size = max(int(np.prod(x.shape[1:])), int(np.prod(out.shape[1:])), 1)
    step = max(_TILE // size, 1)

    def part(start, stop):
        for i in range(start, stop, step):
            run(slice(i, min(i + step, stop)))

    _split(x.shape[0], part, grain=max((1 << 16) // size, 1))


def _flag(shape):
    """A bool scratch for one chunk; larger planes than the scratch are cut by the caller."""
    return _scratch(shape, np.bool_, 0, 2)


def _rows(target, limit=1 << 16):
    """Cuts of a chunk's first spatial axis that keep bool scratch within its bounds."""
    rows = target.shape[1] if target.ndim > 1 else 1
    step = max(limit // max(target.size // max(rows, 1), 1), 1)
    for i in range(0, rows, step):
        yield (slice(None), slice(i, i + step)) if target.ndim > 1 else (slice(None),)


def max_pool(x, geometry, index, out):
    """out = the largest in each window (nan if there is one); index (or None) = the number of its offset, the first if several."""

    def run(planes):
        part, result = x[planes], out[planes]
        low = -np.inf if out.dtype.kind == "f" else np.iinfo(out.dtype).min
        result.fill(low)
        which = None if index is None else index[planes]
        if which is not None:
            which.fill(0)
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

    _planes(x, out, run)


def max_pool_backward(gy, index, geometry, out):
    """out = gy at the place that each window's index names, added up where windows overlap, 0 elsewhere."""
    kernel, stride, padding, dilation = geometry
    apart = all(s >= (k - 1) * d + 1 for k, s, d in zip(kernel, stride, dilation, strict=True))
    covered = kernel == stride and padding == (0,) * len(kernel) and all(
        size == n * k for size, n, k in zip(out.shape[1:], gy.shape[1:], kernel, strict=True)
    )

    def run(planes):
        result, grads, which = out[planes], gy[planes], index[planes]
        if not covered:
            result.fill(0)
        for number, source, target in _offsets(out.shape[1:], gy.shape[1:], geometry):
            values, places, total = grads[target], which[target], result[source]
            for cut in _rows(places):
                flag = _flag(places[cut].shape)
                np.equal(places[cut], number, out=flag)
                work = _scratch(flag.shape, out.dtype, 1, 2)
                if apart:
                    _keep(values[cut], flag, work, total[cut])
                else:
                    _keep(values[cut], flag, work, work)
                    np.add(total[cut], work, out=total[cut])

    _planes(out, gy, run)


def pool_positions(index, sizes, geometry, out):
    """out = int64 position in the input plane of each window's index."""
    kernel, stride, padding, dilation = geometry
    out.fill(0)
    rest = np.array(index, dtype=np.int64)
    offsets = []
    for k in reversed(kernel):
        offsets.append(rest % k)
        rest //= k
    for axis, (offset, s, p, d, size) in enumerate(
        zip(reversed(offsets), stride, padding, dilation, sizes, strict=True), start=1
    ):
        grid = np.arange(index.shape[axis]).reshape([-1 if i == axis else 1 for i in range(index.ndim)])
        np.multiply(out, size, out=out)
        np.add(out, grid * s - p + offset * d, out=out)


def _counts(sizes, outs, geometry, count_include_pad):
    """How many entries each window averages, one vector an axis."""
    kernel, stride, padding, _ = geometry
    for size, out, k, s, p in zip(sizes, outs, kernel, stride, padding, strict=True):
        starts = [i * s - p for i in range(out)]
        if count_include_pad:
            yield [min(a + k, size + p) - a for a in starts]
        else:
            yield [min(a + k, size) - max(a, 0) for a in starts]


def _divide(x, sizes, geometry, count_include_pad, divisor, out):
    """out = x divided by each window's count."""
    outs = x.shape[1:]
    if divisor is not None:
        np.multiply(x, 1.0 / divisor, out=out)
        return
    counts = list(_counts(sizes, outs, geometry, count_include_pad))
    if all(c == counts[i][0] for i in range(len(counts)) for c in counts[i]):
        np.multiply(x, 1.0 / int(np.prod([c[0] for c in counts])), out=out)
        return
    np.copyto(out, x)
    for axis, c in enumerate(counts, start=1):
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        np.divide(out, np.array(c, dtype=out.dtype).reshape(shape), out=out)


def avg_pool(x, geometry, count_include_pad, divisor, out):
    """out = the mean of each window."""

    def run(planes):
        part, result = x[planes], out[planes]
        result.fill(0)
        for _, source, target in _offsets(x.shape[1:], out.shape[1:], geometry):
            total = result[target]
            np.add(total, part[source], out=total)
        _divide(result, x.shape[1:], geometry, count_include_pad, divisor, result)

    _planes(x, out, run)


def avg_pool_backward(gy, geometry, count_include_pad, divisor, work, out):
    """out = each window's gradient, divided by its count, added to every entry of the window; work has gy's shape and may be gy."""

    def run(planes):
        result, grads = out[planes], work[planes]
        _divide(gy[planes], out.shape[1:], geometry, count_include_pad, divisor, grads)
        result.fill(0)
        for _, source, target in _offsets(out.shape[1:], gy.shape[1:], geometry):
            total = result[source]
            np.add(total, grads[target], out=total)

    _planes(out, gy, run)


def _cells(size, out):
    """Adaptive pooling's windows along one axis: start and stop of each output."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def adaptive_avg_pool(x, out):
    """out = the mean of each of out's cells."""
    windows = [_cells(size, n) for size, n in zip(x.shape[1:], out.shape[1:], strict=True)]
    for at in np.ndindex(out.shape[1:]):
        cut = (slice(None), *[slice(*windows[a][i]) for a, i in enumerate(at)])
        count = int(np.prod([windows[a][i][1] - windows[a][i][0] for a, i in enumerate(at)]))
        target = out[(slice(None), *at)]
        np.add.reduce(x[cut], axis=tuple(range(1, x.ndim)), out=target)
        np.multiply(target, 1.0 / count, out=target)


def adaptive_avg_pool_backward(gy, out):
    """out = each cell's gradient, divided by its count, added to every entry of the cell."""
    windows = [_cells(size, n) for size, n in zip(out.shape[1:], gy.shape[1:], strict=True)]
    out.fill(0)
    small = _scratch((out.shape[0],), out.dtype)
    for at in np.ndindex(gy.shape[1:]):
        cut = (slice(None), *[slice(*windows[a][i]) for a, i in enumerate(at)])
        count = int(np.prod([windows[a][i][1] - windows[a][i][0] for a, i in enumerate(at)]))
        np.multiply(gy[(slice(None), *at)], 1.0 / count, out=small)
        np.add(out[cut], small.reshape((-1,) + (1,) * (out.ndim - 1)), out=out[cut])


def adaptive_max_pool(x, index, out):
    """out = the largest of each cell; index = its int64 position in the input plane."""
    windows = [_cells(size, n) for size, n in zip(x.shape[1:], out.shape[1:], strict=True)]
    for at in np.ndindex(out.shape[1:]):
        bounds = [windows[a][i] for a, i in enumerate(at)]
        cut = x[(slice(None), *[slice(*b) for b in bounds])]
        for plane in range(x.shape[0]):
            place = np.unravel_index(int(np.argmax(cut[plane])), cut.shape[1:])
            out[(plane, *at)] = cut[(plane, *place)]
            whole = [b[0] + p for b, p in zip(bounds, place, strict=True)]
            index[(plane, *at)] = np.ravel_multi_index(whole, x.shape[1:])


def unpool(gy, index, out):
    """out = 0, but gy added at each index (a position in the plane)."""
    out.fill(0)
    for plane in range(out.shape[0]):
        np.add.at(out[plane].reshape(-1), index[plane].reshape(-1), gy[plane].reshape(-1))
