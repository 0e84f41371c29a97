"""The error function on tiles, which NumPy does not have.

In float32, ``erf(x) = tanh(x * g(x**2))``, where g is so smooth that a fraction of six coefficients gives erf to 2e-7. A
polynomial as good takes four passes more. (NumPy's tanh and division use vector instructions.)

In float64, and for erfc, whose small values are to be right too: for z >= 0, ``erfc(z) = exp(-z**2) * f(t)`` with
``t = 2 / (2 + z)``, where f is smooth on [0, 1]: a Chebyshev series, whose coefficients are computed here once from
``math.erfc`` (and from the asymptotic series where that underflows), and summed by Clenshaw's recurrence; in float32, where few
terms do, as a polynomial, which takes a third fewer passes a term. Absolute error: below 1e-15 in float64, 4e-7 in float32.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np

from .tiles import flags, sign

_SMOOTH = (1.128379324, 0.0524662334, 0.507033423, 2.64491383, 57.4521257, 7.72732116)
"""Of g(u) = a + u * (b + c / (u + d + e / (u + f))): the fraction of least error on ``atanh(erf(x)) / x`` for 0 < x < 4.3,
weighted by what an error does to erf, relative to erf. All are positive: nothing cancels."""

_TERMS = {np.dtype(np.float64): 40, np.dtype(np.float32): 10}
_STRETCH = (
    1.0625  # the series is made for t up to here: at the ends of its interval the recurrence rounds most, and t = 1 is z = 0
)


def _scaled_erfc(z: float) -> float:
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


def tiles(out, more):
    """The number of scratch tiles that the error function needs, plus ``more``."""
    return more + (5 if out.dtype == np.float64 else 2)


def normal_tiles(out):
    """The number of scratch tiles that :func:`normal_tile` needs; the last of them gets its result."""
    return 6 if out.dtype == np.float64 else 2


@cache
def _coefficients(dtype: np.dtype) -> tuple[float, ...]:
    """Chebyshev coefficients of f on [-1, 1], x = 2t - 1, as many as the dtype can use; in float32 those of powers of x."""
    n = 64
    cosine = [math.cos(math.pi * m / (2 * n)) for m in range(4 * n)]  # of whole turns nothing is left to round
    values = [_scaled_erfc(4.0 / (_STRETCH * (cosine[2 * k + 1] + 1.0)) - 2.0) for k in range(n)]
    series = [2.0 / n * math.fsum(v * cosine[j * (2 * k + 1) % (4 * n)] for k, v in enumerate(values)) for j in range(n)]
    series = [series[0] / 2, *series[1 : _TERMS[dtype]]]
    return tuple(series if dtype == np.float64 else np.polynomial.chebyshev.cheb2poly(series).tolist())


def erfc_abs(x, out, a, b, c, d):
    """out = erfc(|x|); a, b, c and d are scratch; out may be x."""
    series = _coefficients(a.dtype)
    np.absolute(x, out=a)
    np.add(a, 2.0, out=b)
    np.divide(4.0 / _STRETCH, b, out=b)
    np.subtract(b, 1.0, out=b)  # 2t / stretch - 1
    np.square(a, out=a)
    np.negative(a, out=a)
    np.exp(a, out=out)
    if a.dtype == np.float32:
        np.multiply(b, series[-1], out=d)
        for coefficient in series[-2:0:-1]:
            np.add(d, coefficient, out=d)
            np.multiply(d, b, out=d)
        np.add(d, series[0], out=d)
    else:
        _clenshaw(series, b, a, c, d)
    np.multiply(out, d, out=out)


def _clenshaw(series, b, a, c, d):
    """d = the sum of a Chebyshev series at b, which becomes 2b; a and c are scratch."""
    np.multiply(b, 2.0, out=b)
    a.fill(0.0)
    c.fill(series[-1])
    last, before = c, a
    for coefficient in series[-2:0:-1]:
        np.multiply(b, last, out=d)
        np.subtract(d, before, out=before)
        np.add(before, coefficient, out=before)
        last, before = before, last
    np.multiply(b, last, out=d)
    np.multiply(d, 0.5, out=d)
    np.subtract(d, before, out=d)
    np.add(d, series[0], out=d)


def _smooth(x, scale, t, u):
    """t = x * g(x**2) with x stretched by ``scale``, in float32, and u = x**2. g is positive, so large x need no care."""
    a, b, c, d, e, f = _SMOOTH
    np.multiply(x, x, out=u)
    np.add(u, f / scale**2, out=t)
    np.divide(e / scale**4, t, out=t)
    np.add(t, u, out=t)
    np.add(t, d / scale**2, out=t)
    np.divide(c * scale, t, out=t)
    np.add(t, b * scale**3, out=t)
    np.multiply(t, u, out=t)
    np.add(t, a * scale, out=t)
    np.multiply(t, x, out=t)


def _erf(x, scale, a, b, c, d, e, out):
    """out = erf(scale * x) in float64; out may be x."""
    np.multiply(x, scale, out=e)
    erfc_abs(e, out, a, b, c, d)
    np.subtract(1.0, out, out=out)
    np.copysign(out, e, out=out)


def _near_zero(x, a, b, c, out):
    """out = erf(x) where x**2 < 0.001, by its series: 1 - erfc(x) has only the digits there that erfc has behind the point."""
    near = flags(c)
    np.multiply(x, x, out=a)
    np.less(a, 1e-3, out=near)
    np.multiply(a, -1 / 42, out=b)
    for coefficient in (1 / 10, -1 / 3, 1.0):
        np.add(b, coefficient, out=b)
        np.multiply(b, x if coefficient == 1.0 else a, out=b)
    np.multiply(b, 2 / math.sqrt(math.pi), out=b)
    np.copyto(out, b, where=near)


def normal_tile(x, *tiles):
    """The last tile = the normal distribution function, (1 + erf(x / sqrt(2))) / 2; the first = x**2. x has their dtype."""
    out = tiles[-1]
    if out.dtype == np.float64:
        _erf(x, math.sqrt(0.5), *tiles)
        np.multiply(x, x, out=tiles[0])
    else:
        _smooth(x, math.sqrt(0.5), out, tiles[0])
        np.tanh(out, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, 0.5, out=out)


def erf_tile(out, x, *tiles):
    """out = erf(x); out may be x; the last of the tiles is for the result, before it is rounded to half precision."""
    e = tiles[-1]
    np.copyto(e, x)
    if e.dtype == np.float64:
        _erf(e, 1.0, *tiles)
        _near_zero(x, tiles[0], tiles[1], tiles[2], e)
        np.copyto(out, e)
    else:
        _smooth(e, 1.0, *tiles[:-1])
        np.tanh(tiles[0], out=out, casting="unsafe")


def erfc_tile(out, x, a, b, c, d, e, f):
    """out = erfc(x), which is 2 - erfc(-x) below zero; out may be x."""
    np.copyto(e, x)
    erfc_abs(e, f, a, b, c, d)
    sign(e, b, a)  # 1 above, -1 below zero
    np.subtract(1.0, a, out=b)  # 0 above, 2 below
    np.multiply(f, a, out=f)
    np.add(f, b, out=out, casting="unsafe")
