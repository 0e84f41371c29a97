"""Running sums, products and extrema along an axis. ``reverse`` runs from the end. float32 is summed in float64."""

import numpy as np

from ...dtypes import is_floating
from ..formula import formula
from .fast.threads import GRAIN, count_up, scratch, split
from .fast.tiles import blocks

_TILE = 1 << 15


def _mirrored(x, axis, reverse):
    return x[(slice(None),) * axis + (slice(None, None, -1),)] if reverse else x


def _run(ufunc, x, axis, out):
    """ufunc.accumulate, of float32 in float64 and of halves in float32: a million roundings in a row would add up."""
    wide = {2: np.float32, 4: np.float64}.get(out.dtype.itemsize) if is_floating(out.dtype) else None
    if not out.size:
        return
    if wide is None:
        _shared(lambda x, out: ufunc.accumulate(x, axis=axis, dtype=out.dtype, out=out), axis, x, out)
    else:
        _shared(lambda x, out: _in_tiles(ufunc, x, axis, out, wide), axis, x, out)


def _in_tiles(ufunc, x, axis, out, wide):
    """ufunc.accumulate in ``wide``; the lines of a tile go on where those before them ended."""
    xs, outs = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
    n = xs.shape[-1]
    for index in blocks(xs.shape[:-1], max(_TILE // n, 1)):
        lines, results = xs[index], outs[index]
        last = scratch((*lines.shape[:-1], 1), wide, 0, 4)
        for i in range(0, n, _TILE):
            part = lines[..., i : i + _TILE]
            tile, total = scratch(part.shape, wide, 1, 4), scratch(part.shape, wide, 2, 4)
            np.copyto(tile, part)
            if i:
                ufunc(tile[..., :1], last, out=tile[..., :1])
            ufunc.accumulate(tile, axis=-1, out=total)
            np.copyto(last, total[..., -1:])
            np.copyto(results[..., i : i + _TILE], total, casting="unsafe")


def _shared(run, axis, *arrays):
    """``run(*parts)`` of the arrays, cut along the longest other axis for several cores."""
    first = arrays[0]
    other = max((a for a in range(first.ndim) if a != axis), key=first.shape.__getitem__, default=None)
    if other is None or first.size < 2 * GRAIN:
        run(*arrays)
        return
    lead = (slice(None),) * other
    grain = max(GRAIN // (first.size // first.shape[other]), 1)
    split(first.shape[other], lambda i, j: run(*[a[(*lead, slice(i, j))] for a in arrays]), grain=grain)


@formula(lambda x, axis, reverse: np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis))
def cumsum(x, axis, reverse, out):
    """out = running sums of x along ``axis``, from +0."""
    sums = _mirrored(out, axis, reverse)
    _run(np.add, _mirrored(x, axis, reverse), axis, sums)
    if is_floating(out.dtype) and not np.logical_and.reduce(np.moveaxis(sums, axis, 0)[:1], axis=None):  # it may be -0
        np.add(out, 0, out=out)


@formula(lambda x, axis: np.cumprod(x, axis))
def cumprod(x, axis, out):
    """out = running products of x along ``axis``."""
    _run(np.multiply, x, axis, out)


def _cumprod_backward(gy, x, axis):
    gy, x = np.moveaxis(gy, axis, -1), np.moveaxis(x, axis, -1)
    gx = np.empty_like(x)
    for i in range(x.shape[-1]):
        others = x.copy()
        others[..., i] = 1
        gx[..., i] = np.sum((gy * np.cumprod(others, -1))[..., i:], -1)
    return np.moveaxis(gx, -1, axis)


@formula(_cumprod_backward)
def cumprod_backward(gy, x, y, axis, work, out):
    """out_i = the sum over k >= i of gy_k * y_k / x_i, by another way in lines with a 0; work has x's shape."""
    np.multiply(gy, y, out=work)
    cumsum(work, axis, True, out)
    np.divide(out, x, out=out)
    if np.logical_and.reduce(x, axis=None):
        return
    lines, outs, grads, works = [np.moveaxis(a, axis, -1) for a in (x, out, gy, work)]
    for index in np.ndindex(lines.shape[:-1]):
        if not np.logical_and.reduce(lines[index]):
            _through_zero(grads[index], lines[index], works[index], outs[index])


def _through_zero(g, x, work, out):
    """A line with a 0 at z: places before z are right already, z gets what follows up to the next 0, later ones get 0."""
    z = _first_zero(x, 0)
    part = slice(z, _first_zero(x, z + 1))
    here = work[part]
    np.copyto(here, x[part])
    here[:1].fill(1)
    np.multiply.accumulate(here, out=here)
    np.multiply(here, g[part], out=here)
    before = np.multiply.reduce(x[:z], dtype=np.float64)
    out[z:].fill(0)
    out[z] = before * np.add.reduce(here, dtype=np.float64)


def _first_zero(x, start):
    """The place of the first 0 from ``start`` on in a line; its length where there is none."""
    for i in range(start, len(x), _TILE):
        flag = scratch(x[i : i + _TILE].shape, np.bool_, 0, 4)
        np.equal(x[i : i + _TILE], 0, out=flag)
        place = int(flag.argmax())
        if flag[place]:
            return i + place
    return len(x)


def _cumulative_extremum(x, axis, largest):
    best = (np.maximum if largest else np.minimum).accumulate(x, axis)
    places = np.moveaxis(np.broadcast_to(np.arange(x.shape[axis]), np.moveaxis(x, axis, -1).shape), -1, axis)
    return {"out": best, "index": np.maximum.accumulate(np.where(x == best, places, 0), axis)}


@formula(_cumulative_extremum)
def cumulative_extremum(x, axis, largest, out, index):
    """out = the running largest (or smallest), index = where it was seen last; nan stays."""
    if out.size == 0:
        return
    (np.maximum if largest else np.minimum).accumulate(x, axis=axis, out=out)
    xs, outs, places = [np.moveaxis(a, axis, -1) for a in (x, out, index)]
    n = xs.shape[-1]
    for block in blocks(xs.shape[:-1], max(_TILE // n, 1)):
        line, best, place = xs[block], outs[block], places[block]
        for i in range(0, n, _TILE):
            cut = (..., slice(i, i + _TILE))
            seen, flag = scratch(line[cut].shape, np.int64, 0, 4), scratch(line[cut].shape, np.bool_, 1, 4)
            position = count_up(i, 1, line[cut].shape[-1], 2, 4)
            np.equal(line[cut], best[cut], out=flag)
            np.multiply(flag, position, out=seen)
            if is_floating(x.dtype):
                np.isnan(line[cut], out=flag)
                np.copyto(seen, position, where=flag)
            if i:
                np.maximum(seen[..., :1], place[..., i - 1 : i], out=seen[..., :1])
            np.maximum.accumulate(seen, axis=-1, out=place[cut])
