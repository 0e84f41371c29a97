"""The error function, which NumPy does not have, and what is computed with it.

In float32, ``erf(x) = tanh(x * g(x**2))``, where g is so smooth that a fraction of six coefficients gives erf to 2e-7. A
polynomial as good takes four passes more. (NumPy's tanh and division use vector instructions.)

In float64, and for erfc, whose small values are to be right too: for z >= 0, ``erfc(z) = exp(-z**2) * f(t)`` with
``t = 2 / (2 + z)``, where f is smooth on [0, 1]: a Chebyshev series, whose coefficients are computed here from
``math.erfc`` (and from the asymptotic series where that underflows), and summed by Clenshaw's recurrence; in float32, where few
terms do, as a polynomial, which takes a third fewer passes a term. Absolute error: below 1e-15 in float64, 4e-7 in float32.

Formulas differ by dtype: ``double`` is True if a result of this dtype is computed in float64 (see :func:`is_double`).
"""

import math
from fractions import Fraction

import numpy as np

from ....dtypes import arithmetic
from .computed import computed
from .erfinv import polynomial

_SMOOTH = (1.128379324, 0.0524662334, 0.507033423, 2.64491383, 57.4521257, 7.72732116)
"""Of g(u) = a + u * (b + c / (u + d + e / (u + f))): the fraction of least error on ``atanh(erf(x)) / x`` for 0 < x < 4.3,
weighted by what an error does to erf, relative to erf. All are positive: nothing cancels."""

_STRETCH = 1.0625
"""The series is made for t up to here: at the ends of its interval the recurrence rounds most, and t = 1 is z = 0."""


def _scaled_erfc(z):
    """exp(z**2) * erfc(z)."""
    if z < 20.0:
        square = z * z
        lost = float(Fraction(z) ** 2 - Fraction(square))  # the exponential would amplify the rounding error of the square
        return math.erfc(z) * math.exp(square) * (1.0 + lost)
    term = total = 1.0
    for k in range(1, 8):
        term *= -(2 * k - 1) / (2 * z * z)
        total += term
    return total / (z * math.sqrt(math.pi))


def _chebyshev(terms):
    """Chebyshev coefficients of f on [-1, 1], at 2t / stretch - 1."""
    n = 64
    cosine = [math.cos(math.pi * m / (2 * n)) for m in range(4 * n)]  # of whole turns nothing is left to round
    values = [_scaled_erfc(4.0 / (_STRETCH * (cosine[2 * k + 1] + 1.0)) - 2.0) for k in range(n)]
    series = [2.0 / n * math.fsum(v * cosine[j * (2 * k + 1) % (4 * n)] for k, v in enumerate(values)) for j in range(n)]
    return [series[0] / 2, *series[1:terms]]


def _erfc_of_size(x, double):
    """erfc(|x|)."""
    size = np.abs(x)
    b = 4.0 / _STRETCH / (size + 2.0) - 1.0
    decay = np.exp(-(size**2))
    if double:
        return decay * _clenshaw(_chebyshev(40), b)
    return decay * polynomial(b, np.polynomial.chebyshev.cheb2poly(_chebyshev(10)))


def _clenshaw(series, x):
    """The sum of a Chebyshev series at x."""
    twice, last, before = x * 2.0, series[-1], 0.0
    for coefficient in series[-2:0:-1]:
        last, before = twice * last - before + coefficient, last
    return twice * last * 0.5 - before + series[0]


def _erf(x, square, scale, double):
    """erf(scale * x). In float32, g of x**2 stretched by ``scale``; it is positive, so large x need no care."""
    if double:
        stretched = x * scale
        return np.copysign(1.0 - _erfc_of_size(stretched, double), stretched)
    a, b, c, d, e, f = _SMOOTH
    inner = e / scale**4 / (square + f / scale**2) + square + d / scale**2
    return np.tanh(((c * scale / inner + b * scale**3) * square + a * scale) * x)


def _normal(x, square, double):
    """The normal distribution function, (1 + erf(x / sqrt(2))) / 2."""
    return (_erf(x, square, math.sqrt(0.5), double) + 1) * 0.5


def is_double(out):
    """True if a result of this dtype is computed in float64."""
    return arithmetic(out.dtype) == np.float64


@computed
def erf(x, double, out):
    """out = erf(x). In float64, by its series where x**2 < 0.001: 1 - erfc(x) has only the digits there that erfc has."""
    square = x * x
    y = _erf(x, square, 1.0, double)
    if not double:
        return y
    series = polynomial(square, (1.0, -1 / 3, 1 / 10, -1 / 42)) * x * (2 / math.sqrt(math.pi))
    return np.where(x * x < 1e-3, series, y)


@computed
def erfc(x, double, out):
    """out = erfc(x), which is 2 - erfc(-x) below zero."""
    sign = np.sign(x)
    return _erfc_of_size(x, double) * sign + (1.0 - sign)


@computed
def gelu(x, double, out):
    """out = x * Phi(x)."""
    return x * _normal(x, x * x, double)


@computed
def gelu_backward(gy, x, double, out):
    """out = gy * (Phi(x) + x * phi(x))."""
    square = x * x
    share = _normal(x, square, double)
    return gy * (share + np.exp(square * -0.5) * x * (1 / math.sqrt(2 * math.pi)))
