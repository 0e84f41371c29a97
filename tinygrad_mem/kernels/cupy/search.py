"""Places in sorted lines, and counts of values between edges, on a GPU: one thread per value."""

from __future__ import annotations

from .fused import Fused
from .reduce import amax as _amax
from .reduce import amin as _amin

_search = Fused(
    "raw T line, T value, int64 n, int64 count, bool each, bool right",
    "I place",
    """
    const ptrdiff_t first = each ? i / count * n : 0;  // i counts the values, count of them a line
    long long low = 0, high = n;
    while (low < high) {
        const long long middle = low + (high - low) / 2;
        const T found = line[first + middle];
        const bool stop = value == value && !(right ? found <= value : found < value);
        if (stop) high = middle; else low = middle + 1;
    }
    place = I(low);
    """,
    "tinygrad_mem_search_sorted",
)
_bounds = Fused(
    "T low, T high, float64 first, float64 last, bool given",
    "T a, T b",
    """
    a = given ? T(first) : T(low); b = given ? T(last) : T(high);
    if (a == b && (!given || first == last)) {
        const float far = __int_as_float(0x7f800000);  // infinity
        a = min(T(a - T(1)), beside(a, -far));
        b = max(T(b + T(1)), beside(b, far));
    }
    """,
    "tinygrad_mem_histogram_bounds",
    preamble="""
    __device__ float beside(float x, float far) { return nextafterf(x, far); }
    __device__ double beside(double x, float far) { return nextafter(x, (double)far); }
    template <typename T> __device__ T beside(T x, float far) { return x; }  // of integers
    """,
)
_histogram = Fused(  # counts are integers: the order of adding does not matter
    "T x, raw T bounds, int64 bins",
    "raw O out",
    """
    if (x >= bounds[0] && x <= bounds[1]) {
        const T width = bounds[1] - bounds[0];
        const long long at = width > T(0) ? (long long)((x - bounds[0]) * T(bins) / width) : 0;
        atomicAdd(&out[at < bins ? at : bins - 1], O(1));
    }
    """,
    "tinygrad_mem_histogram",
    preamble="#include <cupy/atomics.cuh>",  # of halves
)


def search_sorted(sequence, values, right, out):
    if out.size:
        each = sequence.ndim > 1
        count = values.shape[-1] if each else 1
        _search(sequence, values, sequence.shape[-1], count, each, right, out)


def histogram_bounds(x, low, high, out):
    given = low != high or not x.size
    if not given:
        axes, one = tuple(range(x.ndim)), (1,) * x.ndim
        _amin(x, axes, out=out[0].reshape(one))
        _amax(x, axes, out=out[1].reshape(one))
    _bounds(out[0], out[1], float(low), float(high), given, out[0], out[1])


def histogram(x, bounds, out):
    if x.size:
        _histogram(x, bounds, out.size, out)
