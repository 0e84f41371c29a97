"""Running sums, products and extrema along an axis, one thread per line. float32 is summed in float64."""

from __future__ import annotations

import cupy

from .fused import Fused

_LONGER = """
template <typename T> struct Longer { typedef T type; };
template <> struct Longer<float16> { typedef float type; };
template <> struct Longer<float> { typedef double type; };
"""  # a million rounding errors would add up
_LINE = "ptrdiff_t first = (ptrdiff_t)i * n;"


def _run(kernel, axis, read, written, *numbers):
    """Run a kernel on the lines of arrays along ``axis``, one thread per line."""
    read, written = ([cupy.moveaxis(a, axis, -1) for a in some] for some in (read, written))
    if read[0].size:
        n = read[0].shape[-1]
        kernel(*read, n, *numbers, *written, size=read[0].size // n)


def _running(name, start, step):
    """A kernel of running totals, from the other end if ``reverse``."""
    body = f"""
    typedef typename Longer<U>::type W;
    W total = {start};
    for (ptrdiff_t j = 0; j < n; ++j) {{
        ptrdiff_t at = first + (reverse ? n - 1 - j : j);
        total {step} (W)x[at];
        out[at] = (U)total;
    }}
    """
    return Fused("raw T x, int64 n, bool reverse", "raw U out", _LINE + body, f"tinygrad_mem_{name}", preamble=_LONGER)


_cumsum, _cumprod = _running("cumsum", 0, "+="), _running("cumprod", 1, "*=")


def cumsum(x, axis, reverse, out):
    _run(_cumsum, axis, [x], [out], reverse)


def cumprod(x, axis, out):
    _run(_cumprod, axis, [x], [out], False)


_cumprod_backward = Fused(
    "raw G gy, raw T x, raw G y, int64 n",
    "raw G out",
    _LINE
    + """
    ptrdiff_t zero = n;
    for (ptrdiff_t j = 0; j < n; ++j) if (x[first + j] == T(0)) { zero = j; break; }
    double total = 0, before = zero && zero < n ? (double)y[first + zero - 1] : 1.0;
    if (zero < n) {  // what follows the first 0, up to the next
        double run = before;
        total = (double)gy[first + zero] * run;
        for (ptrdiff_t j = zero + 1; j < n && run != 0; ++j) {
            run *= (double)x[first + j];
            total += (double)gy[first + j] * run;
        }
        out[first + zero] = (G)total;
        for (ptrdiff_t j = zero + 1; j < n; ++j) out[first + j] = (G)0;
    }
    total = 0;
    for (ptrdiff_t j = zero - 1; j >= 0; --j) {
        total += (double)gy[first + j] * (double)y[first + j];
        out[first + j] = (G)(total / (double)x[first + j]);
    }
    """,
    "tinygrad_mem_cumprod_backward",
)


def cumprod_backward(gy, x, y, axis, work, out):
    _run(_cumprod_backward, axis, [gy, x, y], [out])


_cumulative_extremum = Fused(
    "raw T x, int64 n, bool largest",
    "raw T out, raw int64 index",
    _LINE
    + """
    T best = x[first];
    ptrdiff_t place = 0;
    for (ptrdiff_t j = 0; j < n; ++j) {
        T here = x[first + j];
        const T a = here + T(0), b = best + T(0);  // subnormal numbers are 0 for each comparison
        if (a != a || (b == b && (largest ? a >= b : a <= b))) { best = here; place = j; }
        out[first + j] = best;
        index[first + j] = place;
    }
    """,
    "tinygrad_mem_cumulative_extremum",
)


def cumulative_extremum(x, axis, largest, out, index):
    _run(_cumulative_extremum, axis, [x], [out, index], largest)
