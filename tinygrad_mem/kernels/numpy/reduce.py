"""Reductions over axes; ``out`` keeps the reduced axes with size 1. float16 is summed in float32."""

from __future__ import annotations

import builtins as _builtins

import numpy as np

from .tiles import blocks as _blocks
from .tiles import tiled as _tiled


def _wide(x, out):
    """The dtype to sum in."""
    return np.float32 if out.dtype == np.float16 else out.dtype


def sum(x, axes, out):
    """out = sum of x over ``axes``, in out's dtype (float16 in float32)."""
    if x.size == 0 or not axes:
        out.fill(0) if x.size == 0 else np.copyto(out, x, casting="unsafe")
        return
    np.add.reduce(x, axis=axes, dtype=_wide(x, out), keepdims=True, out=out)


def mean(x, axes, out):
    """out = mean of x over ``axes``."""
    sum(x, axes, out)
    count = x.size // out.size if out.size else 0
    np.multiply(out, 1.0 / count if count else np.nan, out=out)


def prod(x, axes, out):
    """out = product of x over ``axes``."""
    np.multiply.reduce(x, axis=axes, dtype=_wide(x, out), keepdims=True, out=out)


def amax(x, axes, out):
    """out = the largest over ``axes``; nan if there is one."""
    np.maximum.reduce(x, axis=axes, keepdims=True, out=out)


def amin(x, axes, out):
    """out = the smallest over ``axes``; nan if there is one."""
    np.minimum.reduce(x, axis=axes, keepdims=True, out=out)


def all(x, axes, out):
    """out = whether all are true over ``axes``."""
    np.logical_and.reduce(x, axis=axes, keepdims=True, out=out)


def any(x, axes, out):
    """out = whether one is true over ``axes``."""
    np.logical_or.reduce(x, axis=axes, keepdims=True, out=out)


def argmax(x, axis, out):
    """out = int64 index of the first largest along ``axis``, which out has not."""
    np.argmax(x, axis=axis, out=out)


def argmin(x, axis, out):
    """out = int64 index of the first smallest along ``axis``, which out has not."""
    np.argmin(x, axis=axis, out=out)


def sum_squares(x, out):
    """out (0-d or one element) = the sum of x**2 over everything, in tiles."""
    total = 0.0
    wide = np.float64 if x.dtype == np.float64 else np.float32
    if x.flags.c_contiguous and x.dtype == wide:
        flat = x.reshape(-1)
        for i in range(0, flat.size, 1 << 20):
            part = flat[i : i + (1 << 20)]
            total += float(np.dot(part, part))
    else:
        from .threads import scratch

        for index in _blocks(x.shape):
            tile = scratch(x[index].shape, wide)
            np.square(x[index], out=tile, casting="unsafe", dtype=wide)
            total += float(np.add.reduce(tile, axis=None))
    out.fill(total)


def deviation_squares(x, mean, axes, work, out):
    """out = the sum over ``axes`` of (x - mean)**2; work has x's shape."""
    np.subtract(x, mean, out=work)
    np.multiply(work, work, out=work)
    sum(work, axes, out)


def var_backward(gy, x, mean, factor, out):
    """out = gy * factor * (x - mean), broadcast."""
    np.subtract(x, mean, out=out)
    np.multiply(out, gy, out=out)
    np.multiply(out, factor, out=out)


def prod_backward(gy, x, y, axes, out):
    """out = gy * the product of the others along ``axes``: y / x, and without dividing where x is 0."""
    np.divide(y, x, out=out)
    np.multiply(out, gy, out=out)
    lines = np.moveaxis(x, axes, tuple(range(x.ndim - len(axes), x.ndim)))
    outs = np.moveaxis(out, axes, tuple(range(x.ndim - len(axes), x.ndim)))
    grads = np.moveaxis(np.broadcast_to(gy, x.shape), axes, tuple(range(x.ndim - len(axes), x.ndim)))
    lead = lines.shape[: x.ndim - len(axes)]
    for index in np.ndindex(lead):
        values = lines[index]
        zeros = np.argwhere(values == 0) if not values.all() else ()
        if len(zeros) == 0:
            continue
        outs[index][...] = 0
        if len(zeros) == 1:
            at = tuple(zeros[0])
            rest = 1.0
            for position in np.ndindex(values.shape):
                if position != at:
                    rest *= float(values[position])
            outs[index][at] = rest * float(grads[index][at])


def extremum_share(gy, x, y, axes, count, out):
    """out = gy shared evenly among the elements of x that equal y; count is a buffer of y's shape."""
    np.equal(x, y, out=out, casting="unsafe")
    sum(out, axes, count)
    np.divide(out, count, out=out)
    np.multiply(out, gy, out=out)


def logsumexp(x, axes, top, out):
    """out = ln of the sum of e**x over ``axes``; top is a buffer of out's shape."""
    np.maximum.reduce(x, axis=axes, keepdims=True, out=top)
    np.copyto(top, 0, where=np.isinf(top))
    _sum_exp(x, top, axes, out)
    np.log(out, out=out)
    np.add(out, top, out=out)


def _sum_exp(x, top, axes, out):
    """out = sum over ``axes`` of e**(x - top), one slab at a time."""
    out.fill(0)
    from .threads import scratch

    spread = np.broadcast_to(top, x.shape)
    for index in _blocks(x.shape, 1 << 15):
        part = x[index]
        tile = scratch(part.shape, out.dtype)
        np.subtract(part, spread[index], out=tile)
        np.exp(tile, out=tile)
        where = _reduced(index, axes, x.ndim)
        kept = tile.reshape(_full(tile.shape, index, x.ndim))
        np.add(out[where], np.add.reduce(kept, axis=axes, keepdims=True), out=out[where])


def _full(shape, index, ndim):
    """The shape of a block with the axes that were indexed by a number put back."""
    if index == (...,):
        return shape
    lead = _builtins.sum(1 for i in index if isinstance(i, int))
    return (1,) * lead + shape


def _reduced(index, axes, ndim):
    """Where the sums of a block go: its index, with reduced axes whole."""
    if index == (...,):
        return index
    full = [slice(i, i + 1) if isinstance(i, int) else i for i in index] + [slice(None)] * (ndim - len(index))
    return _builtins.tuple(slice(None) if a in axes else i for a, i in enumerate(full))


def logsumexp_backward(gy, x, y, out):
    """out = gy * e**(x - y), broadcast."""

    def run(o, gy, x, y, t):
        np.subtract(x, y, out=t)
        np.exp(t, out=t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, np.broadcast_to(y, out.shape), temps=1)


def norm_backward(gy, x, y, out):
    """out = gy * x / y, 0 where y is 0."""

    def run(o, gy, x, y, t, flag):
        flag = flag.view(np.bool_).reshape(-1)[: t.size].reshape(t.shape)
        np.divide(x, y, out=t)
        np.equal(y, 0, out=flag)
        np.copyto(t, 0, where=flag)
        np.multiply(gy, t, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, np.broadcast_to(y, out.shape), temps=2)
