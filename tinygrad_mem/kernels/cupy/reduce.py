"""Reductions over axes; ``out`` keeps the reduced axes with size 1. float16 is summed in float32, inside the kernels."""

from __future__ import annotations

from math import inf, nan
from math import prod as _prod

import cupy

from .fused import WIDE, Fused, Reduction

_PLUS_INF, _MINUS_INF = "__int_as_float(0x7f800000)", "__int_as_float(0xff800000)"  # NVRTC has no limits of its own


def _reduce(kernel, axes, identity, out, *arrays, numbers=()):
    """Run ``kernel`` over ``axes`` of broadcast arrays and numbers; an empty reduction gives ``identity``."""
    if arrays[0].size == 0:
        out.fill(identity)
        return
    arrays = [cupy.broadcast_to(a, arrays[0].shape) for a in arrays]
    if not axes:
        arrays, axes, out = [a[..., None] for a in arrays], (out.ndim,), out[..., None]
    kernel(*arrays, *numbers, out=out, axis=axes, keepdims=True)


def _total(kernel, axes, identity, out, x, *numbers):
    """Run the reduction; one over no axes is a copy."""
    if x.size and not axes:
        _copy(x, out)
    else:
        _reduce(kernel, axes, identity, out, x, numbers=numbers)


def sum(x, axes, out):
    _total(_sum, axes, 0, out, x)


def _wide(step, end, start, name, number=""):
    """A reduction in out's dtype, of float16 in float32."""
    name, wide = f"tinygrad_mem_{name}", {"reduce_type": "Wide<U>::type", "preamble": WIDE}
    return Reduction(f"T x{number}", "U y", "(Wide<U>::type)x", step, end, start, name, **wide)


_sum = _wide("a + b", "y = a", "0", "sum")
_product = _wide("a * b", "y = a", "1", "product")
_mean = _wide("a + b", "y = a / (Wide<U>::type)count", "0", "mean", ", int64 count")
_copy = Fused("T x", "U y", "y = (U)x", "tinygrad_mem_cast")


