"""Division that is more than one ufunc: of integers, by what may be 0, and its gradient. As in ``kernels/numpy/divide.py``."""

from __future__ import annotations

from ...dtypes import is_floating as _is_floating
from .elementwise import _binary, _fused

_divide_y = _fused("G gy, X x, Y y", "-gy * (W(x) / W(y) / W(y))", "divide_backward_y", "G")
_of_integers = _binary("remainder", "x - y * floor(x / y)")
_rest = "(W)fmod(W(x), W(y))"
_remainder = _fused("X x, Y y", f"({_rest} != 0 && ({_rest} < 0) != (W(y) < 0)) ? {_rest} + W(y) : {_rest}", "remainder")
_truncated_quotient = _fused("X x, Y y", "y == 0 ? Z(0) : Z(x / y)", "truncated_quotient")


def check_divisor(name, y):
    """Nothing: reading the divisors would make the host wait. What is divided by 0 becomes 0."""


def remainder(x, y, out):
    """out = x - y * floor(x / y); a 0 has the sign of x."""
    if _is_floating(out.dtype):
        _remainder(x, y, out)
    else:
        _of_integers(x, y, out)


def truncated_quotient(x, y, out):
    """out = x / y of integers, rounded towards zero."""
    _truncated_quotient(x, y, out)


def divide_backward_y(gy, x, y, out):
    """out = -gy * x / y / y: the square of y may be out of range where the result is not."""
    _divide_y(gy, x, y, out)
