"""Smooth activations, from their formulas. ``out`` of a backward may be ``gy``."""

import math

import numpy as np

from ..formula import formula
from .fast import erf
from .fast.computed import computed, of_each
from .fast.computed import expm1 as _expm1
from .fast.computed import log1p as _log1p

_erfc = of_each(math.erfc)
_TANH = math.sqrt(2 / math.pi)


@computed
def elu(x, alpha, scale, inner, out):
    """out = scale * x where x > 0, else scale * alpha * (e**(inner * x) - 1)."""
    return np.maximum(x, 0) * scale + _expm1(np.minimum(x, 0) * inner) * (alpha * scale)


@computed
def elu_backward(gy, x, alpha, scale, inner, out):
    """out = gy times scale * alpha * inner * e**(inner * x) where x <= 0, else times scale, also where x is nan."""
    below = gy * (np.exp(np.minimum(x, 0) * inner) * (alpha * scale * inner))
    return np.where(x <= 0, below, gy * scale)


def _normal(x):
    """The distribution function and the density of the standard normal distribution at x."""
    return _erfc(x * -math.sqrt(0.5)) * 0.5, np.exp(x * x * -0.5) * math.sqrt(0.5 / math.pi)


def _gelu(x, tanh):
    return _tanh_gelu.formula(x, None) if tanh else x * _normal(x)[0]


@formula(_gelu, traced=True)
def gelu(x, tanh, out):
    """out = x * Phi(x), exactly or by the tanh formula."""
    if tanh:
        _tanh_gelu(x, out)
    else:
        erf.gelu(x, erf.is_double(out), out)


@computed
def _tanh_gelu(x, out):
    return x * ((_bend(x) + 1) * 0.5)


def _bend(x):
    return np.tanh((x * x * 0.044715 + 1) * x * _TANH)


def _gelu_backward(gy, x, tanh):
    if tanh:
        return _tanh_gelu_backward.formula(gy, x, None)
    share, density = _normal(x)
    return gy * (share + x * density)


@formula(_gelu_backward, traced=True)
def gelu_backward(gy, x, tanh, out):
    """out = gy * (Phi(x) + x * phi(x)), or the derivative of the tanh formula."""
    if tanh:
        _tanh_gelu_backward(gy, x, out)
    else:
        erf.gelu_backward(gy, x, erf.is_double(out), out)


@computed
def _tanh_gelu_backward(gy, x, out):
    bent = _bend(x)
    half_slope = (x * x * (3 * 0.044715) + 1) * (0.5 * _TANH) * x  # x / 2 times the derivative of what is inside tanh
    return gy * (half_slope * (1 - bent * bent) + (bent + 1) * 0.5)


def _sigmoid(x):
    return 1 / (np.exp(-x) + 1)


@computed
def silu(x, out):
    """out = x * sigmoid(x)."""
    return x * _sigmoid(x)


@computed
def silu_backward(gy, x, out):
    """out = gy * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    s = _sigmoid(x)
    return gy * (((1 - s) * x + 1) * s)


def _above_hinge(x):
    """ln(1 + e**-|x|), the difference between ln(1 + e**x) and max(x, 0)."""
    return _log1p(np.exp(-np.abs(x)))


@computed
def softplus(x, beta, threshold, out):
    """out = ln(1 + e**(beta * x)) / beta; x itself where beta * x is above the threshold."""
    s = x * beta
    hinge, above = _above_hinge(s), s > threshold
    return np.where(above, x, (hinge + np.maximum(s, 0)) * (1 / beta))


@computed
def softplus_backward(gy, x, beta, threshold, out):
    """out = gy * sigmoid(beta * x); gy itself where beta * x is above the threshold."""
    s = x * beta
    return gy * np.where(s > threshold, 1, _sigmoid(s))


_MISH = 20.0  # beyond it tanh(ln(1 + e**x)) is 1 in float64


@computed
def mish(x, out):
    """out = x * tanh(ln(1 + e**x)), which is x * n / (n + 2) where n = e**x * (e**x + 2)."""
    e = np.exp(np.minimum(x, _MISH))
    n = e * (e + 2)
    return x * (n / (n + 2))


@computed
def mish_backward(gy, x, out):
    """out = gy * (n + 4 * x * e * (1 + e) / (n + 2)) / (n + 2), e = e**x, n = e * (e + 2): see :func:`mish`."""
    low = np.minimum(x, _MISH)  # x may be 1e30 where e has stopped growing
    e = np.exp(low)
    rise = (e + 1) * e * low * 4
    n = e * (e + 2)
    m = n + 2
    return gy * ((rise / m + n) / m)


@computed
def softsign(x, out):
    """out = x / (1 + |x|)."""
    return x / (np.abs(x) + 1)


@computed
def softsign_backward(gy, x, out):
    """out = gy / (1 + |x|)**2."""
    return gy / (np.abs(x) + 1) ** 2


@computed
def logsigmoid(x, out):
    """out = -ln(1 + e**-x)."""
    return np.minimum(x, 0) - _above_hinge(x)


@computed
def logsigmoid_backward(gy, x, out):
    """out = gy * sigmoid(-x)."""
    return gy * _sigmoid(-x)
