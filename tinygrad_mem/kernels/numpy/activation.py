"""Smooth activations: tiles of ufuncs. ``out`` of a backward may be ``gy``."""

from __future__ import annotations

import math as _math

import numpy as np

from .curves import expm1 as _expm1
from .curves import log1p as _log1p
from .erf import normal_tile as _normal_tile
from .erf import normal_tiles as _normal_tiles
from .erf import wide as _wide
from .tiles import flags as _flags
from .tiles import select as _select
from .tiles import tiled_wide as _tiled

_TANH = _math.sqrt(2 / _math.pi)


def elu(x, alpha, scale, inner, out):
    """out = scale * x where x > 0, else scale * alpha * (e**(inner * x) - 1)."""

    def run(o, x, t, u):
        np.minimum(x, 0, out=t)
        np.multiply(t, inner, out=t)
        _expm1(t, u)
        np.multiply(t, alpha * scale, out=t)
        np.maximum(x, 0, out=o)
        np.multiply(o, scale, out=o)
        np.add(o, t, out=o)

    _tiled(run, out, x, temps=2)


def elu_backward(gy, x, alpha, scale, inner, out):
    """out = gy times scale where x > 0, else times scale * alpha * inner * e**(inner * x)."""

    def run(o, gy, x, t, u, flag):
        flag = _flags(flag)
        np.greater(x, 0, out=flag)
        np.minimum(x, 0, out=t)
        np.multiply(t, inner, out=t)
        np.exp(t, out=t)
        np.multiply(t, alpha * scale * inner, out=t)
        np.multiply(gy, t, out=t)
        np.multiply(gy, scale, out=o)
        _select(o, t, flag, u, o)

    _tiled(run, out, gy, x, temps=3)


def gelu(x, tanh, out):
    """out = x * Phi(x), exactly or by the tanh formula."""

    def exact(o, x, *tiles):
        _normal_tile(x, *tiles)
        np.multiply(x, tiles[-1], out=o)

    def approximate(o, x, t):
        _tanh_inner(x, t)
        np.add(t, 1, out=t)
        np.multiply(t, 0.5, out=t)
        np.multiply(x, t, out=o)

    if tanh:
        _tiled(approximate, out, x, temps=1)
    else:
        _tiled(exact, out, x, temps=_normal_tiles(out), dtype=_wide(out))


def _tanh_inner(x, t):
    np.multiply(x, x, out=t)
    np.multiply(t, 0.044715, out=t)
    np.add(t, 1, out=t)
    np.multiply(t, x, out=t)
    np.multiply(t, _TANH, out=t)
    np.tanh(t, out=t)


def gelu_backward(gy, x, tanh, out):
    """out = gy * (Phi(x) + x * phi(x)), or the derivative of the tanh formula."""

    def exact(o, gy, x, *tiles):
        _normal_tile(x, *tiles)
        u, t = tiles[0], tiles[-1]
        np.multiply(x, x, out=u)
        np.multiply(u, -0.5, out=u)
        np.exp(u, out=u)
        np.multiply(u, x, out=u)
        np.multiply(u, 1 / _math.sqrt(2 * _math.pi), out=u)
        np.add(t, u, out=t)
        np.multiply(gy, t, out=o)

    def approximate(o, gy, x, t, u, v):
        _tanh_inner(x, t)
        np.multiply(x, x, out=u)
        np.multiply(u, 3 * 0.044715, out=u)
        np.add(u, 1, out=u)
        np.multiply(u, 0.5 * _TANH, out=u)
        np.multiply(u, x, out=u)  # x / 2 times the derivative of what is inside tanh
        np.multiply(t, t, out=v)
        np.subtract(1, v, out=v)
        np.multiply(u, v, out=u)
        np.add(t, 1, out=t)
        np.multiply(t, 0.5, out=t)
        np.add(u, t, out=u)
        np.multiply(gy, u, out=o)

    if tanh:
        _tiled(approximate, out, gy, x, temps=3)
    else:
        _tiled(exact, out, gy, x, temps=_normal_tiles(out), dtype=_wide(out))


def _sigmoid(x, t):
    np.negative(x, out=t)
    np.exp(t, out=t)
    np.add(t, 1, out=t)
    np.divide(1, t, out=t)


