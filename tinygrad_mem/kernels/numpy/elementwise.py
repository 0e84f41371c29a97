"""Elementwise arithmetic. Operands may have another dtype than ``out``: ufuncs cast in their own small buffers."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from ...dtypes import HALVES, is_floating
from ..formula import Kernel, formula
from .fast import erf as _erf
from .fast import halves, threads, tiles
from .fast.computed import computed, of_each
from .fast.erfinv import erfinv as _fast_erfinv

_SMALL = 2 * threads.GRAIN  # elements below which one core computes all


@formula(lambda x, out: np.broadcast_to(x, out.shape))
def copy(x, out):
    """out = x, broadcast and cast."""
    if isinstance(x, np.ndarray) and x.shape == out.shape:
        halves.cast(x, out)
    else:
        np.copyto(out, x, casting="unsafe")


def staging_workspace(x):
    """Bytes of workspace for a copy to or from the host: none, arrays are there."""
    return 0


def host_workspace(x):
    """Bytes of workspace for a host array, so that kernels can read it: none."""
    return 0


@formula(lambda value, out: np.full(out.shape, value))
def fill(value, out):
    """out = value everywhere."""
    out.fill(value)


def _on_cores(ufunc: Any, operands: tuple, out: np.ndarray) -> None:
    """One ufunc; large arrays with equal strides are divided into one part per core."""
    unlike = (a.shape != out.shape or not a.flags.c_contiguous for a in (out, *operands) if type(a) is np.ndarray)
    if out.size < _SMALL or any(unlike):
        ufunc(*operands, out=out, casting="unsafe")
        return
    flat = out.reshape(-1)
    flats = [a.reshape(-1) if type(a) is np.ndarray else a for a in operands]

    def part(i: int, j: int) -> None:
        ufunc(*[a[i:j] if type(a) is np.ndarray else a for a in flats], out=flat[i:j], casting="unsafe")

    threads.split(flat.size, part)


def _named(kernel: Kernel, ufunc: Any, doc: str | None, traced: str) -> Kernel:
    vars(kernel).update(ufunc=ufunc, traced=traced)
    kernel.__doc__, kernel.__name__ = doc, ufunc.__name__  # pyright: ignore[reportAttributeAccessIssue]
    return kernel


def _binary(ufunc: Any, says: str):
    @formula(lambda x, y: ufunc(x, y))
    def kernel(x, y, out):
        _on_cores(ufunc, (x, y), out)

    return _named(kernel, ufunc, f"out = {says}.", "ufunc")


def _arithmetic(ufunc: Any, says: str):
    """As :func:`_binary`. As in PyTorch, a number is not rounded to half precision first: x / 70000 is not x / inf."""
    plain = _binary(ufunc, says)

    @formula(plain.formula)  # pyright: ignore[reportFunctionMemberAccess]
    def kernel(x, y, out):
        if type(x) is not type(y) and out.dtype in HALVES and (_is_wide(x, out.dtype) or _is_wide(y, out.dtype)):
            ufunc(x, y, out, dtype=np.float32, casting="unsafe")
        else:
            _on_cores(ufunc, (x, y), out)

    return _named(kernel, ufunc, plain.__doc__, "arithmetic")


def _is_wide(number: Any, half: np.dtype) -> bool:
    """True if it is a Python number that ``half`` would change."""
    return isinstance(number, (float, int)) and float(half.type(number)) != number


def _unary(ufunc: Any, says: str):
    @formula(lambda x: ufunc(x))
    def kernel(x, out):
        _on_cores(ufunc, (x,), out)

    return _named(kernel, ufunc, f"out = {says}.", "ufunc")


add = _arithmetic(np.add, "x + y")
subtract = _arithmetic(np.subtract, "x - y")
multiply = _arithmetic(np.multiply, "x * y")
divide = _arithmetic(np.divide, "x / y")
fmod = _binary(np.fmod, "x - y * trunc(x / y)")
maximum = _binary(np.maximum, "max(x, y), nan if either is")
minimum = _binary(np.minimum, "min(x, y), nan if either is")
arctan2 = _binary(np.arctan2, "the angle of (y, x)")
equal = _binary(np.equal, "x == y")
not_equal = _binary(np.not_equal, "x != y")
less = _binary(np.less, "x < y")
less_equal = _binary(np.less_equal, "x <= y")
greater = _binary(np.greater, "x > y")
greater_equal = _binary(np.greater_equal, "x >= y")
logical_and = _binary(np.logical_and, "x and y")
logical_or = _binary(np.logical_or, "x or y")
logical_xor = _binary(np.logical_xor, "x xor y")
bitwise_and = _binary(np.bitwise_and, "x & y")
bitwise_or = _binary(np.bitwise_or, "x | y")
bitwise_xor = _binary(np.bitwise_xor, "x ^ y")
left_shift = _binary(np.left_shift, "x << y")
right_shift = _binary(np.right_shift, "x >> y")

negative = _unary(np.negative, "-x")
absolute = _unary(np.absolute, "|x|")
exp = _unary(np.exp, "e**x")
exp2 = _unary(np.exp2, "2**x")
expm1 = _unary(np.expm1, "e**x - 1")
log = _unary(np.log, "ln(x)")
log1p = _unary(np.log1p, "ln(1 + x)")
log2 = _unary(np.log2, "log2(x)")
log10 = _unary(np.log10, "log10(x)")
sqrt = _unary(np.sqrt, "the square root of x")
square = _unary(np.square, "x**2")
sin = _unary(np.sin, "sin(x)")
cos = _unary(np.cos, "cos(x)")
tan = _unary(np.tan, "tan(x)")
arcsin = _unary(np.arcsin, "asin(x)")
arccos = _unary(np.arccos, "acos(x)")
arctan = _unary(np.arctan, "atan(x)")
sinh = _unary(np.sinh, "sinh(x)")
cosh = _unary(np.cosh, "cosh(x)")
tanh = _unary(np.tanh, "tanh(x)")
floor = _unary(np.floor, "the largest integer not above x")
ceil = _unary(np.ceil, "the smallest integer not below x")
rint = _unary(np.rint, "the nearest integer, halves to even")
trunc = _unary(np.trunc, "x without its fraction")
logical_not = _unary(np.logical_not, "not x")
bitwise_not = _unary(np.invert, "~x")
isnan = _unary(np.isnan, "whether x is nan")
isinf = _unary(np.isinf, "whether x is infinite")
isfinite = _unary(np.isfinite, "whether x is finite")


@formula(lambda x: (x > 0) * 1.0 - (x < 0), traced=True)
def sign(x, out):
    """out = 1 above, -1 below zero, 0 at zero and for nan."""

    def run(o, x, above, below):
        np.greater(x, 0, out=above)
        np.less(x, 0, out=below)
        np.subtract(above.view(np.int8), below.view(np.int8), out=o, casting="unsafe")

    tiles.tiled_wide(run, out, x, temps=2, dtype=np.bool_)


@formula(lambda x: 1.0 / x, traced=True)
def reciprocal(x, out):
    """out = 1 / x."""
    _on_cores(np.divide, (1.0, x), out)


@formula(lambda x: 1.0 / np.sqrt(x), traced=True)
def rsqrt(x, out):
    """out = 1 / sqrt(x)."""
    _on_cores(np.sqrt, (x,), out)
    _on_cores(np.divide, (1.0, out), out)


@computed
def sigmoid(x, out):
    """out = 1 / (1 + e**-x): where e**-x overflows, 0. NumPy's tanh, which cannot overflow, takes twice as long."""
    return 1 / (np.exp(x * -1.0) + 1)


