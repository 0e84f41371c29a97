"""Activations of straight pieces: tiles of ufuncs. ``out`` of a backward may be ``gy``."""

from __future__ import annotations

import numpy as np

from ...dtypes import is_floating as _is_floating
from .tiles import _SMALL
from .tiles import drop as _drop
from .tiles import flags as _flags
from .tiles import keep as _keep
from .tiles import select as _select
from .tiles import sign as _sign
from .tiles import tiled_wide as _tiled


def relu(x, out):
    """out = max(x, 0)."""

    if out.size <= _SMALL or not _is_floating(out.dtype):
        np.maximum(x, 0, out=out)
    else:  # beside a number, ``np.maximum`` takes twice as long
        _tiled(lambda o, x: np.clip(x, 0, np.inf, out=o), out, x)


def relu_backward(gy, y, out):
    """out = 0 where y <= 0, else gy: nan is no reason to keep a gradient back."""

    def run(o, gy, y, t, u):
        flag = _flags(u)
        np.less_equal(y, 0, out=flag)
        _drop(gy, flag, t, o)

    _tiled(run, out, gy, y, temps=2)


def leaky_relu(x, slope, out):
    """out = x where x > 0, else slope * x."""

    def run(o, x, t):
        np.multiply(x, slope, out=t)
        if 0 <= slope <= 1:
            np.maximum(x, t, out=o)
        else:
            np.minimum(x, 0, out=t)
            np.multiply(t, slope, out=t)
            np.maximum(x, 0, out=o)
            np.add(o, t, out=o)

    _tiled(run, out, x, temps=1)


def leaky_relu_backward(gy, s, slope, out):
    """out = gy where s > 0, else slope * gy; s is x, or y where the slope is positive."""

    def run(o, gy, s, t, u, flag):
        flag = _flags(flag)
        np.greater(s, 0, out=flag)
        np.multiply(gy, slope, out=t)
        _select(gy, t, flag, u, o)

    _tiled(run, out, gy, s, temps=3)


def hardsigmoid(x, out):
    """out = min(max(x / 6 + 1 / 2, 0), 1)."""

    def run(o, x):
        np.add(x, 3, out=o)
        np.clip(o, 0, 6, out=o)
        np.multiply(o, 1 / 6, out=o)

    _tiled(run, out, x)


def hardswish(x, out):
    """out = x * hardsigmoid(x)."""

    def run(o, x, t):
        np.add(x, 3, out=t)
        np.clip(t, 0, 6, out=t)
        np.multiply(t, 1 / 6, out=t)
        np.multiply(x, t, out=o)

    _tiled(run, out, x, temps=1)


def hardswish_backward(gy, x, out):
    """out = gy times 0 below -3, x / 3 + 1 / 2 up to 3, 1 above."""

    def run(o, gy, x, t, flag):
        flag = _flags(flag)
        np.multiply(x, 1 / 3, out=t)
        np.add(t, 0.5, out=t)
        np.less_equal(x, -3, out=flag)
        np.copyto(t, 0, where=flag)
        np.greater_equal(x, 3, out=flag)
        np.copyto(t, 1, where=flag)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=2)


def window_backward(gy, s, low, high, scale, out):
    """out = scale * gy where low < s < high, else 0: the gradient of a ramp between two constants."""

    def run(o, gy, s, t, u, v):
        inside, below = _flags(u), _flags(v)
        np.greater(s, low, out=inside)
        np.less(s, high, out=below)
        np.logical_and(inside, below, out=inside)
        _keep(gy, inside, t, o)
        if scale != 1:
            np.multiply(o, scale, out=o)

    _tiled(run, out, gy, s, temps=3)


def shrink(x, low, high, shift, out):
    """out = 0 where low <= x <= high, else x moved towards zero by ``shift``."""

    def run(o, x, t, u, v):
        if shift:
            _sign(x, t, u)
            np.multiply(u, -shift, out=u)
            np.add(u, x, out=u)
        _outside(x, low, high, v, t)
        _keep(u if shift else x, _flags(v), t, o)

    _tiled(run, out, x, temps=3)


def _outside(x, low, high, first, second):
    """The flags of scratch tile ``first`` = not low <= x <= high (so that nan is outside)."""
    flag, other = _flags(first), _flags(second)
    np.less_equal(x, high, out=flag)
    np.greater_equal(x, low, out=other)
    np.logical_and(flag, other, out=flag)
    np.logical_not(flag, out=flag)


def shrink_backward(gy, x, low, high, out):
    """out = 0 where low <= x <= high, else gy."""

    def run(o, gy, x, t, v):
        _outside(x, low, high, v, t)
        _keep(gy, _flags(v), t, o)

    _tiled(run, out, gy, x, temps=2)


def threshold(x, limit, value, out):
    """out = x where x > limit, else value."""

    def run(o, x, flag):
        np.less_equal(x, limit, out=flag)
        np.copyto(o, x)
        np.copyto(o, value, where=flag)

    _tiled(run, out, x, temps=1, dtype=np.bool_)


def threshold_backward(gy, x, limit, out):
    """out = 0 where x <= limit, else gy."""

    def run(o, gy, x, t, u):
        flag = _flags(u)
        np.less_equal(x, limit, out=flag)
        _drop(gy, flag, t, o)

    _tiled(run, out, gy, x, temps=2)


def prelu(x, weight, out):
    """out = x where x > 0, else weight * x; weight is broadcast to x's shape."""

    def run(o, x, w, t, u, flag):
        flag = _flags(flag)
        np.greater(x, 0, out=flag)
        np.multiply(x, w, out=t)
        _select(x, t, flag, u, o)

    _tiled(run, out, x, np.broadcast_to(weight, out.shape), temps=3)


def prelu_backward(gy, x, weight, out):
    """out = gy where x > 0, else weight * gy."""

    def run(o, gy, x, w, t, u, flag):
        flag = _flags(flag)
        np.greater(x, 0, out=flag)
        np.multiply(gy, w, out=t)
        _select(gy, t, flag, u, o)

    _tiled(run, out, gy, x, np.broadcast_to(weight, out.shape), temps=3)


def prelu_backward_weight(gy, x, out):
    """out = gy * min(x, 0)."""

    def run(o, gy, x, t):
        np.minimum(x, 0, out=t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, x, temps=1)
