"""Losses. Arrays of logits are (n, classes, d), contiguous; those of rows are (n, d). Statistics and indices live in scratch."""

from __future__ import annotations

import numpy as np

from .softmax import _slabs, _statistic, _wide
from .threads import scratch as _scratch
from .tiles import tiled as _tiled

_ROWS = 1 << 13  # rows that are indexed at once


def cross_entropy_statistics(x, axis, out):
    """out (size 1 at axis) = max + ln(sum(e**(x - max))) along axis."""

    def run(ax, x, o):
        top = _statistic(x.shape, _wide(x.dtype), 0)
        np.maximum.reduce(x, axis=-1, keepdims=True, out=top)
        total = _statistic(x.shape, _wide(x.dtype), 2)
        total.fill(0)
        most = max((1 << 15) // max(x.size // max(x.shape[-1], 1), 1), 1)
        for i in range(0, x.shape[-1], most):
            part = x[..., i : i + most]
            work = _scratch(part.shape, total.dtype, 1, 4)
            np.subtract(part, top, out=work)
            np.exp(work, out=work)
            piece = _scratch(total.shape, total.dtype, 3, 4)
            np.add.reduce(work, axis=-1, keepdims=True, out=piece)
            np.add(total, piece, out=total)
        np.log(total, out=total)
        np.add(total, top, out=o, casting="unsafe")

    _slabs(x, axis, run, out)


def _picks(x, target, ignore):
    """Chunks of rows: the range, where each row's target lies in the flat x, the class, and whether it counts."""
    n, classes, d = x.shape
    flat_target = target.reshape(-1)
    for i in range(0, flat_target.size, _ROWS):
        t = flat_target[i : i + _ROWS]
        keep = _scratch(t.shape, np.bool_, 0, 8)
        safe, place, column = (_scratch(t.shape, np.int64, slot, 8) for slot in (1, 2, 3))
        np.not_equal(t, ignore, out=keep)
        np.multiply(t, keep, out=safe)
        place.fill(1)
        np.add.accumulate(place, out=place)
        np.add(place, i - 1, out=place)  # the row's number
        if d == 1:
            np.multiply(place, classes, out=place)
            np.add(place, safe, out=place)
        else:
            np.remainder(place, d, out=column)
            np.floor_divide(place, d, out=place)
            np.multiply(place, classes, out=place)
            np.add(place, safe, out=place)
            np.multiply(place, d, out=place)
            np.add(place, column, out=place)
        yield slice(i, i + t.size), place, safe, keep


def _weights(weight, safe, keep, out):
    """out = the class weight of each row, 0 where it does not count."""
    if weight is None:
        np.copyto(out, keep)
    else:
        np.take(weight, safe, out=out, mode="clip")
        np.multiply(out, keep, out=out)


def nll(x, target, weight, ignore, losses, weights):
    """weights = the class weight of each row (0 where ignored); losses = -weight * x[target]."""
    for rows, place, safe, keep in _picks(x, target, ignore):
        loss, w = losses.reshape(-1)[rows], weights.reshape(-1)[rows]
        _weights(weight, safe, keep, w)
        np.take(x.reshape(-1), place, out=loss, mode="clip")
        np.negative(loss, out=loss)
        np.multiply(loss, w, out=loss)
        np.copyto(loss, 0, where=np.logical_not(keep, out=keep))


def nll_backward(gy, target, weight, ignore, out):
    """out = 0 but at each row's target, where it is -gy * weight."""
    out.fill(0)
    for rows, place, safe, keep in _picks(out, target, ignore):
        value = _scratch(keep.shape, out.dtype, 4, 8)
        _weights(weight, safe, keep, value)
        np.multiply(value, gy.reshape(-1)[rows], out=value)
        np.negative(value, out=value)
        out.reshape(-1)[place] = value


def cross_entropy(x, stat, target, weight, ignore, smoothing, losses, weights):
    """weights = the class weight of each row (0 where ignored); losses = the smoothed cross-entropy of each row."""
    classes = x.shape[1]
    if smoothing:  # sum over c of weight[c] * (stat - x[c]), spread over all classes
        if weight is None:
            np.add.reduce(x, axis=1, out=losses)
            total = float(classes)
        else:
            np.matmul(weight[None], x, out=losses[:, None])
            total = float(weight.sum())
    for rows, place, safe, keep in _picks(x, target, ignore):
        loss, w, s = losses.reshape(-1)[rows], weights.reshape(-1)[rows], stat.reshape(-1)[rows]
        picked, even = _scratch(keep.shape, losses.dtype, 4, 8), _scratch(keep.shape, losses.dtype, 5, 8)
        _weights(weight, safe, keep, w)
        np.take(x.reshape(-1), place, out=picked, mode="clip")
        np.subtract(s, picked, out=picked)
        np.multiply(picked, w, out=picked)
        if smoothing:
            np.multiply(s, total, out=even)
            np.subtract(even, loss, out=even)
            np.multiply(even, smoothing / classes, out=even)
            np.multiply(picked, 1 - smoothing, out=picked)
            np.add(picked, even, out=picked)
        np.copyto(loss, picked)
        np.copyto(loss, 0, where=np.logical_not(keep, out=keep))


def cross_entropy_backward(gy, x, stat, target, weight, ignore, smoothing, out):
    """out = the gradient of the logits, for gradients ``gy`` of the rows' losses."""
    classes = x.shape[1]
    total = 0.0 if not smoothing else float(classes) if weight is None else float(weight.sum())
    np.subtract(x, stat[:, None], out=out)
    np.exp(out, out=out)
    for rows, place, safe, keep in _picks(x, target, ignore):
        scale, hot = _scratch(keep.shape, out.dtype, 4, 8), _scratch(keep.shape, out.dtype, 5, 8)
        g = gy.reshape(-1)[rows]
        _weights(weight, safe, keep, hot)
        np.multiply(hot, 1 - smoothing, out=hot)
        np.multiply(keep, smoothing / classes * total, out=scale)
        np.add(scale, hot, out=scale)
        np.multiply(scale, g, out=scale)
        np.multiply(hot, g, out=hot)
        _scale_rows(out, rows, scale)
        if smoothing:
            even = _scratch(keep.shape, out.dtype, 4, 8)
            np.multiply(keep, smoothing / classes, out=even)
            np.multiply(even, g, out=even)
            _lower_rows(out, rows, even, weight)
        flat = out.reshape(-1)
        picked = _scratch(keep.shape, out.dtype, 6, 8)
        np.take(flat, place, out=picked, mode="clip")
        np.subtract(picked, hot, out=picked)
        flat[place] = picked


def _lines(out, rows):
    """(classes, rows) views of ``out`` for a range of rows, with the part of the range that each covers."""
    n, classes, d = out.shape
    if d == 1:
        yield out[rows, :, 0].T, slice(None)
        return
    start = rows.start
    while start < rows.stop:
        i, j = divmod(start, d)
        stop = min(rows.stop, (i + 1) * d)
        yield out[i, :, j : j + stop - start], slice(start - rows.start, stop - rows.start)
        start = stop


def _scale_rows(out, rows, scale):
    """Every class of each row times the row's number."""
    for line, part in _lines(out, rows):
        np.multiply(line, scale[part], out=line)


def _lower_rows(out, rows, even, weight):
    """Every class of each row less the row's number times the class's weight."""
    for line, part in _lines(out, rows):
        for c in range(line.shape[0]):
            w = 1.0 if weight is None else float(weight[c])
            np.subtract(line[c], even[part] if w == 1.0 else even[part] * w, out=line[c])


# --- losses of two tensors: out = the loss of each element, and its derivative by the first tensor times gy


def squared_error(x, y, out):
    """out = (x - y)**2."""

    def run(o, x, y):
        np.subtract(x, y, out=o)
        np.multiply(o, o, out=o)

    _tiled(run, out, x, y)


def squared_error_backward(gy, x, y, out):
    """out = 2 * gy * (x - y)."""

    def run(o, gy, x, y, t):
        np.subtract(x, y, out=t)
        np.multiply(t, 2, out=t)
        np.multiply(t, gy, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, y, temps=1)


def absolute_error(x, y, out):
    """out = |x - y|."""

    def run(o, x, y):
        np.subtract(x, y, out=o)
        np.absolute(o, out=o)

    _tiled(run, out, x, y)


def absolute_error_backward(gy, x, y, out):
    """out = gy * sign(x - y)."""

    def run(o, gy, x, y, t):
        np.subtract(x, y, out=t)
        np.sign(t, out=t)
        np.multiply(t, gy, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, y, temps=1)


def huber(x, y, delta, scale, out):
    """out = scale * (d**2 / 2 where |d| <= delta, else delta * (|d| - delta / 2)), d = x - y."""

    def run(o, x, y, t):
        np.subtract(x, y, out=o)
        np.absolute(o, out=o)
        np.minimum(o, delta, out=t)  # m = min(|d|, delta): m * (|d| - m / 2) is both branches
        np.multiply(t, o, out=o)
        np.multiply(t, t, out=t)
        np.multiply(t, 0.5, out=t)
        np.subtract(o, t, out=o)
        np.multiply(o, scale, out=o)

    _tiled(run, out, x, y, temps=1)


def huber_backward(gy, x, y, delta, scale, out):
    """out = gy * scale * d, with d = x - y cut to [-delta, delta]."""

    def run(o, gy, x, y, t):
        np.subtract(x, y, out=t)
        np.minimum(t, delta, out=t)
        np.maximum(t, -delta, out=t)
        np.multiply(t, scale, out=t)
        np.multiply(t, gy, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, y, temps=1)


def binary_cross_entropy(x, y, out):
    """out = -(y * ln(x) + (1 - y) * ln(1 - x)), logarithms not below -100."""

    def run(o, x, y, t, u):
        np.log(x, out=t)
        np.maximum(t, -100, out=t)
        np.multiply(t, y, out=t)
        np.negative(x, out=u)
        np.log1p(u, out=u)
        np.maximum(u, -100, out=u)
        np.add(t, u, out=t)  # y ln(x) + ln(1 - x)
        np.multiply(u, y, out=u)
        np.subtract(u, t, out=o)

    _tiled(run, out, x, y, temps=2)


def binary_cross_entropy_backward(gy, x, y, out):
    """out = gy * (x - y) / max(x * (1 - x), 1e-12)."""

    def run(o, gy, x, y, t, u):
        np.subtract(1, x, out=t)
        np.multiply(t, x, out=t)
        np.maximum(t, 1e-12, out=t)
        np.subtract(x, y, out=u)
        np.divide(u, t, out=u)
        np.multiply(u, gy, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, y, temps=2)


def bce_with_logits(x, y, positive, out):
    """out = (1 - y) * x + (1 + (p - 1) * y) * softplus(-x); positive is p, an array of x's shape or 1."""

    def run(o, x, y, p, t, u):
        np.negative(x, out=t)
        np.logaddexp(t, 0, out=t)
        np.subtract(p, 1, out=u)
        np.multiply(u, y, out=u)
        np.add(u, 1, out=u)
        np.multiply(t, u, out=t)
        np.subtract(1, y, out=u)
        np.multiply(u, x, out=u)
        np.add(t, u, out=o)

    _tiled(run, out, x, y, positive, temps=2)


def bce_with_logits_backward(gy, x, y, positive, out):
    """out = gy * ((1 - y) - (1 + (p - 1) * y) * sigmoid(-x))."""

    def run(o, gy, x, y, p, t, u):
        np.multiply(x, -0.5, out=t)
        np.tanh(t, out=t)
        np.multiply(t, 0.5, out=t)
        np.add(t, 0.5, out=t)  # sigmoid(-x)
        np.subtract(p, 1, out=u)
        np.multiply(u, y, out=u)
        np.add(u, 1, out=u)
        np.multiply(t, u, out=t)
        np.subtract(1, y, out=u)
        np.subtract(u, t, out=u)
        np.multiply(u, gy, out=o)

    _tiled(run, out, np.broadcast_to(gy, out.shape), x, y, positive, temps=2)
