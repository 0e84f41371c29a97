"""Reductions over axes; ``out`` keeps the reduced axes with size 1. float16 is summed in float32."""

from __future__ import annotations

from math import prod as _prod

import numpy as np

from .blas import single as _single
from .threads import GRAIN as _GRAIN
from .threads import scratch as _scratch
from .threads import split as _split
from .tiles import blocks as _blocks

_TILE = 1 << 15  # elements: a quarter of the scratch in float64
_ONES = {np.dtype(t): np.ones(1 << 12, t) for t in (np.float32, np.float64)}  # for sums by matrix product


def sum(x, axes, out):
    """out = sum of x over ``axes``, in out's dtype (float16 in float32)."""
    _scaled_sum(x, axes, 1.0, out)


def mean(x, axes, out):
    """out = mean of x over ``axes``."""
    count = x.size // out.size if out.size else 0
    _scaled_sum(x, axes, 1.0 / count if count else np.nan, out)


def _scaled_sum(x, axes, scale, out):
    if out.dtype == np.float16:
        _half(x, axes, scale, out)
        return
    if x.size == 0:
        out.fill(0)
    elif not axes:
        np.copyto(out, x, casting="unsafe")
    elif x.size < 1024 or not _fast_sum(x, axes, out):
        np.add.reduce(x, axis=axes, dtype=out.dtype, keepdims=True, out=out)
    if scale != 1.0:
        np.multiply(out, scale, out=out)


def _half(x, axes, scale, out):
    """A part of out that fits the scratch at a time, in float32, rounded once."""
    if out.size <= _TILE:
        tile = _scratch(out.shape, np.float32, 3, 4)
        np.add.reduce(x, axis=axes, dtype=np.float32, keepdims=True, out=tile)
        np.multiply(tile, scale, out=out, casting="unsafe")
        return
    axis = max(range(out.ndim), key=out.shape.__getitem__)
    middle = out.shape[axis] // 2
    for cut in (slice(0, middle), slice(middle, None)):
        key = (slice(None),) * axis + (cut,)
        _half(x[key], axes, scale, out[key])


def _fast_sum(x, axes, out):
    """Sums of contiguous x over neighbouring axes, through BLAS or on several cores; whether it was done."""
    if x.dtype != out.dtype or x.dtype not in _ONES or not (x.flags.c_contiguous and out.flags.c_contiguous):
        return False
    first, last = min(axes), max(axes)
    if last - first + 1 != len(axes):
        return _sum_apart(x, sorted(axes), out)
    rows, n, columns = _prod(x.shape[:first]), _prod(x.shape[first : last + 1]), _prod(x.shape[last + 1 :])
    if rows == 1 and columns == 1:
        return _sum_all(x.reshape(-1), out)
    if columns == 1:
        return _sum_rows(x.reshape(rows, n), out.reshape(rows))
    if n * columns < 64:
        return False
    x, out = x.reshape(rows, n, columns), out.reshape(rows, columns)
    ones = _ONES[x.dtype]
    if n <= ones.size:
        np.matmul(ones[:n], x, out=out)
        return True
    for i in range(rows):
        for j in range(0, n, ones.size):
            part = x[i, j : j + ones.size]
            if j == 0:
                np.matmul(ones[: len(part)], part, out=out[i])
                continue
            for k in range(0, columns, _TILE):  # what comes after the first rows is added through scratch
                piece = _scratch((min(_TILE, columns - k),), x.dtype, 2, 4)
                np.matmul(ones[: len(part)], part[:, k : k + _TILE], out=piece)
                np.add(out[i, k : k + _TILE], piece, out=out[i, k : k + _TILE])
    return True


