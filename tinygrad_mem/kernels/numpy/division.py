"""Division that needs more than a ufunc: of integers, by 0, integer powers, and its gradient."""

import numpy as np

from ...dtypes import is_floating
from ...errors import DivisionError
from ..formula import formula
from .elementwise import _arithmetic, _binary
from .fast import tiles
from .fast.computed import computed

_floor_divide = _arithmetic(np.floor_divide, "floor(x / y)")
_power = _arithmetic(np.power, "x ** y")
_remainder = _binary(np.remainder, "x - y * floor(x / y)")


def check_divisor(name, y):
    """Refuse integer divisors with a 0 among them. Raises: DivisionError: there is one."""
    if np.count_nonzero(y) < y.size:
        raise DivisionError(f"{name}: ZeroDivisionError: integers divided by a tensor {list(y.shape)} that has a 0")


@formula(lambda x, y: x // y)
def floor_divide(x, y, out):
    """out = floor(x / y)."""
    _floor_divide(x, y, out)


@formula(lambda x, y: x - y * np.floor(x / y))
def remainder(x, y, out):
    """out = x - y * floor(x / y); a 0 has the sign of x."""
    (_signed_remainder if is_floating(out.dtype) else _remainder)(x, y, out)


@computed
def _signed_remainder(x, y, out):
    rest = np.remainder(x, y)
    return np.where(rest == 0, np.copysign(rest, x), rest)


def _power_of_integers(x, y):
    if np.result_type(x, y).kind not in "iu":
        return np.power(x, y)
    ones = np.where(np.equal(x, 1), 1, np.where(np.equal(x, -1), np.where(y % 2 == 0, 1, -1), 0))
    return np.where(np.less(y, 0), ones, np.power(x, np.maximum(y, 0)))


@formula(_power_of_integers)
def power(x, y, out):
    """out = x ** y; an integer to a negative power is 0, except for 1 and -1."""
    negative = out.dtype.kind in "iu" and isinstance(y, np.ndarray) and y.size and np.minimum.reduce(y, axis=None) < 0
    if not negative:
        _power(x, y, out)
        return

    def run(o, x, y, t, v, f, g):
        below, lost = tiles.flags(f), tiles.flags(g)
        np.less(y, 0, out=below)
        np.copyto(v, x, casting="unsafe")
        np.absolute(v, out=t)  # (where NumPy compares unsigned numbers with -1 under ``where=``, the process crashes)
        np.not_equal(t, 1, out=lost)
        np.logical_and(lost, below, out=lost)
        np.copyto(t, y, casting="unsafe")
        np.bitwise_and(t, 1, out=t, where=below)  # enough for 1 and -1
        np.power(v, t, out=o, casting="unsafe")
        np.copyto(o, 0, where=lost)

    tiles.tiled(run, out, x, y, temps=4, dtype=np.result_type(x, y))


@formula(lambda x, y: np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y)))
def truncated_quotient(x, y, out):
    """out = x / y of integers, rounded towards zero."""
    _truncated_quotient(x, y, out)


_truncated_quotient = computed(lambda x, y, out: np.floor_divide(x - np.fmod(x, y), y))  # y divides what fmod leaves


@computed
def truncated_division(x, y, out):
    """out = x / y, rounded towards zero: from the unrounded quotient, as 9.99 in half precision may be 10."""
    return np.trunc(x / y)


@computed
def divide_backward_y(gy, x, y, out):
    """out = -gy * x / y / y: the square of y may be out of range where the result is not."""
    return -(gy * (x / y / y))
