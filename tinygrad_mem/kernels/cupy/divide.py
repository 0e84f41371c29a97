"""Division that is more than one ufunc: of integers, by what may be 0, and its gradient. As in ``kernels/numpy/divide.py``."""

from __future__ import annotations

from .elementwise import _fused

_divide_y = _fused("G gy, X x, Y y", "-gy * (W(x) / W(y) / W(y))", "divide_backward_y", "G")
_truncated_quotient = _fused("X x, Y y", "y == 0 ? Z(0) : Z(x / y)", "truncated_quotient")


def check_divisor(name, y):
    """Nothing: reading the divisors would make the host wait. What is divided by 0 becomes 0."""


def truncated_quotient(x, y, out):
    """out = x / y of integers, rounded towards zero."""
    _truncated_quotient(x, y, out)


def divide_backward_y(gy, x, y, out):
    """out = -gy * x / y / y: the square of y may be out of range where the result is not."""
    _divide_y(gy, x, y, out)
