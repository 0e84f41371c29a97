"""Division that is more than one ufunc: of integers, by what may be 0, by their powers, and its gradient."""

from __future__ import annotations

import numpy as np

from ...dtypes import is_floating as _is_floating
from ...errors import DivisionError as _DivisionError
from .elementwise import _arithmetic, _binary, _spread
from .tiles import flags as _flags
from .tiles import tiled_wide as _tiled

_floor_divide = _binary(np.floor_divide, "floor(x / y)")
_power = _arithmetic(np.power, "x ** y")
_remainder = _binary(np.remainder, "x - y * floor(x / y)")


def check_divisor(name, y):
    """Refuse integers with a 0 among them.

    Raises:
        DivisionError: there is one.
    """
    if np.count_nonzero(y) < y.size:
        raise _DivisionError(f"{name}: ZeroDivisionError: integers divided by a tensor {list(y.shape)} that has a 0")


def floor_divide(x, y, out):
    """out = floor(x / y)."""
    _floor_divide(x, y, out)


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


def power(x, y, out):
    """out = x ** y; of integers to negative powers 0, but for 1 and -1."""
    negative = out.dtype.kind in "iu" and isinstance(y, np.ndarray) and y.size and np.minimum.reduce(y, axis=None) < 0
    if not negative:
        _power(x, y, out)
        return

    def run(o, x, y, t, v, f, g):
        below, lost = _flags(f), _flags(g)
        np.less(y, 0, out=below)
        np.copyto(v, x, casting="unsafe")
        np.not_equal(v, 1, out=lost)
        np.not_equal(v, -1, out=lost, where=lost)
        np.logical_and(lost, below, out=lost)
        np.copyto(t, y, casting="unsafe")
        np.bitwise_and(t, 1, out=t, where=below)  # which is all that 1 and -1 need
        np.power(v, t, out=o)
        np.copyto(o, 0, where=lost)

    _tiled(run, out, _spread(x, out), _spread(y, out), temps=4)


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
