"""Division that is more than one ufunc: of integers, by what may be 0, and its gradient."""

from __future__ import annotations

import numpy as np

from ...dtypes import is_floating as _is_floating
from ...errors import DivisionError as _DivisionError
from .elementwise import _binary, _spread
from .tiles import flags as _flags
from .tiles import tiled_wide as _tiled

_remainder = _binary(np.remainder, "x - y * floor(x / y)")


def check_divisor(name, y):
    """Refuse integers with a 0 among them.

    Raises:
        DivisionError: there is one.
    """
    if np.count_nonzero(y) < y.size:
        raise _DivisionError(f"{name}: ZeroDivisionError: integers divided by a tensor {list(y.shape)} that has a 0")


def remainder(x, y, out):
    """out = x - y * floor(x / y); a 0 has the sign of x."""

    def run(o, x, y, t, u):
        np.remainder(x, y, out=t, casting="unsafe")
        np.equal(t, 0, out=_flags(u))
        np.copysign(t, x, out=t, where=_flags(u), casting="unsafe")
        np.copyto(o, t)

    if _is_floating(out.dtype):
        _tiled(run, out, _spread(x, out), _spread(y, out), temps=2)
    else:
        _remainder(x, y, out)


def truncated_quotient(x, y, out):
    """out = x / y of integers, rounded towards zero."""

    def run(o, x, y, t):
        np.fmod(x, y, out=t)
        np.subtract(x, t, out=t)  # which y divides
        np.floor_divide(t, y, out=o)

    _tiled(run, out, _spread(x, out), _spread(y, out), temps=1)


def divide_backward_y(gy, x, y, out):
    """out = -gy * x / y / y: the square of y may be out of range where the result is not."""

    def run(o, gy, x, y, t):
        np.divide(x, y, out=t)
        np.divide(t, y, out=t)
        np.multiply(gy, t, out=o)
        np.negative(o, out=o)

    _tiled(run, out, gy, _spread(x, out), _spread(y, out), temps=1)
