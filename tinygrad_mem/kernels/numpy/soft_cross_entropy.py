"""Cross-entropy whose targets are class probabilities; (outer, class, inner) arrays. As in ``cross_entropy.py``."""

import numpy as np

from ..formula import formula
from .cross_entropy import _is_huge
from .fast.lines import lines as _lines
from .fast.lines import pieces, stat, sum_lines, sum_powers
from .fast.threads import scratch


def _wanted(x, target, weight, smoothing):
    """The smoothed target probabilities, times the weights."""
    return (target * (1 - smoothing) + smoothing / x.shape[1]) * (1 if weight is None else weight[:, None])


def _left_out(x, lse, slot):
    """The sums of e**(x - lse) of whole lines, to broadcast over the classes; ``None`` if they are 1.

    They are 1 up to the rounding of lse, which matters if the scores are huge.
    """
    if not _is_huge(lse):
        return None
    total = stat(x, lse.dtype, slot)
    sum_powers(x, lse[:, None], total)
    return total


def _soft_tiles(x, target, weight, smoothing, lse, run, summed=False):
    """``run(index, wanted, logs, total)`` over pieces of lines: the target probabilities times the weights, ln softmax.

    total is the sum of wanted over all classes of each line, where it is ``summed``.
    """
    wide = lse.dtype

    def wish(a, piece, b):
        wanted = scratch(x[a, piece, b].shape, wide, 0, 8)
        np.multiply(target[a, piece, b], 1 - smoothing, out=wanted, dtype=wide)
        np.add(wanted, smoothing / x.shape[1], out=wanted)
        if weight is not None:
            np.multiply(wanted, weight[piece, None], out=wanted)
        return wanted

    def lines(a, b):
        part = x[a, :, b]
        left, total = _left_out(part, lse[a, b], 7), None
        if left is not None:
            np.log(left, out=left)
        if summed:
            total = stat(part, wide, 4)
            total.fill(0)
            for piece in pieces(part):
                sum_lines(wish(a, piece, b), total)
        for piece in pieces(part):
            logs = scratch(part[:, piece].shape, wide, 2, 8)
            np.subtract(part[:, piece], lse[a, None, b], out=logs, dtype=wide)
            if left is not None:
                np.subtract(logs, left, out=logs)
            run((a, piece, b), wish(a, piece, b), logs, total)

    _lines(x.shape, lines)


def _soft_cross_entropy(x, target, weight, smoothing, lse):
    return {"rows": -np.sum(_wanted(x, target, weight, smoothing) * (x - lse[:, None]), axis=1)}


@formula(_soft_cross_entropy)
def soft_cross_entropy(x, target, weight, smoothing, lse, rows):
    """rows (outer, inner) = -sum over the classes of weight * smoothed target * (x - lse)."""
    rows.fill(0)

    def run(index, wanted, logs, _):
        np.multiply(wanted, logs, out=wanted)
        found = stat(wanted, rows.dtype, 4)
        found.fill(0)
        sum_lines(wanted, found)
        part = rows[index[0], index[2]]
        np.subtract(part, found[:, 0], out=part)

    _soft_tiles(x, target, weight, smoothing, lse, run)


def _seed(gy, index, count, wide):
    """gy / count of the lines of a tile, to broadcast over the classes."""
    if gy.ndim == 0:
        return float(gy) / count
    part = gy[index[0], None, index[2]]
    return np.divide(part, count, out=scratch(part.shape, wide, 6, 8), dtype=wide)


def _soft_cross_entropy_backward(gy, x, target, weight, smoothing, lse, count):
    wanted = _wanted(x, target, weight, smoothing)
    gx = np.exp(x - lse[:, None]) * np.sum(wanted, axis=1, keepdims=True) - wanted
    return (gy[:, None] if gy.ndim else gy) / count * gx


@formula(_soft_cross_entropy_backward)
def soft_cross_entropy_backward(gy, x, target, weight, smoothing, lse, count, out):
    """out = gy / count * (softmax(x) * sum of wanted - wanted), wanted = weight * smoothed target."""

    def run(index, wanted, logs, total):
        np.exp(logs, out=logs)
        np.multiply(logs, total, out=logs)
        np.subtract(logs, wanted, out=logs)
        np.multiply(logs, _seed(gy, index, count, lse.dtype), out=out[index], casting="unsafe")

    _soft_tiles(x, target, weight, smoothing, lse, run, summed=True)


def _soft_cross_entropy_backward_target(gy, x, weight, smoothing, lse, count):
    gt = -(1 - smoothing) * (1 if weight is None else weight[:, None]) * (x - lse[:, None])
    return (gy[:, None] if gy.ndim else gy) / count * gt


@formula(_soft_cross_entropy_backward_target)
def soft_cross_entropy_backward_target(gy, x, target, weight, smoothing, lse, count, out):
    """out = -gy / count * (1 - smoothing) * weight * (x - lse)."""

    def run(index, wanted, logs, _):
        if weight is not None:
            np.multiply(logs, weight[index[1], None], out=logs)
        np.multiply(logs, smoothing - 1, out=logs)
        np.multiply(logs, _seed(gy, index, count, lse.dtype), out=out[index], casting="unsafe")

    _soft_tiles(x, target, weight, smoothing, lse, run)