def mean(x, axes, out):
    _total(_mean, axes, nan, out, x, x.size // max(out.size, 1))


def prod(x, axes, out):
    _total(_product, axes, 1, out, x)


_all = Reduction("T x", "U y", "x != T(0)", "a && b", "y = a", "true", "tinygrad_mem_all", reduce_type="bool")
_any = Reduction("T x", "U y", "x != T(0)", "a || b", "y = a", "false", "tinygrad_mem_any", reduce_type="bool")


def all(x, axes, out):
    _reduce(_all, axes, True, out, x)


def any(x, axes, out):
    _reduce(_any, axes, False, out, x)


def arg_workspace(shape, axis, dtype):
    return 0


_FIRST = """
template <typename T> struct Place {
    T value;
    ptrdiff_t at;
    __device__ Place(T value = T(0), ptrdiff_t at = -1) : value(value), at(at) {}
};
template <typename T> __device__ inline Place<T> first_of(Place<T> a, Place<T> b, bool low) {
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const bool left = a.value != a.value, right = b.value != b.value;
    if (left != right) return left ? a : b;
    if (left || a.value == b.value) return a.at < b.at ? a : b;
    return (a.value < b.value) == low ? a : b;
}
"""


def _first(low, what, name):
    """The first extreme value or its index; the first nan if there is one."""
    step = f"first_of<T>(a, b, {low})"
    output, end = ("int64 y", "y = a.at") if what == "at" else ("T y", "y = a.value")
    kinds = {"reduce_type": "Place<T>", "preamble": _FIRST}
    return Reduction("T x", output, "Place<T>(x, _J)", step, end, "Place<T>()", f"tinygrad_mem_{name}", **kinds)


_argmax, _argmin = _first("false", "at", "argmax"), _first("true", "at", "argmin")
_amax, _amin = _first("false", "value", "amax"), _first("true", "value", "amin")


def amax(x, axes, out):
    _amax(x, out=out, axis=axes, keepdims=True) if axes else _copy(x, out)


def amin(x, axes, out):
    _amin(x, out=out, axis=axes, keepdims=True) if axes else _copy(x, out)


def argmax(x, axis, work, out):
    _argmax(x, out=out, axis=axis)


def argmin(x, axis, work, out):
    _argmin(x, out=out, axis=axis)


_count = Reduction("T x", "int64 y", "x != T(0) ? 1 : 0", "a + b", "y = a", "0", "tinygrad_mem_count_nonzero")


def count_nonzero(x, axes, out):
    _reduce(_count, axes, 0, out, x)


_squares = Reduction("T x, M m", "U y", "((U)x - (U)m) * ((U)x - (U)m)", "a + b", "y = a", "0", "tinygrad_mem_squares")


def variance(x, mean, axes, scale, out):
    _reduce(_squares, axes, 0, out, x, mean)
    cupy.multiply(out, out.dtype.type(scale), out=out)


_prod_backward = Fused(
    "G gy, G y, raw T x, int64 n",
    "T out",
    """
    T here = x[i];
    double total = (double)y / (double)here;
    if (here == T(0) || !isfinite((double)here)) {  // a 0 beside it makes y no product of the others
        ptrdiff_t first = i / n * n;
        double others = 1;
        bool zero = here == T(0);
        for (ptrdiff_t j = first; j < first + n; ++j) {
            zero = zero || x[j] == T(0);
            if (j != i) others *= (double)x[j];
        }
        if (zero) total = others;
    }
    out = (T)((double)gy * total);
    """,
    "tinygrad_mem_prod_backward",
)


def prod_backward(gy, x, y, axes, out):
    if out.size:
        last = tuple(range(x.ndim - len(axes), x.ndim))
        gy, y, x, out = [cupy.moveaxis(a, axes, last) for a in (gy, y, x, out)]
        _prod_backward(gy, y, x, _prod(x.shape[x.ndim - len(axes) :]), out)


_equal = Fused("T x, T y, bool nans", "T out", "out = x == y || (nans && x != x) ? T(1) : T(0)", "tinygrad_mem_mark")
_times_ratio = Fused("T gy, T count", "T out", "out = out * (gy / count)", "tinygrad_mem_share")


def extremum_share(gy, x, y, axes, nans, count, out):
    _equal(x, y, nans, out)
    sum(out, axes, count)
    _times_ratio(gy, count, out)


_finite = Fused("T x", "T y", "y = T(isinf((double)x) ? 0 : x)", "tinygrad_mem_finite")
_sum_exp = Reduction("T x, U m", "U y", "exp((U)x - m)", "a + b", "y = a", "0", "tinygrad_mem_sum_exp")
_log_add = Fused("T m", "T y", "y = log(y) + m", "tinygrad_mem_log_add")


def logsumexp(x, axes, top, out):
    _reduce(_largest, axes, -inf, top, x)
    _finite(top, top)
    _reduce(_sum_exp, axes, 0, out, x, top)
    _log_add(top, out)


_largest = Reduction("T x", "U y", "(U)x", "(a != a || a > b) ? a : b", "y = a", _MINUS_INF, "tinygrad_mem_largest")
_SIZE = "((U)x > U(0) ? (U)x : U(0) - (U)x)"  # +0 of -0, which has powers below 0


def _norm(name, term, step="a + b", end="y = a", start="0"):
    return Reduction("T x, float64 p", "U y", term, step, end, start, f"tinygrad_mem_norm_{name}")


_NORMS = {  # p -> the reduction
    inf: _norm("largest", _SIZE, "(a != a || a > b) ? a : b"),
    -inf: _norm("smallest", _SIZE, "(a != a || a < b) ? a : b", start=_PLUS_INF),
    0: _norm("count", "x != T(0) ? U(1) : U(0)"),
    1: _norm("sum", _SIZE),
    2: _norm("root", "(U)x * (U)x", end="y = sqrt(a)"),
}
_any_norm = _norm("power", f"pow({_SIZE}, U(p))", end="y = pow(a, U(1 / p))")


def norm(x, axes, p, out):
    _reduce(_NORMS.get(p, _any_norm), axes, nan if p != p else 0, out, x, numbers=(float(p),))


_norm_backward = Fused(
    "T gy, T x, T y, float64 p",
    "T out",
    """
    double v = (double)x, n = (double)y, sign = (v > 0) - (v < 0), g = sign;
    if (p == 2) g = n == 0 ? 0.0 : v / n;
    else if (p != 1) g = n == 0 || (v == 0 && n == n) ? 0.0 : sign * pow(fabs(v) / n, p - 1);
    out = (T)((double)gy * g);
    """,
    "tinygrad_mem_norm_backward",
)


def norm_backward(gy, x, y, p, out):
    _norm_backward(gy, x, y, float(p), out)


_mark_size = Fused(
    "T x, T y", "T out", "const auto size = x < 0 ? -x : x; out = size == y || x != x ? T(1) : T(0)", "tinygrad_mem_mark_size"
)
_signed = Fused(
    "T gy, T x",
    "T out",
    "const auto v = x + 0; out = v != v ? v : out * T((v > 0) - (v < 0)) * gy",
    "tinygrad_mem_signed",
)
_signed_share = Fused(
    "T gy, T x, T count",
    "T out",
    "const auto v = x + 0; out = out * T((v > 0) - (v < 0)) * (gy / count)",  # + 0: subnormal numbers are 0 for both
    "tinygrad_mem_signed_share",
)


def extreme_size_share(gy, x, y, axes, count, out):
    _mark_size(x, y, out)
    if count is None:
        _signed(gy, x, out)
        return
    sum(out, axes, count)
    _signed_share(gy, x, count, out)
