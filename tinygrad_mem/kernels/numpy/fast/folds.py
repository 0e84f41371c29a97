"""Reductions: sums by matrix product, and terms summed tile by tile on several cores.

The terms of a sum are never all in memory: only a tile of them, in the scratch of the running thread.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....dtypes import is_half
from .blas import matmul, single
from .threads import GRAIN, scratch, split
from .tiles import boxes

_TILE = 1 << 16  # elements: a quarter of the scratch in float64
ONES = {np.dtype(t): np.ones(1 << 12, t) for t in (np.float32, np.float64)}  # for sums by matrix product
RUN = 1024  # elements of a line that one product sums, as accurately as pairwise sums
_SHORT, _FEW = 256, 64  # rows and columns up to which one product sums the rows: it adds them one after another


def scaled_sum(x, axes, scale, out):
    """out = ``scale`` times the sum of x over ``axes``, in out's dtype (float16 in float32)."""
    if is_half(out.dtype):
        _half(x, axes, scale, out)
        return
    if x.size == 0:
        out.fill(0)
    elif not axes:
        np.copyto(out, x, casting="unsafe")
    elif x.size < 1024 or not _fast_sum(x, axes, out):
        _sum_plainly(x, axes, out)
    if scale != 1.0:
        np.multiply(out, scale, out=out)


def _sum_plainly(x, axes, out):
    """Sum by NumPy, which adds columns one term after another: long float32 columns are therefore added in float64."""
    if x.dtype != np.float32 or out.dtype != np.float32 or x.size <= RUN * out.size or out.size > _TILE // 2:
        np.add.reduce(x, axis=axes, dtype=out.dtype, keepdims=True, out=out)
        return
    total = scratch(out.shape, np.float64, 3, 4)
    np.add.reduce(x, axis=axes, dtype=np.float64, keepdims=True, out=total)
    np.copyto(out, total, casting="unsafe")


def _half(x, axes, scale, out):
    """Sum half precision in float32 and round once, for a part of out at a time that fits the scratch."""
    if out.size <= _TILE:
        tile = scratch(out.shape, np.float32, 3, 4)
        np.add.reduce(x, axis=axes, dtype=np.float32, keepdims=True, out=tile)
        np.multiply(tile, scale, out=out, casting="unsafe")
        return
    axis = max(range(out.ndim), key=out.shape.__getitem__)
    middle = out.shape[axis] // 2
    for cut in (slice(0, middle), slice(middle, None)):
        key = (slice(None),) * axis + (cut,)
        _half(x[key], axes, scale, out[key])


def _fast_sum(x, axes, out):
    """Sum contiguous x over adjacent axes by BLAS. Returns False if that is not possible."""
    if x.dtype != out.dtype or x.dtype not in ONES or not out.flags.c_contiguous:
        return False
    if not x.flags.c_contiguous:
        turned = x.ndim == 2 and x.T.flags.c_contiguous and len(axes) == 1
        return turned and _fast_sum(x.T, (1 - axes[0],), out.T)
    first, last = min(axes), max(axes)
    if last - first + 1 != len(axes):
        return False
    rows, n, columns = prod(x.shape[:first]), prod(x.shape[first : last + 1]), prod(x.shape[last + 1 :])
    if rows == 1 and columns == 1:
        return _sum_all(x.reshape(-1), out)
    if columns == 1:
        return _sum_rows(x.reshape(rows, n), out.reshape(rows))
    if n * columns < 64:
        return False
    _sum_columns(x.reshape(rows, n, columns), out.reshape(rows, columns))
    return True


