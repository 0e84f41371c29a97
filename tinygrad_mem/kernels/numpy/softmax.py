"""Softmax over the middle axis of (outer, class, inner) arrays, in tiles of whole lines; long lines in pieces.

``out`` is in memory as tiles are, or the tile is made in scratch and copied; half precision is computed in float32.
``out`` of a backward may be ``gy``.
"""

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast.halves import cast
from .fast.lines import lines as _lines
from .fast.lines import pieces, stat, statistics, sum_lines
from .fast.threads import scratch


def _tile(like, wide, slot):
    """The array in which a tile is computed: ``like`` itself where it has the wide dtype, else scratch."""
    return like if like.dtype == wide else scratch(like.shape, wide, slot, 8)


def _finish(tile, target):
    if tile is not target:
        cast(tile, target)


_LONG = 1 << 14  # classes beyond which the sums of runs are added in float64


def _softmax(x):
    powers = np.exp(x - np.max(x, axis=1, keepdims=True))
    return powers / np.sum(powers, axis=1, keepdims=True)


@formula(_softmax)
def softmax(x, out):
    """out = e**(x - max) / sum."""
    wide = arithmetic(x.dtype)

    def powers(part, top, tile):
        np.subtract(part, top, out=tile, dtype=wide)
        np.exp(tile, out=tile)

    def run(a, b):
        part, target, cuts = x[a, :, b], out[a, :, b], pieces(x[a, :, b])
        top, total = stat(part, wide, 2), stat(part, wide, 3)
        sums = total if part.shape[1] <= _LONG else stat(part, np.float64, 4)
        np.maximum.reduce(part, axis=1, keepdims=True, out=top)
        sums.fill(0)
        for piece in cuts:
            tile = _tile(target[:, piece], wide, 0)
            powers(part[:, piece], top, tile)
            sum_lines(tile, sums)
        np.divide(1, sums, out=total, casting="unsafe")
        for piece in cuts:
            tile = _tile(target[:, piece], wide, 0)
            if len(cuts) > 1 and out.dtype != wide:  # else the powers are still there
                powers(part[:, piece], top, tile)
            np.multiply(tile, total, out=target[:, piece], casting="unsafe")

    _lines(x.shape, run, wide.itemsize)


@formula(lambda x: np.log(_softmax(x)))
def log_softmax(x, out):
    """out = x - max - ln(sum(e**(x - max)))."""
    wide = arithmetic(x.dtype)

    def run(a, b):
        part = x[a, :, b]
        top, total = statistics(part, wide)
        np.log(total, out=total)
        for piece in pieces(x[a, :, b]):
            target = out[a, piece, b]
            tile = _tile(target, wide, 0)
            np.subtract(part[:, piece], top, out=tile, dtype=wide)
            np.subtract(tile, total, out=tile)
            _finish(tile, target)

    _lines(x.shape, run, wide.itemsize)


@formula(lambda gy, y: y * (gy - np.sum(gy * y, axis=1, keepdims=True)))
def softmax_backward(gy, y, out):
    """out = y * (gy - sum(gy * y))."""
    wide = arithmetic(y.dtype)

    def run(a, b):
        grad, part, target = gy[a, :, b], y[a, :, b], out[a, :, b]
        total = stat(part, wide, 3)
        total.fill(0)
        for piece in pieces(part):
            if part.shape[2] == 1 and part.dtype == grad.dtype == wide:
                more = stat(part, wide, 5)
                np.vecdot(grad[:, piece, 0], part[:, piece, 0], out=more[:, 0, 0])
                np.add(total, more, out=total)
                continue
            tile = scratch(part[:, piece].shape, wide, 0, 8)
            np.multiply(grad[:, piece], part[:, piece], out=tile, dtype=wide)
            sum_lines(tile, total)
        for piece in pieces(part):
            tile = _tile(target[:, piece], wide, 0)
            np.subtract(grad[:, piece], total, out=tile, dtype=wide)
            np.multiply(tile, part[:, piece], out=tile)
            _finish(tile, target[:, piece])

    _lines(y.shape, run, wide.itemsize)


@formula(lambda gy, y: gy - np.exp(y) * np.sum(gy, axis=1, keepdims=True))
def log_softmax_backward(gy, y, out):
    """out = gy - e**y * sum(gy)."""
    wide = arithmetic(y.dtype)

    def run(a, b):
        total = stat(y[a, :, b], wide, 3)
        total.fill(0)
        for piece in pieces(y[a, :, b]):
            sum_lines(gy[a, piece, b], total)
        for piece in pieces(y[a, :, b]):
            target = out[a, piece, b]
            tile = scratch(target.shape, wide, 0, 8)
            np.copyto(tile, y[a, piece, b])
            np.exp(tile, out=tile)
            np.multiply(tile, total, out=tile)
            np.subtract(gy[a, piece, b], tile, out=target, dtype=wide, casting="unsafe")

    _lines(y.shape, run, wide.itemsize)
