"""Elementwise arithmetic. Operands may differ in dtype from ``out``: ufuncs cast in small buffers of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dtypes import HALVES as _HALVES
from ...dtypes import is_floating as _is_floating
from . import erf as _erf
from .erfinv import erfinv_tile as _erfinv_tile
from .halves import cast as _cast
from .threads import GRAIN as _GRAIN
from .threads import split as _split
from .tiles import drop as _drop
from .tiles import flags as _flags
from .tiles import keep as _keep
from .tiles import sign as _sign
from .tiles import tiled_wide as _tiled


def copy(x, out):
    """out = x, broadcast and cast."""
    if isinstance(x, np.ndarray) and x.shape == out.shape:
        _cast(x, out)
    else:
        np.copyto(out, x, casting="unsafe")


def staging_workspace(x):
    """Bytes that an array wants on its way to the host or from there: it is there."""
    return 0


def host_workspace(x):
    """Bytes that an array of the host wants before kernels can read it: it is there."""
    return 0


def fill(value, out):
    """out = value everywhere."""
    out.fill(value)


def _ufunc(ufunc: Any, operands: tuple, out: np.ndarray) -> None:
    """One ufunc; large arrays that lie alike in memory are cut into a part a core."""
    arrays = [a for a in operands if type(a) is np.ndarray]
    alike = out.flags.c_contiguous and all(a.shape == out.shape and a.flags.c_contiguous for a in arrays)
    if out.size < 2 * _GRAIN or not alike:
        ufunc(*operands, out=out, casting="unsafe")
        return
    flat = out.reshape(-1)
    flats = [a.reshape(-1) if type(a) is np.ndarray else a for a in operands]

    def part(i: int, j: int) -> None:
        ufunc(*[a[i:j] if type(a) is np.ndarray else a for a in flats], out=flat[i:j], casting="unsafe")

    _split(flat.size, part)


def _binary(ufunc: Any, formula: str) -> Any:
    small = 2 * _GRAIN

    def kernel(x, y, out):
        if out.size < small:
            ufunc(x, y, out=out, casting="unsafe")
        else:
            _ufunc(ufunc, (x, y), out)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = ufunc.__name__
    return kernel


def _arithmetic(ufunc: Any, formula: str) -> Any:
    """As :func:`_binary`; a number that a half has not is not rounded to it first, as in PyTorch: x / 70000 is not x / inf."""
    small = 2 * _GRAIN

    def kernel(x, y, out):
        if out.dtype in _HALVES and (_is_wide(x, out.dtype) or _is_wide(y, out.dtype)):
            ufunc(x, y, out=out, dtype=np.float32, casting="unsafe")
        elif out.size < small:
            ufunc(x, y, out=out, casting="unsafe")
        else:
            _ufunc(ufunc, (x, y), out)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = ufunc.__name__
    return kernel


def _is_wide(number: Any, half: np.dtype) -> bool:
    """Whether it is a Python number that ``half`` would change."""
    return isinstance(number, (float, int)) and float(half.type(number)) != number


def _unary(ufunc: Any, formula: str) -> Any:
    small = 2 * _GRAIN

    def kernel(x, out):
        if out.size < small:
            ufunc(x, out=out, casting="unsafe")
        else:
            _ufunc(ufunc, (x,), out)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = ufunc.__name__
    return kernel


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
arcsinh = _unary(np.arcsinh, "asinh(x)")
arccosh = _unary(np.arccosh, "acosh(x)")
arctanh = _unary(np.arctanh, "atanh(x)")
floor = _unary(np.floor, "the largest integer not above x")
ceil = _unary(np.ceil, "the smallest integer not below x")
rint = _unary(np.rint, "the nearest integer, halves to even")
trunc = _unary(np.trunc, "x without its fraction")
logical_not = _unary(np.logical_not, "not x")
bitwise_not = _unary(np.invert, "~x")
isnan = _unary(np.isnan, "whether x is nan")
isinf = _unary(np.isinf, "whether x is infinite")
isfinite = _unary(np.isfinite, "whether x is finite")


def sign(x, out):
    """out = 1 above, -1 below zero, 0 at zero and for nan."""

    def run(o, x, above, below):
        np.greater(x, 0, out=above)
        np.less(x, 0, out=below)
        np.subtract(above.view(np.int8), below.view(np.int8), out=o, casting="unsafe")

    _tiled(run, out, x, temps=2, dtype=np.bool_)


def reciprocal(x, out):
    """out = 1 / x."""
    _ufunc(np.divide, (1.0, x), out)


def rsqrt(x, out):
    """out = 1 / sqrt(x)."""
    _ufunc(np.sqrt, (x,), out)
    _ufunc(np.divide, (1.0, out), out)


def sigmoid(x, out):
    """out = 1 / (1 + e**-x): where e**-x overflows, 0. NumPy's tanh, which cannot overflow, takes twice as long."""

    def run(o, x):
        np.multiply(x, -1.0, out=o, casting="unsafe")
        np.exp(o, out=o)
        np.add(o, 1, out=o)
        np.divide(1, o, out=o)

    _tiled(run, out, x)


