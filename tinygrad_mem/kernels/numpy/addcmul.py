"""A product or a quotient, added: in tiles, of halves in float32 and rounded once."""

from __future__ import annotations

import numpy as np

from .tiles import tiled_wide as _tiled


def addcmul(x, a, b, value, out):
    """out = x + value * a * b; x may be a number."""
    _added(np.multiply, x, a, b, value, out)


def addcdiv(x, a, b, value, out):
    """out = x + value * a / b; x may be a number."""
    _added(np.divide, x, a, b, value, out)


def lerp(x, end, weight, out):
    """out = x + weight * (end - x); from ``end`` where that is nearer, so that at weight 1 it is ``end`` itself."""
    near = isinstance(weight, np.ndarray) or abs(weight) < 0.5

    def run(o, x, end, weight, t):
        np.subtract(end, x, out=t, dtype=t.dtype, casting="unsafe")
        np.multiply(t, weight if near else weight - 1, out=t, casting="unsafe")
        np.add(x if near else end, t, out=o, casting="unsafe")

    _tiled(run, out, *[np.broadcast_to(z, out.shape) if isinstance(z, np.ndarray) else z for z in (x, end, weight)], temps=1)


def _added(ufunc, x, a, b, value, out):
    def run(o, x, a, b, t):
        ufunc(a, b, out=t, dtype=t.dtype, casting="unsafe")
        if value != 1:
            np.multiply(t, value, out=t)
        np.add(x, t, out=o, casting="unsafe")

    _tiled(run, out, *[np.broadcast_to(z, out.shape) if isinstance(z, np.ndarray) else z for z in (x, a, b)], temps=1)
