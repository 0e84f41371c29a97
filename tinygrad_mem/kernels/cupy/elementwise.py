"""Elementwise arithmetic on a GPU: CuPy's ufuncs where they exist, otherwise one fused kernel per function.

A ufunc of CuPy copies an operand that shares memory with ``out`` and is another object (see ``apart``). A fused kernel does
not.
"""

from __future__ import annotations

from typing import Any

import cupy as _cupy

from .apart import apart as _apart
from .formula import backward as _backward
from .formula import forward as _forward
from .fused import Fused as _Fused

_CAST: dict[str, Any] = {"casting": "unsafe"}


def _fused(inputs: str, formula: str, name: str, wide: str = "Z") -> _Fused:
    """A kernel z = formula of arrays and numbers; W is the wide type of one of them."""
    return _Fused(inputs, "Z z", f"typedef typename Wide<{wide}>::type W; z = Z({formula})", f"tinygrad_mem_{name}")


def copy(x, out):
    """out = x, broadcast and cast."""
    _cupy.copyto(out, _apart(x, out), casting="unsafe")


def staging_workspace(x):
    """Bytes of workspace for a copy to or from the host: an array that is not contiguous needs a contiguous buffer."""
    return 0 if x.flags.c_contiguous else x.nbytes


def host_workspace(x):
    """Bytes of workspace for a host array, so that kernels can read it."""
    return x.nbytes


def fill(value, out):
    """out = value everywhere."""
    out.fill(value)


def _binary(name: str, formula: str) -> Any:
    ufunc = getattr(_cupy, name)

    def kernel(x, y, out):
        ufunc(_apart(x, out), _apart(y, out), out=out, **_CAST)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = name
    return kernel


def _arithmetic(name: str, formula: str) -> Any:
    """As :func:`_binary`; float16 and a number are computed in float32: the number is not rounded to float16 first."""
    ufunc = getattr(_cupy, name)

    def kernel(x, y, out):
        x, y = _apart(x, out), _apart(y, out)
        if out.dtype.char == "e" and (isinstance(x, (float, int)) or isinstance(y, (float, int))):
            ufunc(x, y, out=out, dtype="f", **_CAST)
        else:
            ufunc(x, y, out=out, **_CAST)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = name
    return kernel


def _unary(name: str, formula: str) -> Any:
    ufunc = getattr(_cupy, name)

    def kernel(x, out):
        ufunc(_apart(x, out), out=out, **_CAST)

    kernel.__doc__ = f"out = {formula}."
    kernel.__name__ = name
    return kernel


add = _arithmetic("add", "x + y")
subtract = _arithmetic("subtract", "x - y")
multiply = _arithmetic("multiply", "x * y")
divide = _arithmetic("true_divide", "x / y")
fmod = _binary("fmod", "x - y * trunc(x / y)")
maximum = _binary("maximum", "max(x, y), nan if either is")
minimum = _binary("minimum", "min(x, y), nan if either is")
arctan2 = _binary("arctan2", "the angle of (y, x)")
equal = _binary("equal", "x == y")
not_equal = _binary("not_equal", "x != y")
less = _binary("less", "x < y")
less_equal = _binary("less_equal", "x <= y")
greater = _binary("greater", "x > y")
greater_equal = _binary("greater_equal", "x >= y")
logical_and = _binary("logical_and", "x and y")
logical_or = _binary("logical_or", "x or y")
logical_xor = _binary("logical_xor", "x xor y")
bitwise_and = _binary("bitwise_and", "x & y")
bitwise_or = _binary("bitwise_or", "x | y")
bitwise_xor = _binary("bitwise_xor", "x ^ y")

negative = _unary("negative", "-x")
absolute = _unary("absolute", "|x|")
exp = _unary("exp", "e**x")
exp2 = _unary("exp2", "2**x")
expm1 = _unary("expm1", "e**x - 1")
log = _unary("log", "ln(x)")
log1p = _unary("log1p", "ln(1 + x)")
log2 = _unary("log2", "log2(x)")
log10 = _unary("log10", "log10(x)")
sqrt = _unary("sqrt", "the square root of x")
square = _unary("square", "x**2")
sin = _unary("sin", "sin(x)")
cos = _unary("cos", "cos(x)")
tan = _unary("tan", "tan(x)")
arcsin = _unary("arcsin", "asin(x)")
arccos = _unary("arccos", "acos(x)")
arctan = _unary("arctan", "atan(x)")
sinh = _unary("sinh", "sinh(x)")
cosh = _unary("cosh", "cosh(x)")
tanh = _unary("tanh", "tanh(x)")
arcsinh = _unary("arcsinh", "asinh(x)")
arccosh = _unary("arccosh", "acosh(x)")
arctanh = _unary("arctanh", "atanh(x)")
floor = _unary("floor", "the largest integer not above x")
ceil = _unary("ceil", "the smallest integer not below x")
rint = _unary("rint", "the nearest integer, halves to even")
trunc = _unary("trunc", "x without its fraction")
logical_not = _unary("logical_not", "not x")
bitwise_not = _unary("invert", "~x")
isnan = _unary("isnan", "whether x is nan")
isinf = _unary("isinf", "whether x is infinite")
isfinite = _unary("isfinite", "whether x is finite")