def erf(x, out):
    """out = the error function of x."""
    _tiled(_erf.erf_tile, out, x, temps=_erf.tiles(out, 1), dtype=_erf.wide(out))


def erfc(x, out):
    """out = 1 - erf(x)."""
    _tiled(_erf.erfc_tile, out, x, temps=6, dtype=_erf.wide(out))


def erfinv(x, out):
    """out = the y with erf(y) = x."""
    _tiled(_erfinv_tile, out, x, temps=7, dtype=_erf.wide(out))


def where(condition, x, y, out):
    """out = x where condition, else y; x and y may be numbers."""
    np.copyto(out, y, casting="unsafe")
    np.copyto(out, x, where=condition, casting="unsafe")


def masked_copy(x, mask, out):
    """out = x where mask; elsewhere out stays as it is."""
    np.copyto(out, x, where=mask, casting="unsafe")


def masked_fill(value, mask, out):
    """out = value where mask."""
    np.copyto(out, value, where=mask, casting="unsafe")


def clamp(x, low, high, out):
    """out = x, not below low and not above high; ``None`` is no bound; nan stays."""
    if low is None:
        np.minimum(x, high, out=out, casting="unsafe")
    elif high is None:
        np.maximum(x, low, out=out, casting="unsafe")
    elif x.dtype == out.dtype and _is_floating(x.dtype):
        _tiled(lambda o, x: np.clip(x, low, high, out=o), out, x)  # one pass, and faster than either of two
    else:
        np.maximum(x, low, out=out, casting="unsafe")
        np.minimum(out, high, out=out, casting="unsafe")


def nan_to_num(x, nan, high, low, out):
    """out = x with nan, inf and -inf replaced."""

    def run(o, x, flag):
        np.copyto(o, x)
        for test, value in ((np.isnan, nan), (np.isposinf, high), (np.isneginf, low)):
            test(x, out=flag)
            np.copyto(o, value, where=flag)

    _tiled(run, out, x, temps=1, dtype=np.bool_)


# --- derivatives: out = gy times the derivative, from what the op saved; out may be gy


def _derivative(factor: Any, formula: str, saved: str, temps: int = 1) -> Any:
    """A backward kernel: ``factor(saved, t, ...)`` leaves the derivative in scratch ``t``."""

    def run(o, gy, s, t, *more):
        factor(s, t, *more)
        np.multiply(gy, t, out=o)

    def from_x(gy, x, out):
        _tiled(run, out, gy, x, temps=temps)

    def from_y(gy, y, out):
        _tiled(run, out, gy, y, temps=temps)

    kernel = from_x if saved == "x" else from_y
    kernel.__doc__ = f"out = gy * {formula}."
    return kernel


def _chain(*steps: tuple) -> Any:
    """Ufuncs one after the other in scratch: ``(ufunc, *operands)``, where "s" is the saved array and "t" the scratch."""

    def factor(s, t):
        for ufunc, *operands in steps:
            ufunc(*[s if a == "s" else t if a == "t" else a for a in operands], out=t)

    return factor


absolute_backward = _derivative(lambda s, t, u: _sign(s, u, t), "sign(x)", "x", temps=2)
exp2_backward = _derivative(_chain((np.multiply, "s", float(np.log(2)))), "y * ln 2", "y")
expm1_backward = _derivative(_chain((np.add, "s", 1.0)), "(y + 1)", "y")
log1p_backward = _derivative(_chain((np.add, "s", 1.0), (np.divide, 1.0, "t")), "1 / (1 + x)", "x")
log2_backward = _derivative(_chain((np.multiply, "s", float(np.log(2))), (np.divide, 1.0, "t")), "1 / (x ln 2)", "x")
log10_backward = _derivative(_chain((np.multiply, "s", float(np.log(10))), (np.divide, 1.0, "t")), "1 / (x ln 10)", "x")
sqrt_backward = _derivative(_chain((np.divide, 0.5, "s")), "1 / (2y)", "y")
rsqrt_backward = _derivative(_chain((np.square, "s"), (np.multiply, "t", "s"), (np.multiply, "t", -0.5)), "-y**3 / 2", "y")
reciprocal_backward = _derivative(_chain((np.square, "s"), (np.negative, "t")), "-y**2", "y")
square_backward = _derivative(_chain((np.multiply, "s", 2.0)), "2x", "x")
sin_backward = _derivative(_chain((np.cos, "s")), "cos(x)", "x")
cos_backward = _derivative(_chain((np.sin, "s"), (np.negative, "t")), "-sin(x)", "x")
tan_backward = _derivative(_chain((np.square, "s"), (np.add, "t", 1.0)), "(1 + y**2)", "y")
arcsin_backward = _derivative(
    _chain((np.square, "s"), (np.subtract, 1.0, "t"), (np.sqrt, "t"), (np.divide, 1.0, "t")), "1 / sqrt(1 - x**2)", "x"
)
arccos_backward = _derivative(
    _chain((np.square, "s"), (np.subtract, 1.0, "t"), (np.sqrt, "t"), (np.divide, -1.0, "t")), "-1 / sqrt(1 - x**2)", "x"
)
arctan_backward = _derivative(_chain((np.square, "s"), (np.add, "t", 1.0), (np.divide, 1.0, "t")), "1 / (1 + x**2)", "x")
sinh_backward = _derivative(_chain((np.cosh, "s")), "cosh(x)", "x")
cosh_backward = _derivative(_chain((np.sinh, "s")), "sinh(x)", "x")
tanh_backward = _derivative(_chain((np.square, "s"), (np.subtract, 1.0, "t")), "(1 - y**2)", "y")
arcsinh_backward = _derivative(
    _chain((np.square, "s"), (np.add, "t", 1.0), (np.sqrt, "t"), (np.divide, 1.0, "t")), "1 / sqrt(x**2 + 1)", "x"
)
arccosh_backward = _derivative(
    _chain((np.square, "s"), (np.subtract, "t", 1.0), (np.sqrt, "t"), (np.divide, 1.0, "t")), "1 / sqrt(x**2 - 1)", "x"
)
arctanh_backward = _derivative(_chain((np.square, "s"), (np.subtract, 1.0, "t"), (np.divide, 1.0, "t")), "1 / (1 - x**2)", "x")
sigmoid_backward = _derivative(_chain((np.subtract, 1.0, "s"), (np.multiply, "t", "s")), "y * (1 - y)", "y")
erf_backward = _derivative(
    _chain((np.square, "s"), (np.negative, "t"), (np.exp, "t"), (np.multiply, "t", 2 / float(np.sqrt(np.pi)))),
    "2 / sqrt(pi) * e**(-x**2)",
    "x",
)
erfc_backward = _derivative(
    _chain((np.square, "s"), (np.negative, "t"), (np.exp, "t"), (np.multiply, "t", -2 / float(np.sqrt(np.pi)))),
    "-2 / sqrt(pi) * e**(-x**2)",
    "x",
)


