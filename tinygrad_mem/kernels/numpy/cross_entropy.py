"""Cross-entropy over the middle axis of (outer, class, inner) arrays: tiles of whole lines, no copy of the scores."""

from itertools import product

import numpy as np

from ...errors import DimensionError
from ..formula import formula
from .fast.lines import LINES, pieces, stat, statistics, sum_lines, sum_powers
from .fast.lines import lines as _lines
from .fast.targets import positions, subtract_at, total_weight, weights
from .fast.threads import scratch
from .fast.tiles import cuts

_HUGE = 64.0  # beyond it, the rounding of a logarithm exceeds that of a softmax


def check_target(target, classes, ignore):
    """Refuse class indices outside of ``range(classes)`` other than ``ignore``.

    Raises:
        DimensionError: with the first of them.
    """
    if target.size == 0:
        return
    if np.minimum.reduce(target, axis=None) >= 0 and np.maximum.reduce(target, axis=None) < classes:
        return
    for value in target.flat:
        if value != ignore and not 0 <= value < classes:
            raise DimensionError(f"Target {value} is out of bounds. There are {classes} classes: expected 0 to {classes - 1}.")


def _of_target(target, weight, ignore):
    """The class weight of each target, 0 where ignored."""
    kept = target != ignore
    return kept * (1.0 if weight is None else weight[np.where(kept, target, 0)])


def _is_target(classes, target):
    """True where a class is the target: (outer, classes, inner)."""
    return np.arange(classes)[:, None] == target[:, None]


def _target_weight(target, weight, ignore, smoothing):
    total = np.sum(_of_target(target, weight, ignore))
    return np.where(smoothing and not total, np.nan, total)


@formula(_target_weight)
def target_weight(target, weight, ignore, smoothing, out):
    """out (0-d) = the sum of the weights of all targets that are not ignored.

    With a share of the loss in ``smoothing`` a sum of 0 is nan: one of the two terms that it divides is 0 / 0.
    """
    total = 0.0
    for row in [target.reshape(-1)] if target.flags.c_contiguous else target:
        for i in range(0, row.size, LINES):
            w = weights(weight, row[i : i + LINES], ignore, np.float64 if weight is None else weight.dtype, 5)
            total += float(np.add.reduce(w, dtype=np.float64))
    out.fill(np.nan if smoothing and not total else total)


@formula(lambda x: {"lse": np.log(np.sum(np.exp(x), axis=1))})
def log_sum_exp(x, lse):
    """lse (outer, inner) = ln of the sum of e**x over the classes."""

    def run(a, b):
        top, total = statistics(x[a, :, b], lse.dtype)
        np.log(total, out=total)
        np.add(total, top, out=lse[a, None, b])

    _lines(x.shape, run)


def _is_huge(lse):
    """True if a number is nan, or so far from 0 that its rounding matters, or that its power of e overflows."""
    return not (np.minimum.reduce(lse, axis=None) >= -_HUGE and np.maximum.reduce(lse, axis=None) <= _HUGE)


def _cross_entropy(x, target, weight, ignore, smoothing):
    lse = np.log(np.sum(np.exp(x), axis=1))
    logs = x - lse[:, None]
    w = np.ones(x.shape[1]) if weight is None else weight
    even = smoothing / x.shape[1] * np.sum(w[:, None] * logs, axis=1)
    chosen = np.sum(logs * _is_target(x.shape[1], target), axis=1)
    rows = -_of_target(target, weight, ignore) * (1 - smoothing) * chosen - even
    return {"lse": lse, "rows": np.where(target == ignore, 0, rows)}


@formula(_cross_entropy)
def cross_entropy(x, target, weight, ignore, smoothing, lse, rows):
    """lse = ln of the sum of e**x over the classes; rows = the loss of each line, 0 where ignored; both (outer, inner).

    rows = weight[t] * (1 - smoothing) * (lse - x[t]) + smoothing / classes * sum of weight * (lse - x).
    """
    wide = lse.dtype

    def pick(tile, goal, piece, picked):
        at, out = positions(goal, piece, ignore, x.shape[1])
        found = np.take(tile.reshape(-1), at, out=scratch(goal.shape, wide, 5, 8), mode="clip")
        np.copyto(picked, found, where=np.logical_not(out, out=out))  # x[t] - top

    def run(a, b):
        part, goal, picked = x[a, :, b], target[a, b], rows[a, b]
        top, total, smooth = (stat(part, wide, slot) for slot in (2, 3, 7))
        np.maximum.reduce(part, axis=1, keepdims=True, out=top)
        total.fill(0)
        smooth.fill(0)
        for piece in pieces(part):
            cut = part[:, piece]
            tile = scratch(cut.shape, wide, 0, 8)
            np.subtract(cut, top, out=tile, dtype=wide)
            pick(tile, goal, piece, picked)
            if smoothing:
                if weight is not None:
                    np.multiply(tile, weight[piece, None], out=tile)
                sum_lines(tile, smooth)
                if weight is not None:
                    np.subtract(cut, top, out=tile, dtype=wide)  # again
            np.exp(tile, out=tile)
            sum_lines(tile, total)
        np.log(total, out=total)
        np.add(total, top, out=lse[a, None, b])
        _finish(picked, goal, total, smooth)

    heavy = total_weight(weight, x.shape[1])

    def _finish(picked, goal, total, smooth):
        np.subtract(total[:, 0], picked, out=picked)  # lse - x[t]
        w = weights(weight, goal, ignore, wide, 5)
        np.multiply(picked, w, out=picked)
        skip = scratch(goal.shape, np.bool_, 6, 8)  # as weights left it
        if smoothing:
            np.multiply(total, heavy, out=total)
            np.subtract(total, smooth, out=smooth)  # which was the sum of weight * (x - top)
            np.multiply(smooth, smoothing / x.shape[1], out=smooth)
            np.multiply(picked, 1 - smoothing, out=picked)
            np.add(picked, smooth[:, 0], out=picked)
        np.copyto(picked, 0, where=skip)

    _lines(x.shape, run, wide.itemsize)