@formula(of_each(math.erf), traced=True)
def erf(x, out):
    """out = the error function of x."""
    _erf.erf(x, _erf.is_double(out), out)


@formula(of_each(math.erfc), traced=True)
def erfc(x, out):
    """out = 1 - erf(x)."""
    _erf.erfc(x, _erf.is_double(out), out)


def _erfinv(x):
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return NormalDist(sigma=math.sqrt(0.5)).inv_cdf((x + 1) / 2)


@formula(lambda x: np.vectorize(_erfinv, otypes=[float])(x))
def erfinv(x, out):
    """out = the y with erf(y) = x."""
    _fast_erfinv(x, out)


@formula(lambda condition, x, y: np.where(condition, x, y))
def where(condition, x, y, out):
    """out = x where condition, else y; x and y may be numbers."""
    np.copyto(out, y, casting="unsafe")
    np.copyto(out, x, where=condition, casting="unsafe")


@formula(lambda x, mask, out: np.where(mask, x, out))
def masked_copy(x, mask, out):
    """out = x where mask; elsewhere out stays as it is."""
    np.copyto(out, x, where=mask, casting="unsafe")


@formula(lambda value, mask, out: np.where(mask, value, out))
def masked_fill(value, mask, out):
    """out = value where mask."""
    np.copyto(out, value, where=mask, casting="unsafe")