def _sum_columns(x, out):
    """The sums of columns: of runs by matrix product, and of the runs in float64."""
    _, n, columns = x.shape
    ones = ONES[x.dtype][: _SHORT if columns < _FEW else RUN]
    if n <= len(ones):
        matmul(ones[:n], x, out)
        return
    width = min(columns, _TILE // 2)
    rows = max(_TILE // 2 // width, 1) * len(ones)
    for part, result in zip(x, out, strict=True):
        for k in range(0, columns, width):
            cut = slice(k, k + width)
            total, more = scratch((2, len(result[cut])), np.float64, 3, 4)
            total.fill(0)
            for j in range(0, n, rows):
                _column_sums(part[j : j + rows, cut], ones, more)
                np.add(total, more, out=total)
            np.copyto(result[cut], total, casting="unsafe")


def _column_sums(x, ones, out):
    """out, of float64 = the sums of the columns of x: as many runs as fit the scratch."""
    runs, rest = divmod(len(x), len(ones))
    sums = scratch((runs + (rest > 0), x.shape[1]), x.dtype, 2, 4)
    if runs:
        matmul(ones, x[: len(x) - rest].reshape(runs, len(ones), -1), sums[:runs])
    if rest:
        matmul(ones[:rest], x[len(x) - rest :], sums[runs])
    np.add.reduce(sums, axis=0, dtype=np.float64, out=out)


def _sum_all(flat, out):
    """The sum of everything: sums of runs, added pairwise, then the parts added in float64."""
    total, most = 0.0, RUN * _TILE
    for i in range(0, flat.size, most):
        part = flat[None, i : i + most]
        _sum_rows(part, out.reshape(1))
        total += out.item()
    if flat.size > most:
        out.fill(total)
    return True


def _sum_rows(x, out):
    """The sum of each row: of runs by matrix product, then pairwise over the runs."""
    rows, n = x.shape
    ones, runs = ONES[x.dtype], n // RUN
    if n <= RUN:
        matmul(x, ones[:n], out)
        return True
    if runs > _TILE:
        return False
    step = _TILE // runs
    for i in range(0, rows, step):
        part = x[i : i + step]
        sums = scratch((len(part), runs), x.dtype, 2, 4)
        matmul(part[:, : runs * RUN].reshape(len(part), runs, RUN), ones[:RUN], sums)
        np.add.reduce(sums, axis=1, out=out[i : i + step])
        if n > runs * RUN:
            rest = scratch((len(part),), x.dtype, 3, 4)
            matmul(part[:, runs * RUN :], ones[: n - runs * RUN], rest)
            np.add(out[i : i + step], rest, out=out[i : i + step])
    return True


def fold(x, axes, term, out, wide=None, ufunc: np.ufunc = np.add, first=0.0):
    """out = the sum over ``axes`` of ``term(tile, key)``, which fills a scratch tile from the part ``key`` of x.

    ``wide`` is the dtype of the tiles; out must be able to hold partial sums. With another ufunc, that of ``first`` and all.
    """
    wide = wide or out.dtype
    out.fill(first)

    def add(key):
        tile = scratch(x[key].shape, wide, 0, 4)
        term(tile, key)
        target = out[reduced(key, axes)]
        if target.size == tile.size:
            ufunc(target, tile.reshape(target.shape), out=target, casting="unsafe")
        else:
            partial = scratch(target.shape, wide, 1, 4)
            if ufunc is not np.add:
                ufunc.reduce(tile, axis=axes, keepdims=True, out=partial)
            elif max(axes) - min(axes) < len(axes):  # else it would use the scratch of ``partial``
                scaled_sum(tile, axes, 1.0, partial)
            else:
                _sum_plainly(tile, axes, partial)
            ufunc(target, partial, out=target, casting="unsafe")

    over_parts(x, axes, add)


def over_parts(x, axes, run):
    """``run(key)`` for parts of x of at most a tile; several cores share the longest axis that is not reduced."""
    free = [a for a in range(x.ndim) if a not in axes]
    shared = max(free, key=x.shape.__getitem__, default=None)

    def part(start, stop):
        cut = x if shared is None else x[(slice(None),) * shared + (slice(start, stop),)]
        for key, _ in boxes(cut.shape, _TILE):
            if shared is not None:
                moved = slice(key[shared].start + start, key[shared].stop + start)
                key = (*key[:shared], moved, *key[shared + 1 :])
            run(key)

    if shared is None or x.size < 2 * GRAIN:
        part(0, 0 if shared is None else x.shape[shared])
    else:
        with single():  # the sums of tiles are matrix products, whose threads would occupy our cores
            split(x.shape[shared], part, grain=max(GRAIN // (x.size // x.shape[shared]), 1))


def reduced(key, axes):
    """The index of the result for the part ``key`` of x: all of a reduced axis. The dots keep a 0-d result an array."""
    return (*[slice(None) if a in axes else k for a, k in enumerate(key)], ...)


def at(stat, key):
    """The part of a statistic with reduced axes of size 1 that belongs to the part ``key`` of x."""
    return tuple(slice(None) if n == 1 else k for n, k in zip(stat.shape, key, strict=True))