def silu(x, out):
    """out = x * sigmoid(x)."""

    def run(o, x, t):
        _sigmoid(x, t)
        np.multiply(x, t, out=o)

    _tiled(run, out, x, temps=1)


def silu_backward(gy, x, out):
    """out = gy * s * (1 + x * (1 - s)), s = sigmoid(x)."""

    def run(o, gy, x, s, t):
        _sigmoid(x, s)
        np.subtract(1, s, out=t)
        np.multiply(t, x, out=t)
        np.add(t, 1, out=t)
        np.multiply(t, s, out=t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=2)


def _above_hinge(x, t, u, work):
    """t = ln(1 + e**-|x|), by which ln(1 + e**x) is above max(x, 0); u and work are scratch."""
    np.absolute(x, out=u)
    np.negative(u, out=u)
    np.exp(u, out=u)
    _log1p(u, work, t)


def softplus(x, beta, threshold, out):
    """out = ln(1 + e**(beta * x)) / beta; x itself where beta * x is above the threshold."""

    def run(o, x, s, t, u, v):
        np.multiply(x, beta, out=s)
        _above_hinge(s, t, u, v)
        flag = _flags(v)
        np.greater(s, threshold, out=flag)
        np.maximum(s, 0, out=s)
        np.add(t, s, out=t)
        np.multiply(t, 1 / beta, out=t)
        _select(x, t, flag, u, o)

    _tiled(run, out, x, temps=4)


def softplus_backward(gy, x, beta, threshold, out):
    """out = gy * sigmoid(beta * x); gy itself where beta * x is above the threshold."""

    def run(o, gy, x, t, flag):
        flag = _flags(flag)
        np.multiply(x, beta, out=t)
        np.greater(t, threshold, out=flag)
        _sigmoid(t, t)
        np.copyto(t, 1, where=flag)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=2)


_MISH = 20.0  # beyond it tanh(ln(1 + e**x)) is 1 in float64


def mish(x, out):
    """out = x * tanh(ln(1 + e**x)), which is x * n / (n + 2) where n = e**x * (e**x + 2)."""

    def run(o, x, t, u):
        np.minimum(x, _MISH, out=t)
        np.exp(t, out=t)
        np.add(t, 2, out=u)
        np.multiply(t, u, out=t)
        np.add(t, 2, out=u)
        np.divide(t, u, out=t)
        np.multiply(x, t, out=o)

    _tiled(run, out, x, temps=2, dtype=_wide(out))


def mish_backward(gy, x, out):
    """out = gy * (n + 4 * x * e * (1 + e) / (n + 2)) / (n + 2), e = e**x, n = e * (e + 2): see :func:`mish`."""

    def run(o, gy, x, e, t, u):
        np.minimum(x, _MISH, out=u)
        np.exp(u, out=e)
        np.add(e, 1, out=t)
        np.multiply(t, e, out=t)
        np.multiply(t, u, out=t)  # not x, which may be 1e30 where e has stopped growing
        np.multiply(t, 4, out=t)
        np.add(e, 2, out=u)
        np.multiply(e, u, out=e)
        np.add(e, 2, out=u)
        np.divide(t, u, out=t)
        np.add(t, e, out=t)
        np.divide(t, u, out=t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=3, dtype=_wide(out))


def softsign_backward(gy, x, out):
    """out = gy / (1 + |x|)**2."""

    def run(o, gy, x, t):
        np.absolute(x, out=t)
        np.add(t, 1, out=t)
        np.square(t, out=t)
        np.divide(gy, t, out=o)

    _tiled(run, out, gy, x, temps=1)


def softsign(x, out):
    """out = x / (1 + |x|)."""

    def run(o, x, t):
        np.absolute(x, out=t)
        np.add(t, 1, out=t)
        np.divide(x, t, out=o)

    _tiled(run, out, x, temps=1)


def logsigmoid(x, out):
    """out = -ln(1 + e**-x)."""

    def run(o, x, t, u, v):
        _above_hinge(x, t, u, v)
        np.minimum(x, 0, out=u)
        np.subtract(u, t, out=o)

    _tiled(run, out, x, temps=3)


def logsigmoid_backward(gy, x, out):
    """out = gy * sigmoid(-x)."""

    def run(o, gy, x, t):
        np.negative(x, out=t)
        _sigmoid(t, t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=1)
