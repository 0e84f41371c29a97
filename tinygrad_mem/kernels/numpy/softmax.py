"""Softmax over the middle axis of (outer, class, inner) arrays, in tiles of whole lines; long lines in pieces.

``out`` is in memory as tiles are, or the tile is made in scratch and copied; half precision is computed in float32.
``out`` of a backward may be ``gy``.
"""

from __future__ import annotations

import numpy as np

from .lines import lines as _lines
from .lines import pieces as _pieces
from .lines import stat as _stat
from .lines import sum_lines as _sum_lines
from .threads import scratch as _scratch


def _wide(x):
    return np.float64 if x.dtype == np.float64 else np.float32


def _tile(like, wide, slot):
    """Where a tile is computed: ``like`` itself where it has the wide dtype, else scratch."""
    return like if like.dtype == wide else _scratch(like.shape, wide, slot, 8)


def _finish(tile, target):
    if tile is not target:
        np.copyto(target, tile, casting="unsafe")


def _statistics(part, wide):
    """The largest of each line, and the sum of e**(x - largest), in scratch slots 2 and 3."""
    top, total = _stat(part, wide, 2), _stat(part, wide, 3)
    np.maximum.reduce(part, axis=1, keepdims=True, out=top)
    total.fill(0)
    for piece in _pieces(part.shape[1]):
        tile = _scratch(part[:, piece].shape, wide, 0, 8)
        np.subtract(part[:, piece], top, out=tile, dtype=wide)
        np.exp(tile, out=tile)
        _sum_lines(tile, total)
    return top, total


def softmax(x, out):
    """out = e**(x - max) / sum."""
    wide = _wide(x)

    def run(a, b):
        part, target = x[a, :, b], out[a, :, b]
        if len(_pieces(x.shape[1])) == 1:  # the exponentials are kept from the sum to the division
            tile, top, total = _tile(target, wide, 0), _stat(part, wide, 2), _stat(part, wide, 3)
            np.maximum.reduce(part, axis=1, keepdims=True, out=top)
            np.subtract(part, top, out=tile, dtype=wide)
            np.exp(tile, out=tile)
            total.fill(0)
            _sum_lines(tile, total)
            np.divide(1, total, out=total)
            np.multiply(tile, total, out=target, casting="unsafe")
            return
        top, total = _statistics(part, wide)
        for piece in _pieces(x.shape[1]):
            tile = _tile(target[:, piece], wide, 0)
            np.subtract(part[:, piece], top, out=tile, dtype=wide)
            np.exp(tile, out=tile)
            np.divide(tile, total, out=target[:, piece], casting="unsafe")

    _lines(x.shape, run)


def log_softmax(x, out):
    """out = x - max - ln(sum(e**(x - max)))."""
    wide = _wide(x)

    def run(a, b):
        part = x[a, :, b]
        top, total = _statistics(part, wide)
        np.log(total, out=total)
        for piece in _pieces(x.shape[1]):
            target = out[a, piece, b]
            tile = _tile(target, wide, 0)
            np.subtract(part[:, piece], top, out=tile, dtype=wide)
            np.subtract(tile, total, out=tile)
            _finish(tile, target)

    _lines(x.shape, run)


def softmax_backward(gy, y, out):
    """out = y * (gy - sum(gy * y))."""
    wide = _wide(y)

    def run(a, b):
        total = _stat(y[a, :, b], wide, 3)
        total.fill(0)
        for piece in _pieces(y.shape[1]):
            tile = _scratch(y[a, piece, b].shape, wide, 0, 8)
            np.multiply(gy[a, piece, b], y[a, piece, b], out=tile, dtype=wide)
            _sum_lines(tile, total)
        for piece in _pieces(y.shape[1]):
            target = out[a, piece, b]
            tile = _tile(target, wide, 0)
            np.subtract(gy[a, piece, b], total, out=tile, dtype=wide)
            np.multiply(tile, y[a, piece, b], out=tile)
            _finish(tile, target)

    _lines(y.shape, run)


def log_softmax_backward(gy, y, out):
    """out = gy - e**y * sum(gy)."""
    wide = _wide(y)

    def run(a, b):
        total = _stat(y[a, :, b], wide, 3)
        total.fill(0)
        for piece in _pieces(y.shape[1]):
            _sum_lines(gy[a, piece, b], total)
        for piece in _pieces(y.shape[1]):
            target = out[a, piece, b]
            tile = _scratch(target.shape, wide, 0, 8)
            np.copyto(tile, y[a, piece, b])
            np.exp(tile, out=tile)
            np.multiply(tile, total, out=tile)
            np.subtract(gy[a, piece, b], tile, out=target, dtype=wide, casting="unsafe")

    _lines(y.shape, run)
