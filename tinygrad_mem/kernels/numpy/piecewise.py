"""Activations of straight pieces, of their formulas. ``out`` of a backward may be ``gy``."""

import numpy as np

from ...dtypes import is_floating
from ..formula import formula
from .fast import threads, tiles
from .fast.computed import computed


@formula(lambda x: np.maximum(x, 0), traced=True)
def relu(x, out):
    """out = max(x, 0)."""
    if out.size <= tiles.SMALL or not is_floating(out.dtype):
        np.maximum(x, 0, out=out)
    else:  # beside a number, ``np.maximum`` takes twice as long
        tiles.tiled_wide(lambda o, x: np.clip(x, 0, np.inf, out=o), out, x)


@formula(lambda gy, y: np.where(y <= 0, 0, gy), traced=True)
def relu_backward(gy, y, out):
    """out = 0 where y <= 0, else gy: nan is no reason to keep a gradient back."""
    if out.size > _FEW:
        tiles.tiled_wide(_kept, out, gy, y, temps=2, passes=2)  # on two cores 200,000 numbers took 1.9 of the time
        return
    off = threads.scratch(out.shape, np.bool_)
    np.less_equal(y, 0, out=off)
    if out is not gy:
        np.copyto(out, gy)
    np.copyto(out, 0, where=off)


_FEW = 1 << 11  # numbers up to which fewer ufuncs matter, and not what each takes


def _kept(out, gy, y, flag, work):
    off = tiles.flags(flag)
    np.less_equal(y, 0, out=off)
    tiles.drop(gy, off, work, out)


@formula(lambda x, slope: np.where(x > 0, x, slope * x), traced=True)
def leaky_relu(x, slope, out):
    """out = x where x > 0, else slope * x."""
    (_larger if 0 <= slope <= 1 else _both_sides)(x, slope, out)


_larger = computed(lambda x, slope, out: np.maximum(x, x * slope))
_both_sides = computed(lambda x, slope, out: np.maximum(x, 0) + np.minimum(x, 0) * slope)


@formula(lambda gy, s, slope: np.where(s > 0, gy, gy * slope), traced=True)
def leaky_relu_backward(gy, s, slope, out):
    """out = gy where s > 0, else slope * gy; s is x, or y where the slope is positive."""
    if slope == 1:  # nothing to choose between
        np.copyto(out, gy)
    else:
        _one_of_both(gy, s, slope, out)


_one_of_both = computed(lambda gy, s, slope, out: np.where(s > 0, gy, gy * slope))


@computed
def hardsigmoid(x, out):
    """out = min(max(x / 6 + 1 / 2, 0), 1)."""
    return np.clip(x + 3, 0, 6) * (1 / 6)


@computed
def hardswish(x, out):
    """out = x * hardsigmoid(x)."""
    return x * (np.clip(x + 3, 0, 6) * (1 / 6))


@computed
def hardswish_backward(gy, x, out):
    """out = gy times 0 below -3, x / 3 + 1 / 2 up to 3, 1 above, and where x is nan."""
    slope = np.where(x <= -3, 0, x * (1 / 3) + 0.5)
    return gy * np.where(x < 3, slope, 1)


@computed
def hardtanh_backward(gy, y, low, high, out):
    """out = 0 where y <= low or y >= high, else gy, also where y is nan."""
    return np.where((y <= low) | (y >= high), 0, gy)


@computed
def hardsigmoid_backward(gy, y, low, high, out):
    """out = gy / 6 where low < y < high, else 0."""
    return np.where((y > low) & (y < high), gy, 0) * (1 / 6)


@computed
def threshold(x, limit, value, out):
    """out = x where x > limit, else value."""
    return np.where(x <= limit, value, x)


@computed
def threshold_backward(gy, x, limit, out):
    """out = 0 where x <= limit, else gy."""
    return np.where(x <= limit, 0, gy)


@computed
def prelu(x, weight, out):
    """out = x where x > 0, else weight * x; weight is broadcast to x's shape."""
    return np.where(x > 0, x, x * weight)


@computed
def prelu_backward(gy, x, weight, out):
    """out = gy where x > 0, else weight * gy."""
    return np.where(x > 0, gy, gy * weight)


@computed
def prelu_backward_weight(gy, x, out):
    """out = gy * min(x, 0)."""
    return gy * np.minimum(x, 0)
