"""``addcmul``, ``addcdiv`` and ``lerp`` in tiles: half precision is computed in float32 and rounded once."""

import numpy as np

from ..formula import formula
from .fast import tiles
from .fast.computed import computed


@computed
def addcmul(x, a, b, value, out):
    """out = x + value * a * b; x may be a number."""
    return a * b * value + x


@computed
def addcdiv(x, a, b, value, out):
    """out = x + value * a / b; x may be a number."""
    return a / b * value + x


def _lerp(x, end, weight):
    return np.where(np.abs(weight) < 0.5, x + weight * (end - x), end + (weight - 1) * (end - x))


@formula(_lerp, traced=True)
def lerp(x, end, weight, out):
    """out = x + weight * (end - x); from ``end`` where that is nearer, so that at weight 1 it is ``end`` itself."""

    def run(o, x, end, weight, t, u, f):
        far = tiles.flags(f)
        np.absolute(weight, out=u)
        np.greater_equal(u, 0.5, out=far)
        np.subtract(weight, far, out=u, dtype=u.dtype, casting="unsafe")
        np.subtract(end, x, out=t, dtype=t.dtype, casting="unsafe")
        np.multiply(t, u, out=t)
        np.copyto(u, x)
        np.copyto(u, end, where=far)
        np.add(u, t, out=o, casting="unsafe")

    tiles.tiled_wide(run, out, x, end, weight, temps=3)
