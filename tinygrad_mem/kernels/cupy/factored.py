"""Adafactor on a GPU, as in ``kernels/numpy/factored.py``: sums are made in a fixed order, and the host waits for none."""

from __future__ import annotations

from functools import cache as _cache
from math import prod as _prod

import cupy as _cupy
import numpy as _np

from ..numpy.factored import SUMS as _SUMS
from ..numpy.factored import adafactor_workspace as _numpy_workspace

_TYPES = {"e": "__half", "f": "float", "d": "double"}
_BLOCKS, _THREADS = _SUMS - 2, 256  # of sums over everything

_SOURCE = """
typedef long long wide;
__device__ inline float wider(__half x) { return __half2float(x); }
__device__ inline float wider(float x) { return x; }
__device__ inline double wider(double x) { return x; }
#define EACH(i, n) for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (wide)gridDim.x * blockDim.x)

__device__ void block_sum(double x, double* out) {
    __shared__ double shared[256];
    shared[threadIdx.x] = x;
    for (int half = 128; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *out = shared[0];
}

extern "C" __global__ void squares(const P* p, double* parts, wide n) {
    double sum = 0;
    EACH(i, n) { const double x = wider(p[i]); sum += x * x; }
    block_sum(sum, parts + blockIdx.x);
}

extern "C" __global__ void add_up(const double* parts, int count, double* out) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
    block_sum(sum, out);
}

extern "C" __global__ void move_rows(const G* g, S* row, wide lines, wide m, double fresh) {  // a warp a row
    const wide line = ((wide)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (line >= lines) return;
    S sum = 0;
    for (wide k = threadIdx.x % 32; k < m; k += 32) { const S x = wider(g[line * m + k]); sum += x * x; }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) row[line] = (S)(1 - fresh) * row[line] + (S)(fresh / m) * sum;
}

extern "C" __global__ void move_columns(const G* g, S* col, wide matrices, wide n, wide m, double fresh) {
    EACH(i, matrices * m) {
        const G* place = g + i / m * n * m + i % m;
        S sum = 0;
        for (wide k = 0; k < n; ++k) { const S x = wider(place[k * m]); sum += x * x; }
        col[i] = (S)(1 - fresh) * col[i] + (S)(fresh / n) * sum;
    }
}

extern "C" __global__ void means(const S* row, double* mean, wide matrices, wide n, double eps1) {
    EACH(i, matrices) {
        double sum = 0;
        for (wide k = 0; k < n; ++k) sum += row[i * n + k];
        mean[i] = max(sum / n, eps1);
    }
}

extern "C" __global__ void move_variance(const G* g, S* variance, wide n, double fresh) {
    EACH(i, n) { const S x = wider(g[i]); variance[i] = (S)(1 - fresh) * variance[i] + (S)fresh * x * x; }
}

__device__ inline S direction(const G* g, const S* row, const S* col, const double* mean, wide i, wide n, wide m, double eps1) {
    const S square = col ? row[i / m] * col[i / (n * m) * m + i % m] / (S)mean[i / (n * m)] : row[i];
    return (S)wider(g[i]) / sqrt(max(square, (S)(eps1 * eps1)));
}

extern "C" __global__ void direction_squares(const G* g, const S* row, const S* col, const double* mean, double* parts,
                                             wide total, wide n, wide m, double eps1) {
    double sum = 0;
    EACH(i, total) { const double u = direction(g, row, col, mean, i, n, m, eps1); sum += u * u; }
    block_sum(sum, parts + blockIdx.x);
}

extern "C" __global__ void move(P* p, const G* g, const S* row, const S* col, const double* mean, const double* sums,
                                wide total, wide n, wide m, double eps1, double eps2, double rho, double d, double shrink,
                                int maximize) {
    const double alpha = max(eps2, sqrt(sums[0] / total)) * rho / max(1.0, sqrt(sums[1] / total) / d);
    const S step = (S)(maximize ? -alpha : alpha);
    EACH(i, total) p[i] = (P)((S)wider(p[i]) * (S)shrink - step * direction(g, row, col, mean, i, n, m, eps1));
}
"""


@_cache
def _kernel(name, p, g, state):
    types = "".join(f"typedef {_TYPES[kind]} {letter};\n" for letter, kind in (("P", p), ("G", g), ("S", state)))
    return _cupy.RawModule(code="#include <cuda_fp16.h>\n" + types + _SOURCE).get_function(name)  # pyright: ignore


def adafactor_workspace(shape, dtype):
    """Bytes that a step wants: sums and their parts, and the mean over the rows' mean squares of each matrix."""
    return _numpy_workspace(shape, dtype)


def adafactor_step(p, g, row, col, variance, work, rho, fresh, eps1, eps2, d, shrink, maximize):
    """Mean squares move by the share ``fresh`` to those of g; p = shrink * p - alpha * u / max(1, rms(u) / d).

    As in ``kernels/numpy/factored.py``; what is not contiguous (rare) is copied.
    """
    if p.size == 0:
        return
    x, grad = (a if a.flags.c_contiguous else _cupy.ascontiguousarray(a) for a in (p, g))
    state = variance if row is None else row
    sums = work.view(_np.float64)
    parts, mean, none = sums[2:_SUMS], sums[_SUMS:], _np.uint64(0)
    total = int(p.size)
    n, m = (1, total) if row is None else p.shape[-2:]
    matrices = 0 if row is None else _prod(p.shape[:-2])

    def run(name, count, *arguments, blocks=None):
        kernel = _kernel(name, p.dtype.char, g.dtype.char, state.dtype.char)
        kernel((blocks or min(-(-count // _THREADS), 1 << 16),), (_THREADS,), arguments)

    run("squares", total, x, parts, total, blocks=_BLOCKS)
    run("add_up", 1, parts, _np.int32(_BLOCKS), sums, blocks=1)
    if row is None:
        run("move_variance", total, grad, variance, total, float(fresh))
    else:
        run("move_rows", matrices * n * 32, grad, row, matrices * n, m, float(fresh), blocks=-(-matrices * n * 32 // _THREADS))
        run("move_columns", matrices * m, grad, col, matrices, n, m, float(fresh))
        run("means", matrices, row, mean, matrices, n, float(eps1))
    shared = (grad, state, none if col is None else col, none if row is None else mean)
    run("direction_squares", total, *shared, parts, total, n, m, float(eps1), blocks=_BLOCKS)
    run("add_up", 1, parts, _np.int32(_BLOCKS), sums[1:], blocks=1)
    numbers = [float(number) for number in (eps1, eps2, rho, d, shrink)]
    run("move", total, x, *shared, sums, total, n, m, *numbers, _np.int32(maximize))
    if x is not p:
        _cupy.copyto(p, x)