def _from_x(formula: str, name: str) -> Any:
    fused = _forward(formula, name)

    def kernel(x, out):
        fused(x, out)

    kernel.__doc__ = f"out = {formula}, v in x."
    return kernel


sign = _from_x("(v > 0) - (v < 0)", "sign")
reciprocal = _from_x("W(1) / v", "reciprocal")
rsqrt = _from_x("rsqrt(v)", "rsqrt")
sigmoid = _from_x("W(1) / (W(1) + exp(-v))", "sigmoid")
erf = _from_x("erf(v)", "erf")
erfc = _from_x("erfc(v)", "erfc")
erfinv = _from_x("erfinv(v)", "erfinv")

# undefined in C: a shift by more than the number of bits. Here all bits are shifted out, and the sign stays
_LEFT = "y < 0 || y >= 8 * sizeof(W) ? W(0) : W(x) << y"
_RIGHT = "y < 0 || y >= 8 * sizeof(W) ? W(x) < W(0) ? W(-1) : W(0) : W(x) >> y"
_left_shift, _right_shift = _fused("X x, Y y", _LEFT, "left_shift"), _fused("X x, Y y", _RIGHT, "right_shift")


def left_shift(x, y, out):
    """out = x << y."""
    _left_shift(x, y, out)


def right_shift(x, y, out):
    """out = x >> y."""
    _right_shift(x, y, out)


_where = _fused("bool c, X x, Y y", "c ? Z(x) : Z(y)", "where")
_masked_copy = _fused("X x, bool m, Z before", "m ? Z(x) : Z(before)", "masked_copy")
_masked_fill = _fused("X value, bool m, Z before", "m ? Z(value) : Z(before)", "masked_fill")
_clamp = _Fused(  # a nan in x or in a bound gives nan
    "X x, L low, H high, bool below, bool above",
    "Z z",
    "typedef typename Wide<Z>::type W; W v = W(x);\n"
    "if (below && v == v && !(v >= W(low))) v = W(low);\n"
    "if (above && v == v && !(v <= W(high))) v = W(high);\n"
    "z = Z(v)",
    "tinygrad_mem_clamp",
)
_nan_to_num = _fused(
    "X x, float64 nan, float64 high, float64 low",
    "x != x ? Z(nan) : isinf(W(x)) ? Z(x > 0 ? high : low) : Z(x)",
    "nan_to_num",
)


def where(condition, x, y, out):
    """out = x where condition, else y; x and y may be numbers."""
    _where(condition, x, y, out)


def masked_copy(x, mask, out):
    """out = x where mask; elsewhere out stays as it is."""
    _masked_copy(x, mask, out, out)


def masked_fill(value, mask, out):
    """out = value where mask."""
    _masked_fill(value, mask, out, out)


def clamp(x, low, high, out):
    """out = min(max(x, low), high); ``None`` is no bound. A nan in x or in a bound gives nan."""
    _clamp(x, 0 if low is None else low, 0 if high is None else high, low is not None, high is not None, out)


def nan_to_num(x, nan, high, low, out):
    """out = x with nan, inf and -inf replaced."""
    _nan_to_num(x, nan, high, low, out)


# --- derivatives: out = gy times the derivative, from what the op saved; out may be gy


def _derivative(formula: str, saved: str, name: str) -> Any:
    fused = _backward(f"g * ({formula})", name)

    def from_x(gy, x, out):
        fused(gy, x, out)

    def from_y(gy, y, out):
        fused(gy, y, out)

    kernel = from_x if saved == "x" else from_y
    kernel.__doc__ = f"out = gy * {formula}, v in {saved}."
    return kernel