def _clamp(x, low, high):
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@formula(_clamp)
def clamp(x, low, high, out):
    """out = min(max(x, low), high); ``None`` is no bound; nan stays."""
    if low is None:
        np.minimum(x, high, out=out, casting="unsafe")
    elif high is None:
        np.maximum(x, low, out=out, casting="unsafe")
    elif x.dtype == out.dtype and is_floating(x.dtype):
        tiles.tiled_wide(lambda o, x: np.clip(x, low, high, out=o), out, x)  # one pass, and faster than either of two
    else:
        np.maximum(x, low, out=out, casting="unsafe")
        np.minimum(out, high, out=out, casting="unsafe")


@computed
def nan_to_num(x, nan, high, low, out):
    """out = x with nan, inf and -inf replaced."""
    finite = np.where(x == -np.inf, low, np.where(x == np.inf, high, x))
    return np.where(np.isnan(x), nan, finite)


# --- derivatives: out = gy times the derivative, from what the op saved; out may be gy

_LN2, _LN10, _ROOT_PI = math.log(2), math.log(10), math.sqrt(math.pi)

absolute_backward = computed(lambda gy, x, out: gy * np.sign(x))
exp2_backward = computed(lambda gy, y, out: gy * (y * _LN2))
expm1_backward = computed(lambda gy, y, out: gy * (y + 1.0))
log1p_backward = computed(lambda gy, x, out: gy * (1.0 / (x + 1.0)))
log2_backward = computed(lambda gy, x, out: gy * (1.0 / (x * _LN2)))
log10_backward = computed(lambda gy, x, out: gy * (1.0 / (x * _LN10)))
sqrt_backward = computed(lambda gy, y, out: gy * (0.5 / y))
rsqrt_backward = computed(lambda gy, y, out: gy * (y**2 * y * -0.5))
reciprocal_backward = computed(lambda gy, y, out: gy * -(y**2))
square_backward = computed(lambda gy, x, out: gy * (x * 2.0))
sin_backward = computed(lambda gy, x, out: gy * np.cos(x))
cos_backward = computed(lambda gy, x, out: gy * -np.sin(x))
tan_backward = computed(lambda gy, y, out: gy * (y**2 + 1.0))
arcsin_backward = computed(lambda gy, x, out: gy * (1.0 / np.sqrt(1.0 - x**2)))
arccos_backward = computed(lambda gy, x, out: gy * (-1.0 / np.sqrt(1.0 - x**2)))
arctan_backward = computed(lambda gy, x, out: gy * (1.0 / (x**2 + 1.0)))
sinh_backward = computed(lambda gy, x, out: gy * np.cosh(x))
cosh_backward = computed(lambda gy, x, out: gy * np.sinh(x))
tanh_backward = computed(lambda gy, y, out: gy * (1.0 - y**2))
sigmoid_backward = computed(lambda gy, y, out: gy * ((1.0 - y) * y))
erf_backward = computed(lambda gy, x, out: gy * (np.exp(-(x**2)) * (2 / _ROOT_PI)))
erfc_backward = computed(lambda gy, x, out: gy * (np.exp(-(x**2)) * (-2 / _ROOT_PI)))
erfinv_backward = computed(lambda gy, y, out: gy * (np.exp(y**2) * (_ROOT_PI / 2)))


@computed
def power_backward_x(gy, x, y, out):
    """out = gy * y * x**(y - 1), 0 where y is 0; x or y may be a number."""
    slope = np.power(x, y - 1.0) * y
    return gy * np.where(np.equal(y, 0), 0, slope)


@computed
def power_backward_y(gy, x, y, out):
    """out = gy * y * ln(x), y being the power; 0 where x is 0 and y finite."""
    slope = np.log(x)
    return gy * (np.where(np.isfinite(y) & np.equal(x, 0), 0, slope) * y)


@computed
def arctan2_backward(gy, mine, other, sign, out):
    """out = sign * gy * other / (mine**2 + other**2): the gradient of one coordinate of an angle, 0 where both are 0."""
    far = np.hypot(mine, other)  # the squares may be out of range
    slope = other / far / far
    return np.where(far == 0, 0, slope) * gy * sign


@computed
def extremum_backward(gy, x, y, low, out):
    """out = 0 where x is the smaller (``low``: the larger), half of gy where they are equal, else gy: the gradient of x."""
    shared = np.where(x == y, gy * 0.5, gy)
    return np.where(x > y if low else x < y, 0, shared)


@computed
def clamp_backward(gy, x, low, high, out):
    """out = gy where low <= x <= high, else 0."""
    if high is None:
        return np.where(x >= low, gy, 0)
    return np.where(x <= high if low is None else (x >= low) & (x <= high), gy, 0)
