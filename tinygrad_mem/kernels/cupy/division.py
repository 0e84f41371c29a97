"""Division that needs more than a ufunc: of integers, by 0, and its gradient. As in ``kernels/numpy/division.py``."""

from __future__ import annotations

import cupy

from ...dtypes import is_floating
from .apart import ufunc
from .elementwise import _fused
from .fused import Fused

_of_integers, _integer_quotient = ufunc(cupy.remainder), ufunc(cupy.floor_divide)
_power = ufunc(cupy.power, wide=True)
_floor_divide = Fused(
    "X x, Y y",
    "Z z",
    """
    typedef typename Wide<Z>::type W;
    W a = W(x), b = W(y), rest = fmod(a, b), whole = (a - rest) / b;  // rounded, a / b may be the next whole number
    if (rest != W(0) && (rest < W(0)) != (b < W(0))) whole -= W(1);
    W down = floor(whole);
    if (whole - down > W(0.5)) down += W(1);
    z = Z(b == W(0) ? a / b : whole != W(0) ? down : copysign(W(0), a / b));
    """,
    "tinygrad_mem_floor_divide",
)
_rest = "(W)fmod(W(x), W(y))"
_remainder = _fused("X x, Y y", f"({_rest} != 0 && ({_rest} < 0) != (W(y) < 0)) ? {_rest} + W(y) : {_rest}", "remainder")
_truncated_quotient = _fused("X x, Y y", "y == 0 ? Z(0) : Z(x / y)", "truncated_quotient")


def check_divisor(name, y):
    """Does nothing: reading the divisors would make the host wait. An integer divided by 0 becomes 0."""


def floor_divide(x, y, out):
    if is_floating(out.dtype):
        _floor_divide(x, y, out)
    else:
        _integer_quotient(x, y, out)


def remainder(x, y, out):
    if is_floating(out.dtype):
        _remainder(x, y, out)
    else:
        _of_integers(x, y, out)


def power(x, y, out):
    _power(x, y, out)


def truncated_quotient(x, y, out):
    _truncated_quotient(x, y, out)