_LN2, _LN10, _ERF = "W(0.6931471805599453)", "W(2.302585092994046)", "W(1.1283791670955126)"

absolute_backward = _derivative("(v > 0) - (v < 0)", "x", "absolute")
exp2_backward = _derivative(f"v * {_LN2}", "y", "exp2")
expm1_backward = _derivative("v + W(1)", "y", "expm1")
log1p_backward = _derivative("W(1) / (W(1) + v)", "x", "log1p")
log2_backward = _derivative(f"W(1) / (v * {_LN2})", "x", "log2")
log10_backward = _derivative(f"W(1) / (v * {_LN10})", "x", "log10")
sqrt_backward = _derivative("W(0.5) / v", "y", "sqrt")
rsqrt_backward = _derivative("W(-0.5) * v * v * v", "y", "rsqrt")
reciprocal_backward = _derivative("-(v * v)", "y", "reciprocal")
square_backward = _derivative("W(2) * v", "x", "square")
sin_backward = _derivative("cos(v)", "x", "sin")
cos_backward = _derivative("-sin(v)", "x", "cos")
tan_backward = _derivative("W(1) + v * v", "y", "tan")
arcsin_backward = _derivative("rsqrt(W(1) - v * v)", "x", "arcsin")
arccos_backward = _derivative("-rsqrt(W(1) - v * v)", "x", "arccos")
arctan_backward = _derivative("W(1) / (W(1) + v * v)", "x", "arctan")
sinh_backward = _derivative("cosh(v)", "x", "sinh")
cosh_backward = _derivative("sinh(v)", "x", "cosh")
tanh_backward = _derivative("W(1) - v * v", "y", "tanh")
arcsinh_backward = _derivative("rsqrt(v * v + W(1))", "x", "arcsinh")
arccosh_backward = _derivative("rsqrt(v * v - W(1))", "x", "arccosh")
arctanh_backward = _derivative("W(1) / (W(1) - v * v)", "x", "arctanh")
sigmoid_backward = _derivative("v * (W(1) - v)", "y", "sigmoid")
erf_backward = _derivative(f"{_ERF} * exp(-v * v)", "x", "erf")
erfc_backward = _derivative(f"-{_ERF} * exp(-v * v)", "x", "erfc")
erfinv_backward = _derivative("W(0.8862269254527580) * exp(v * v)", "y", "erfinv")

_power_x = _fused("G gy, X x, Y y", "y == 0 ? W(0) : gy * (W(y) * pow(W(x), W(y - 1)))", "power_backward_x", "G")
_power_y = _fused("G gy, X x, P p", "x == 0 && isfinite(W(p)) ? W(0) : gy * (W(p) * log(W(x)))", "power_backward_y", "G")
_arctan2 = _fused(
    "G gy, A a, B b, float64 sign",
    "a == 0 && b == 0 ? W(0) : W(sign) * gy * (W(b) / hypot(W(a), W(b)) / hypot(W(a), W(b)))",
    "arctan2_backward",
    "G",
)
_extremum = _fused(
    "G gy, X x, Y y, bool low",
    "W(x) == W(y) ? gy * W(0.5) : (low ? W(x) > W(y) : W(x) < W(y)) ? W(0) : gy",
    "extremum_backward",
    "G",
)
_clamp_grad = _fused(
    "G gy, X x, L low, H high, bool below, bool above",
    "(!below || W(x) >= W(low)) && (!above || W(x) <= W(high)) ? gy : W(0)",
    "clamp_backward",
    "G",
)


def power_backward_x(gy, x, y, out):
    """out = gy * y * x**(y - 1), 0 where y is 0; x or y may be a number."""
    _power_x(gy, x, y, out)


def power_backward_y(gy, x, y, out):
    """out = gy * x**y * ln(x), 0 where x is 0 and y is not negative."""
    _power_y(gy, x, y, out)


def arctan2_backward(gy, mine, other, sign, out):
    """out = sign * gy * other / (mine**2 + other**2): the gradient of one coordinate of an angle, 0 where both are 0."""
    _arctan2(gy, mine, other, sign, out)


def extremum_backward(gy, x, y, low, out):
    """out = 0 where x is the smaller (``low``: the larger), half of gy where they are equal, else gy: the gradient of x."""
    _extremum(gy, x, y, low, out)


def clamp_backward(gy, x, low, high, out):
    """out = gy where low <= x <= high, else 0."""
    _clamp_grad(gy, x, 0 if low is None else low, 0 if high is None else high, low is not None, high is not None, out)
