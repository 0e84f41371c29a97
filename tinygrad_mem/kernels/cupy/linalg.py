"""Matrix products through cuBLAS, into the given buffer. float16 is accumulated in float32."""

from __future__ import annotations

import cupy
import numpy as np

from ...scope import local
from ..grouped import each_group
from .blas import TYPES, gemm
from .fused import Fused


def matmul_workspace(x_shape, y_shape, dtype):
    return 0


_integers = cupy.ElementwiseKernel(
    "raw T x, raw T y, int64 m, int64 n, int64 k",
    "T z",
    """
    const long long row = i / n, first = row / m * k * n + i % n;
    T sum = 0;
    for (long long j = 0; j < k; ++j) sum = sum + x[row * k + j] * y[first + j * n];
    z = sum;
    """,
    "tinygrad_mem_integer_product",
)
"""CuPy's own takes memory for what is not contiguous."""


def matmul(x, y, work, out):
    if out.size == 0:
        return
    if x.shape[-1] == 0:
        out.fill(0)
    elif out.dtype.char not in TYPES:
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
        xs = cupy.broadcast_to(x, (*out.shape[:-2], m, k))
        _integers(xs, cupy.broadcast_to(y, (*out.shape[:-2], k, n)), m, n, k, out)
    else:
        _products(x, y, out)


def _products(x, y, out, *factors):
    """Products of matrices, and of arrays of them, which are broadcast."""
    narrow = local.narrow_products == "e"
    if out.ndim == 2:
        gemm(x[None], y[None], out[None], *factors, narrow=narrow)
        return
    xs, ys = (cupy.broadcast_to(a, (*out.shape[:-2], *a.shape[-2:])) for a in (x, y))
    for index in np.ndindex(out.shape[:-3]):
        gemm(xs[index], ys[index], out[index], *factors, narrow=narrow)


def matmul_add(x, y, addend, alpha, beta, work, out):
    if out.size == 0:
        return
    if addend is not out:
        cupy.copyto(out, addend)
    _products(x, y, out, alpha, beta)


def grouped_matmul(x, y, ends, work, out):
    """The rows of each group times its matrix, or x's rows times y's, as ``each_group`` has it. The host waits for the ends."""
    each_group(matmul, x, y, ends.get().tolist(), work, out)


def solve_triangular_workspace(shape, dtype):
    return 0


_solve_triangular = Fused(  # a thread a column
    "raw T a, int64 n, int64 m, bool upper, bool unit",
    "raw T out",
    """
    const ptrdiff_t matrix = i / m * n * n, first = i / m * n * m + i % m;
    for (ptrdiff_t k = 0; k < n; ++k) {
        const ptrdiff_t row = upper ? n - 1 - k : k;
        T rest = out[first + row * m];
        for (ptrdiff_t j = 0; j < k; ++j) {
            const ptrdiff_t known = upper ? n - 1 - j : j;
            rest -= a[matrix + row * n + known] * out[first + known * m];
        }
        out[first + row * m] = unit ? rest : rest / a[matrix + row * n + row];
    }
    """,
    "tinygrad_mem_solve_triangular",
)


def solve_triangular(a, b, upper, unit, work, out):
    cupy.copyto(out, b)
    n, m = out.shape[-2:]
    if out.size:
        a = cupy.broadcast_to(a, (*out.shape[:-2], n, n))
        _solve_triangular(a, n, m, upper, unit, out, size=out.size // n)


def add_matmul(x, y, out):
    if x.shape[1]:
        gemm(x[None], y[None], out[None], beta=1)
