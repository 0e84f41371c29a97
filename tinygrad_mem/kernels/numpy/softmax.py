"""Softmax in slabs: each slab holds whole lines along the axis, its statistics live in scratch."""

from __future__ import annotations

import numpy as np

from .threads import scratch as _scratch
from .threads import split as _split


def _slabs(out, axis, run, *arrays):
    """``run(axis, *views)`` over (outer, line, inner) slabs of all arrays, whole lines each, on several cores."""
    if out.size == 0:
        return
    if out.ndim == 0:
        run(0, *[a.reshape(1) for a in (out, *arrays)])
        return
    moved = [np.moveaxis(a, axis, -1) for a in (out, *arrays)]
    line = max(moved[0].shape[-1], 1)
    if moved[0].ndim == 1:
        run(-1, *moved)
        return
    rows = max((1 << 14) // line, 1)
    lead = moved[0].shape[:-2]

    def part(start, stop):
        for index in np.ndindex(lead):
            for i in range(start, stop, rows):
                run(-1, *[m[index][i : min(i + rows, stop)] for m in moved])

    _split(moved[0].shape[-2], part, grain=max((1 << 16) // line, 1))


def _statistic(shape, dtype, slot):
    return _scratch((*shape[:-1], 1), dtype, slot, 4)


def _wide(dtype):
    return np.float32 if dtype == np.float16 else dtype


def softmax(x, axis, out):
    """out = e**(x - max) / sum."""

    def run(ax, o, x):
        stat = _statistic(x.shape, _wide(x.dtype), 0)
        np.maximum.reduce(x, axis=-1, keepdims=True, out=stat)
        work = o if o.dtype != np.float16 else _scratch(o.shape, np.float32, 1, 4)
        np.subtract(x, stat, out=work)
        np.exp(work, out=work)
        np.add.reduce(work, axis=-1, keepdims=True, out=stat)
        np.divide(work, stat, out=o, casting="unsafe")

    _slabs(out, axis, run, x)


def softmax_backward(gy, y, axis, out):
    """out = y * (gy - sum(gy * y))."""

    def run(ax, o, gy, y):
        stat = _statistic(y.shape, _wide(y.dtype), 0)
        work = _scratch(y.shape, _wide(y.dtype), 1, 4) if y.size <= 1 << 15 else None
        if work is None:  # a line longer than the scratch
            stat[...] = np.einsum("...i,...i->...", gy, y)[..., None]
        else:
            np.multiply(gy, y, out=work)
            np.add.reduce(work, axis=-1, keepdims=True, out=stat)
        np.subtract(gy, stat, out=o, casting="unsafe")
        np.multiply(o, y, out=o)

    _slabs(out, axis, run, gy, y)


def log_softmax(x, axis, out):
    """out = x - max - ln(sum(e**(x - max)))."""

    def run(ax, o, x):
        stat = _statistic(x.shape, _wide(x.dtype), 0)
        np.maximum.reduce(x, axis=-1, keepdims=True, out=stat)
        np.subtract(x, stat, out=o, casting="unsafe")
        total = _statistic(x.shape, _wide(x.dtype), 2)
        _sum_exp(o, total)
        np.log(total, out=total)
        np.subtract(o, total, out=o, casting="unsafe")

    _slabs(out, axis, run, x)


def _sum_exp(x, total):
    """total = sum of e**x along the last axis, in pieces that fit the scratch."""
    total.fill(0)
    most = max((1 << 15) // max(int(np.prod(x.shape[:-1])), 1), 1)
    for i in range(0, x.shape[-1], most):
        part = x[..., i : i + most]
        work = _scratch(part.shape, total.dtype, 1, 4)
        np.exp(part, out=work)
        piece = _scratch(total.shape, total.dtype, 3, 4)
        np.add.reduce(work, axis=-1, keepdims=True, out=piece)
        np.add(total, piece, out=total)


def log_softmax_backward(gy, y, axis, out):
    """out = gy - e**y * sum(gy)."""

    def run(ax, o, gy, y):
        stat = _statistic(y.shape, _wide(y.dtype), 0)
        np.add.reduce(gy, axis=-1, keepdims=True, out=stat)
        most = max((1 << 15) // max(int(np.prod(y.shape[:-1])), 1), 1)
        for i in range(0, y.shape[-1], most):
            cut = (..., slice(i, i + most))
            work = _scratch(y[cut].shape, stat.dtype, 1, 4)
            np.exp(y[cut], out=work)
            np.multiply(work, stat, out=work)
            np.subtract(gy[cut], work, out=o[cut], casting="unsafe")

    _slabs(out, axis, run, gy, y)