erfinv_backward = _derivative(
    _chain((np.square, "s"), (np.exp, "t"), (np.multiply, "t", float(np.sqrt(np.pi)) / 2)), "sqrt(pi) / 2 * e**(y**2)", "y"
)


def power_backward_x(gy, x, y, out):
    """out = gy * y * x**(y - 1), 0 where y is 0; x or y may be a number."""

    def run(o, gy, x, y, t, u):
        np.subtract(y, 1.0, out=t)
        np.power(x, t, out=t)
        np.multiply(t, y, out=t)
        np.copyto(t, 0.0, where=np.equal(y, 0, out=_flags(u)) if isinstance(y, np.ndarray) else y == 0)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, _spread(x, out), _spread(y, out), temps=2)


def power_backward_y(gy, x, y, out):
    """out = gy * x**y * ln(x), 0 where x is 0 and y is not negative."""

    def run(o, gy, x, p, t, u, v):
        np.log(x, out=t)
        finite, none = _flags(u), _flags(v)
        np.isfinite(p, out=finite)
        np.equal(x, 0, out=none)
        np.copyto(t, 0.0, where=np.logical_and(finite, none, out=none))
        np.multiply(t, p, out=t)
        np.multiply(gy, t, out=o)

    _tiled(run, out, gy, _spread(x, out), _spread(y, out), temps=3)


def _spread(x, out):
    return np.broadcast_to(x, out.shape) if isinstance(x, np.ndarray) else x


def arctan2_backward(gy, mine, other, sign, out):
    """out = sign * gy * other / (mine**2 + other**2): the gradient of one coordinate of an angle, 0 where both are 0."""

    def run(o, gy, a, b, t, u):
        np.hypot(a, b, out=u)  # the squares may be out of range
        np.divide(b, u, out=t)
        np.divide(t, u, out=t)
        np.copyto(t, 0.0, where=np.equal(u, 0, out=_flags(u)))
        np.multiply(t, gy, out=t)
        np.multiply(t, sign, out=o)

    _tiled(run, out, gy, np.broadcast_to(mine, out.shape), np.broadcast_to(other, out.shape), temps=2)


def extremum_backward(gy, x, y, low, out):
    """out = 0 where x is the smaller (``low``: the larger), half of gy where they are equal, else gy: the gradient of x."""

    def run(o, gy, x, y, t, f):
        flag = _flags(f)
        np.equal(x, y, out=flag)
        np.multiply(flag.view(np.int8), -0.5, out=t, casting="unsafe")
        np.add(t, 1, out=t)
        np.multiply(gy, t, out=o)
        (np.greater if low else np.less)(x, y, out=flag)
        _drop(o, flag, t, o)

    _tiled(run, out, gy, _spread(x, out), _spread(y, out), temps=2)


def clamp_backward(gy, x, low, high, out):
    """out = gy where low <= x <= high, else 0."""

    def run(o, gy, x, t, f, g):
        inside, below = _flags(f), _flags(g)
        if low is not None:
            np.greater_equal(x, low, out=inside)
        if high is not None:
            np.less_equal(x, high, out=inside if low is None else below)
            if low is not None:
                np.logical_and(inside, below, out=inside)
        _keep(gy, inside, t, o)

    _tiled(run, out, gy, x, temps=3)