def _sum_apart(x, axes, out):
    """Sums over axes with others between: over the last run of axes first, where what is left fits the scratch."""
    at = len(axes) - 1
    while axes[at - 1] == axes[at] - 1:
        at -= 1
    inner = tuple(axes[at:])
    shape = tuple(1 if a in inner else n for a, n in enumerate(x.shape))
    if axes[-1] != x.ndim - 1 or _prod(shape) > _TILE // 2:
        return False
    left = _scratch(shape, x.dtype, 1, 4)
    _scaled_sum(x, inner, 1.0, left)
    np.add.reduce(left, axis=tuple(axes[:at]), keepdims=True, out=out)
    return True


_RUN = 1024  # elements that one product sums: as accurate as adding pairs


def _sum_all(flat, out):
    """The sum of everything: sums of runs, those added in pairs, and the parts in float64."""
    total, most = 0.0, _RUN * _TILE
    for i in range(0, flat.size, most):
        part = flat[None, i : i + most]
        _sum_rows(part, out.reshape(1))
        total += out.item()
    if flat.size > most:
        out.fill(total)
    return True


def _sum_rows(x, out):
    """The sum of each row: of runs by matrix product, then of the runs in pairs."""
    rows, n = x.shape
    ones, runs = _ONES[x.dtype], n // _RUN
    if n <= _RUN:
        np.matmul(x, ones[:n], out=out)
        return True
    if runs > _TILE:
        return False
    step = _TILE // runs
    for i in range(0, rows, step):
        part = x[i : i + step]
        sums = _scratch((len(part), runs), x.dtype, 2, 4)
        np.matmul(part[:, : runs * _RUN].reshape(len(part), runs, _RUN), ones[:_RUN], out=sums)
        np.add.reduce(sums, axis=1, out=out[i : i + step])
        if n > runs * _RUN:
            rest = _scratch((len(part),), x.dtype, 3, 4)
            np.matmul(part[:, runs * _RUN :], ones[: n - runs * _RUN], out=rest)
            np.add(out[i : i + step], rest, out=out[i : i + step])
    return True


def prod(x, axes, out):
    """out = product of x over ``axes``."""
    wide = np.float32 if out.dtype == np.float16 else out.dtype
    np.multiply.reduce(x, axis=axes, dtype=wide, keepdims=True, out=out)


def amax(x, axes, out):
    """out = the largest over ``axes``; nan if there is one."""
    _extreme(np.maximum, x, axes, out)


def amin(x, axes, out):
    """out = the smallest over ``axes``; nan if there is one."""
    _extreme(np.minimum, x, axes, out)


