"""Adafactor on a GPU, as in ``kernels/numpy/factored.py``. Sums have a fixed order, and the host waits for none."""

from __future__ import annotations

from math import prod as _prod

import numpy as np

from ..numpy.factored import SUMS as _SUMS
from ..numpy.factored import adafactor_workspace as _numpy_workspace
from . import raw
from .places import SOURCE as _PLACES
from .places import places as _places

_BLOCKS, _THREADS = _SUMS - 2, 256  # most blocks of a sum over everything, and threads per block

_SOURCE = (
    f"{raw.BLOCKS}{_PLACES}"
    + """
extern "C" __global__ void squares(const P* p, Places ps, double* parts, wide n) {
    double sum = 0;
    EACH(i, n) { const double x = wider(p[place(ps, i)]); sum += x * x; }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void add_up(const double* parts, int count, double* out) {
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = sum;
}

extern "C" __global__ void move_rows(const G* g, Places gs, S* row, wide lines, wide m, double fresh) {  // a warp a row
    const wide line = FIRST / 32;
    if (line >= lines) return;
    S sum = 0;
    for (wide k = threadIdx.x % 32; k < m; k += 32) { const S x = wider(g[place(gs, line * m + k)]); sum += x * x; }
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) row[line] = (S)(1 - fresh) * row[line] + (S)(fresh / m) * sum;
}

extern "C" __global__ void move_columns(const G* g, Places gs, S* col, wide matrices, wide n, wide m,
                                        double fresh) {
    EACH(i, matrices * m) {
        const wide top = i / m * n * m + i % m;
        S sum = 0;
        for (wide k = 0; k < n; ++k) { const S x = wider(g[place(gs, top + k * m)]); sum += x * x; }
        col[i] = (S)(1 - fresh) * col[i] + (S)(fresh / n) * sum;
    }
}

extern "C" __global__ void means(const S* row, double* mean, wide matrices, wide n, double eps1) {  // a block a matrix
    for (wide i = blockIdx.x; i < matrices; i += gridDim.x) {
        double sum = 0;
        for (wide k = threadIdx.x; k < n; k += blockDim.x) sum += row[i * n + k];
        sum = block_sum(sum);
        if (threadIdx.x == 0) mean[i] = larger(sum / n, eps1);
    }
}

extern "C" __global__ void move_variance(const G* g, Places gs, S* variance, wide n, double fresh) {
    EACH(i, n) { const S x = wider(g[place(gs, i)]); variance[i] = (S)(1 - fresh) * variance[i] + (S)fresh * x * x; }
}

__device__ inline S direction(const G* g, const Places& gs, const S* row, const S* col, const double* mean, wide i, wide n,
                              wide m, double eps1) {
    const S square = col ? row[i / m] * col[i / (n * m) * m + i % m] / (S)mean[i / (n * m)] : row[i];
    return (S)wider(g[place(gs, i)]) / sqrt(larger(square, (S)(eps1 * eps1)));
}

extern "C" __global__ void direction_squares(const G* g, Places gs, const S* row, const S* col, const double* mean,
                                             double* parts, wide total, wide n, wide m, double eps1) {
    double sum = 0;
    EACH(i, total) { const double u = direction(g, gs, row, col, mean, i, n, m, eps1); sum += u * u; }
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

extern "C" __global__ void move(P* p, Places ps, const G* g, Places gs, const S* row, const S* col, const double* mean,
                                const double* sums, wide total, wide n, wide m, double eps1, double eps2, double rho,
                                double d, double shrink, int maximize) {
    const double alpha = max(eps2, sqrt(sums[0] / total)) * rho / max(1.0, sqrt(sums[1] / total) / d);
    const S step = (S)(maximize ? -alpha : alpha);
    EACH(i, total) {
        P& x = p[place(ps, i)];
        x = (P)((S)wider(x) * (S)shrink - step * direction(g, gs, row, col, mean, i, n, m, eps1));
    }
}
"""
)


def adafactor_workspace(shape, dtype):
    return _numpy_workspace(shape, dtype)


def adafactor_step(p, g, row, col, variance, work, rho, fresh, eps1, eps2, d, shrink, maximize):
    if p.size == 0:
        return
    state = variance if row is None else row
    sums = work.view(np.float64)
    parts, mean = sums[2:_SUMS], sums[_SUMS:]
    total = p.size
    n, m = (1, total) if row is None else p.shape[-2:]
    matrices = 0 if row is None else _prod(p.shape[:-2])
    blocks = min(-(-total // _THREADS), _BLOCKS)
    meanings = {letter: raw.NAMES[a.dtype.char] for letter, a in (("P", p), ("G", g), ("S", state))}

    def run(name, count, *arguments, most=1 << 16, threads=_THREADS):
        raw.launch(_SOURCE, name, meanings, count, *arguments, threads=threads, most=most)

    parameter, grad = (p, _places(p)), (g, _places(g))
    run("squares", total, *parameter, parts, total, most=blocks)
    run("add_up", 1, parts, np.int32(blocks), sums)
    if row is None:
        run("move_variance", total, *grad, variance, total, float(fresh))
    else:
        run("move_rows", matrices * n * 32, *grad, row, matrices * n, m, float(fresh), most=(1 << 31) - 1)
        run("move_columns", matrices * m, *grad, col, matrices, n, m, float(fresh))
        threads = _THREADS if n > 32 else 32
        run("means", matrices * threads, row, mean, matrices, n, float(eps1), threads=threads)
    shared = (*grad, state, col, None if row is None else mean)
    run("direction_squares", total, *shared, parts, total, n, m, float(eps1), most=blocks)
    run("add_up", 1, parts, np.int32(blocks), sums[1:])
    numbers = [float(number) for number in (eps1, eps2, rho, d, shrink)]
    run("move", total, *parameter, *shared, sums, total, n, m, *numbers, np.int32(maximize))
