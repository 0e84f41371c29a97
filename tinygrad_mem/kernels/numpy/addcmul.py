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


def _added(ufunc, x, a, b, value, out):
    def run(o, x, a, b, t):
        ufunc(a, b, out=t, dtype=t.dtype, casting="unsafe")
        if value != 1:
            np.multiply(t, value, out=t)
        np.add(x, t, out=o, casting="unsafe")

    _tiled(run, out, *[np.broadcast_to(z, out.shape) if isinstance(z, np.ndarray) else z for z in (x, a, b)], temps=1)