def _cross_entropy_backward(gy, x, lse, target, weight, ignore, smoothing, norm, first, classes):
    classes = x.shape[1] if classes is None else classes
    own = slice(first, first + x.shape[1])  # of all classes, those in x
    w = np.ones(classes) if weight is None else weight
    even = smoothing / classes * w[:, None]
    goal = (1 - smoothing) * _of_target(target, weight, ignore)[:, None]
    gx = np.exp(x - lse[:, None]) * (goal + np.sum(even)) - goal * _is_target(classes, target)[:, own] - even[own]
    g = gy if norm is None else gy / norm
    return (g[:, None] if g.ndim else g) * gx * (target != ignore)[:, None]


@formula(_cross_entropy_backward)
def cross_entropy_backward(gy, x, lse, target, weight, ignore, smoothing, norm, out, first=0, classes=None):
    """out = gy / norm * d rows / dx: softmax less one-hot, weighted; ``norm`` is ``None`` or a 0-d array.

    gy is (outer, inner) or 0-d. x may hold part of all ``classes`` only, from ``first`` on; lse and weight are of all. out may
    be x.
    """
    wide = lse.dtype
    classes = x.shape[1] if classes is None else classes
    heavy = total_weight(weight, classes) if smoothing else None
    factor = 1.0 if norm is None else 1.0 / float(norm) if float(norm) else np.inf
    even = smoothing / classes

    def run(a, b):
        goal = target[a, b]
        g = stat(x[a, :, b], wide, 2)
        w = weights(weight, goal, ignore, wide, 3)
        scale = stat(x[a, :, b], wide, 7)
        np.multiply(gy[a, b] if gy.ndim else gy, factor, out=g[:, 0], casting="unsafe")
        np.multiply(w, 1 - smoothing, out=w)
        skip = scratch(goal.shape, np.bool_, 6, 8)
        np.copyto(g[:, 0], 0, where=skip)
        np.multiply(w, g[:, 0], out=w)  # what is taken away at the target
        if smoothing:
            np.multiply(g, heavy * even, out=scale)
            np.add(scale, w[:, None], out=scale)  # what the softmax is multiplied by
        else:
            np.copyto(scale, w[:, None])
        huge, left = _is_huge(lse[a, b]), 1
        if not huge:
            left = np.exp(lse[a, None, b], out=stat(x[a, :, b], wide, 4))
        elif x.shape[1] == classes:
            left = stat(x[a, :, b], wide, 4)
            sum_powers(x[a, :, b], lse[a, None, b], left)
        np.divide(scale, left, out=scale)
        np.multiply(g, even, out=g)
        for piece in pieces(x[a, :, b]):
            cut, result = x[a, piece, b], out[a, piece, b]
            direct = result.dtype == wide and result.flags.c_contiguous
            tile = result if direct else scratch(cut.shape, wide, 0, 8)
            if huge:
                cut = np.subtract(cut, lse[a, None, b], out=tile, dtype=wide)
            np.exp(cut, out=tile, dtype=wide)
            np.multiply(tile, scale, out=tile)
            own = slice(first + piece.start, first + piece.stop)
            if smoothing:
                _subtract_even(tile, g, None if weight is None else weight[own])
            at, missing = positions(goal, own, ignore, classes)
            subtract_at(tile.reshape(-1), at, missing, w)
            if not direct:
                np.copyto(result, tile, casting="unsafe")

    _lines(x.shape, run, wide.itemsize)


def _subtract_even(tile, g, weight):
    """tile -= g * weight, broadcast: the weights of its classes, ``None`` for 1."""
    if weight is None:
        np.subtract(tile, g, out=tile)
    elif tile.shape[1] < tile.shape[0] * tile.shape[2]:
        for c in range(weight.size):
            more = scratch(g.shape, tile.dtype, 5, 8)
            np.multiply(g, weight[c], out=more)
            np.subtract(tile[:, c : c + 1], more, out=tile[:, c : c + 1])
    else:
        for (i, j), some in product(np.ndindex(tile.shape[0], tile.shape[2]), cuts(0, weight.size, LINES)):
            more = scratch(weight[some].shape, tile.dtype, 5, 8)
            np.multiply(weight[some], g[i, 0, j], out=more)
            np.subtract(tile[i, some, j], more, out=tile[i, some, j])


@formula(lambda rows, norm: np.sum(rows) / (1 if norm is None else norm))
def scaled_sum(rows, norm, out):
    """out (0-d) = the sum of rows over ``norm``: ``None``, a number, or a 0-d array."""
    total = np.add.reduce(rows, axis=None, dtype=np.float64)
    divisor = 1.0 if norm is None else float(norm)
    out.fill(total / divisor if divisor else total / np.float64(divisor))