def _extreme(ufunc, x, axes, out):
    """NumPy spends a call's time on every line along the last axis: many short lines go column by column instead."""
    n = x.shape[-1] if x.ndim else 0
    short = axes == (x.ndim - 1,) and 1 < n <= 64 and x.size >= 64 * n and x.flags.c_contiguous and out.flags.c_contiguous
    if not short:
        ufunc.reduce(x, axis=axes, keepdims=True, out=out)
        return
    lines, best = x.reshape(-1, n), out.reshape(-1)

    def part(start, stop):
        step = max(_TILE // n, 1)
        for i in range(start, stop, step):
            tile, result = lines[i : min(i + step, stop)], best[i : min(i + step, stop)]
            ufunc(tile[:, 0], tile[:, 1], out=result)
            for j in range(2, n):
                ufunc(result, tile[:, j], out=result)

    _split(len(lines), part, grain=max(_GRAIN // n, 1))


def all(x, axes, out):
    """out = whether all are true over ``axes``."""
    np.logical_and.reduce(x, axis=axes, keepdims=True, out=out)


def any(x, axes, out):
    """out = whether one is true over ``axes``."""
    np.logical_or.reduce(x, axis=axes, keepdims=True, out=out)


def arg_workspace(shape, axis, dtype):
    """Bytes that ``argmax`` and ``argmin`` want: a copy of one line that is not contiguous and longer than a tile."""
    return shape[axis] * dtype.itemsize if shape[axis] > _TILE and axis != len(shape) - 1 else 0


def argmax(x, axis, work, out):
    """out = int64 index of the first largest along ``axis``, which out has not."""
    _argument(np.argmax, x, axis, work, out)


def argmin(x, axis, work, out):
    """out = int64 index of the first smallest along ``axis``, which out has not."""
    _argument(np.argmin, x, axis, work, out)


def _argument(function, x, axis, work, out):
    """NumPy copies all of x unless the line is contiguous: so tiles of lines are copied to scratch instead."""
    if x.flags.c_contiguous and axis == x.ndim - 1:
        function(x, axis=axis, out=out)
        return
    lines = np.moveaxis(x, axis, -1)
    for index in _blocks(out.shape, max(_TILE // lines.shape[-1], 1)):
        part = lines[index]
        tile = _scratch(part.shape, x.dtype, 0, 4) if work is None else work.view(x.dtype)[: part.size].reshape(part.shape)
        np.copyto(tile, part)
        places = _scratch(tile.shape[:-1], np.int64, 1, 4)
        function(tile, axis=-1, out=places)
        np.copyto(out[index], places)


def _fold(x, axes, term, out, wide=None):
    """out = the sum over ``axes`` of ``term(tile, key)``, which fills a scratch tile from the part ``key`` of x.

    ``wide`` is the dtype of the tiles; out must be able to hold partial sums.
    """
    wide = wide or out.dtype
    out.fill(0)

    def add(key):
        tile = _scratch(x[key].shape, wide, 0, 4)
        term(tile, key)
        target = out[_reduced(key, axes)]
        if target.size == tile.size:
            np.add(target, tile.reshape(target.shape), out=target, casting="unsafe")
        else:
            partial = _scratch(target.shape, wide, 1, 4)
            if max(axes) - min(axes) < len(axes):  # else it would use the scratch of ``partial``
                _scaled_sum(tile, axes, 1.0, partial)
            else:
                np.add.reduce(tile, axis=axes, keepdims=True, out=partial)
            np.add(target, partial, out=target, casting="unsafe")

    _over_parts(x, axes, add)


def _over_parts(x, axes, run):
    """``run(key)`` for parts of x of a tile at most; several cores share the longest axis that is not reduced."""
    free = [a for a in range(x.ndim) if a not in axes]
    shared = max(free, key=x.shape.__getitem__, default=None)

    def part(start, stop):
        cut = x if shared is None else x[(slice(None),) * shared + (slice(start, stop),)]
        for index in _blocks(cut.shape, _TILE):
            key = [slice(0, n) for n in cut.shape]
            for a, i in enumerate(() if index == (...,) else index):
                key[a] = slice(i, i + 1) if isinstance(i, int) else slice(i.start, min(i.stop, cut.shape[a]))
            if shared is not None:
                key[shared] = slice(key[shared].start + start, key[shared].stop + start)
            run(tuple(key))

    if shared is None or x.size < 2 * _GRAIN:
        part(0, 0 if shared is None else x.shape[shared])
    else:
        with _single():  # the sums of tiles are matrix products: their threads would be in the way of ours
            _split(x.shape[shared], part, grain=max(_GRAIN // (x.size // x.shape[shared]), 1))


def _reduced(key, axes):
    """Where the part ``key`` of x goes to: all of a reduced axis. An array even of a 0-d one, therefore the dots."""
    return (*[slice(None) if a in axes else k for a, k in enumerate(key)], ...)


def _each(out, run, *arrays, wide=None):
    """``run(out_tile, *array_tiles, scratch)`` block by block; arrays are broadcast to out's shape."""
    wide = wide or (np.float32 if out.dtype == np.float16 else out.dtype)
    spread = [np.broadcast_to(a, out.shape) for a in arrays]

    def one(key):
        target = out[(*key, ...)]
        run(target, *[a[key] for a in spread], _scratch(target.shape, wide, 0, 4))

    _over_parts(out, (), one)


def count_nonzero(x, axes, out):
    """out = how many are not 0 over ``axes``, int64."""

    def term(tile, key):
        np.not_equal(x[key], 0, out=tile)

    _fold(x, axes, term, out, np.int64)


def variance(x, mean, axes, scale, out):
    """out = ``scale`` times the sum over ``axes`` of (x - mean)**2; float16 wants a float32 out."""

    def term(tile, key):
        np.subtract(x[key], mean[_at(mean, key)], out=tile)
        np.multiply(tile, tile, out=tile)

    _fold(x, axes, term, out)
    np.multiply(out, scale, out=out)


def _at(stat, key):
    """The part of a statistic with reduced axes of size 1 that belongs to the part ``key`` of x."""
    return tuple(slice(None) if n == 1 else k for n, k in zip(stat.shape, key, strict=True))


def variance_backward(gy, gmean, x, mean, y, factor, share, out):
    """out = gy * factor * (x - mean) (over 2 y for the deviation, 0 where y is 0) + gmean * share. gy, gmean, y: or None."""

    def run(o, x, mean, gy, gmean, y, t):
        np.subtract(x, mean, out=t)
        np.multiply(t, gy, out=t)
        np.multiply(t, factor, out=t)
        if root:
            np.divide(t, y, out=t)
            np.multiply(t, 0.5, out=t)
            flag = _scratch(t.shape, np.bool_, 1, 4)
            np.equal(y, 0, out=flag)
            np.copyto(t, 0, where=flag)
        if also:
            other = _scratch(t.shape, t.dtype, 2, 4)
            np.multiply(gmean, share, out=other)
            np.add(t, other, out=t)
        np.copyto(o, t, casting="unsafe")

    root, also = y is not None, gmean is not None
    none = _NOTHING
    _each(out, run, x, mean, none if gy is None else gy, none if gmean is None else gmean, none if y is None else y)


_NOTHING = np.zeros((), np.float32)


def prod_backward(gy, x, y, axes, out):
    """out = gy * the product of the others along ``axes``: y / x, and without dividing where x is 0."""

    def run(o, x, y, gy, t):
        np.divide(y, x, out=t)
        np.multiply(t, gy, out=o, casting="unsafe")

    _each(out, run, x, y, gy)
    if not x.size or x.all():
        return
    count = len(axes)
    last = tuple(range(x.ndim - count, x.ndim))
    lines, outs, totals, grads = [np.moveaxis(a, axes, last) for a in (x, out, y, np.broadcast_to(gy, y.shape))]
    for index in np.ndindex(lines.shape[: x.ndim - count]):
        values = lines[(*index, ...)]
        if totals[(*index, *[0] * count)] == 0 or not values.all():
            zeros = np.argwhere(values == 0)
            if len(zeros) == 0:
                continue
            outs[(*index, ...)] = 0
            if len(zeros) == 1:
                rest = np.multiply.reduce(values[values != 0].astype(np.float64))
                outs[(*index, *zeros[0])] = rest * float(grads[(*index, *[0] * count)])


def extremum_share(gy, x, y, axes, count, out):
    """out = gy shared evenly among the elements of x that equal y; count is a buffer of y's shape."""
    np.equal(x, y, out=out, casting="unsafe")
    sum(out, axes, count)
    np.divide(gy, count, out=count)
    np.multiply(out, count, out=out)


def logsumexp(x, axes, top, out):
    """out = ln of the sum of e**x over ``axes``; top is a buffer of out's shape. float16 wants a float32 out."""
    amax(x, axes, top)
    for index in _blocks(top.shape, _TILE):
        flag = _scratch(top[index].shape, np.bool_, 0, 4)
        np.isinf(top[index], out=flag)
        np.copyto(top[index], 0, where=flag)

    def term(tile, key):
        np.subtract(x[key], top[_at(top, key)], out=tile)
        np.exp(tile, out=tile)

    _fold(x, axes, term, out)
    np.log(out, out=out)
    np.add(out, top, out=out)


def logsumexp_backward(gy, x, y, out):
    """out = gy * e**(x - y), broadcast; 0 where y is -inf."""

    def run(o, gy, x, y, t):
        np.subtract(x, y, out=t)
        np.exp(t, out=t)
        flag = _scratch(t.shape, np.bool_, 1, 4)
        np.equal(y, -np.inf, out=flag)
        np.copyto(t, 0, where=flag)
        np.multiply(gy, t, out=o, casting="unsafe")

    _each(out, run, gy, x, y)


def norm(x, axes, p, out):
    """out = the p-norm of x over ``axes``: the sum of abs(x)**p, to the power 1/p. float16 wants a float32 out."""
    if p in (np.inf, -np.inf):
        _extreme_size(x, axes, np.maximum if p > 0 else np.minimum, out)
        return

    def term(tile, key):
        if p == 0:
            np.not_equal(x[key], 0, out=tile, casting="unsafe")
        elif p == 2:
            np.multiply(x[key], x[key], out=tile, dtype=tile.dtype)
        else:
            np.absolute(x[key], out=tile)
            if p != 1:
                np.power(tile, p, out=tile)

    if p != 2 or not _dot(x, out):
        _fold(x, axes, term, out)
    if p == 2:
        np.sqrt(out, out=out)
    elif p not in (0, 1):
        np.power(out, 1.0 / p, out=out)


def _dot(x, out):
    """The sum of squares of everything through BLAS; whether it was done."""
    if out.size != 1 or x.size == 0 or x.dtype not in _ONES or x.dtype != out.dtype or not x.flags.c_contiguous:
        return False
    flat, total = x.reshape(-1), 0.0
    for i in range(0, flat.size, 1 << 16):
        part = flat[i : i + (1 << 16)]
        total += float(np.dot(part, part))
    out.fill(total)
    return True


def _extreme_size(x, axes, ufunc, out):
    """out = the largest (or smallest) abs(x) over ``axes``."""
    out.fill(-np.inf if ufunc is np.maximum else np.inf)

    def one(key):
        tile = _scratch(x[key].shape, out.dtype, 0, 4)
        np.absolute(x[key], out=tile)
        target = out[_reduced(key, axes)]
        partial = _scratch(target.shape, out.dtype, 1, 4)
        ufunc.reduce(tile, axis=axes, keepdims=True, out=partial)
        ufunc(target, partial, out=target)

    _over_parts(x, axes, one)


def norm_backward(gy, x, y, p, out):
    """out = gy times the gradient of the p-norm (a finite p), 0 where y is 0."""

    def run(o, gy, x, y, t):
        if p == 1:
            np.sign(x, out=t)
            np.multiply(gy, t, out=o, casting="unsafe")
            return
        flag = _scratch(t.shape, np.bool_, 2, 4)
        if p == 2:
            np.divide(x, y, out=t)
        else:  # sign(x) * (abs(x) / y)**(p - 1)
            sign = _scratch(t.shape, t.dtype, 1, 4)
            np.absolute(x, out=t)
            np.divide(t, y, out=t)
            np.power(t, p - 1, out=t)
            np.sign(x, out=sign)
            np.equal(sign, 0, out=flag)
            np.multiply(t, sign, out=t)
            np.copyto(t, 0, where=flag)
        np.equal(y, 0, out=flag)
        np.copyto(t, 0, where=flag)
        np.multiply(gy, t, out=o, casting="unsafe")

    _each(out, run, gy, x, y)


def extreme_size_share(gy, x, y, axes, count, out):
    """out = gy * sign(x), shared evenly among the elements whose size is y; count is a buffer of y's shape."""

    def mark(o, x, y, t):
        np.absolute(x, out=t)
        np.equal(t, y, out=o, casting="unsafe")

    def share(o, x, count, t):
        np.sign(x, out=t)
        np.multiply(t, count, out=t)
        np.multiply(o, t, out=o, casting="unsafe")

    _each(out, mark, x, y)
    sum(out, axes, count)
    np.divide(gy, count, out=count)
    _each(out, share, x, count)
