"""Rows of a table by index, and the sum of gradients into them. As in ``kernels/numpy/embedding.py``.

Each row of the table has one warp, which reads the indices in order and sums the row's gradients. There are no atomics: the
same input gives the same bits. An index outside of the table gives a row of nan (of 0 for integers), and changes no gradient
and no parameter.
"""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

from .c_names import NAMES, TYPES

_THREADS = 128

_SOURCE = """
#include <cuda_fp16.h>
typedef {T} T;
typedef {A} A;
typedef {I} I;
typedef long long wide;

extern "C" __global__ void embedding(const T* table, const I* index, T* out, wide rows, wide width, wide total) {{
    for (wide i = (wide)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (wide)gridDim.x * blockDim.x) {{
        const wide row = index[i / width];
        out[i] = row >= 0 && row < rows ? table[row * width + i % width] : (T)({N});
    }}
}}

#define COLUMNS 8
#define ROW const wide row = ((wide)blockIdx.x * blockDim.x + threadIdx.x) / 32; \\
    const int lane = threadIdx.x % 32; \\
    if (row >= rows) return;

extern "C" __global__ void embedding_backward(const T* gy, const I* index, wide n, wide padding, float* counts,
                                              const int* bags, const A* parts, T* out, wide rows, wide width) {{
    ROW
    if (row == padding) return;
    A share = 1;
    if (counts) {{
        wide found = 0;
        for (wide i = 0; i < n; i += 32) found += __popc(__ballot_sync(0xffffffffu, i + lane < n && index[i + lane] == row));
        if (lane == 0) counts[row] = found;
        if (found) share = (A)1 / found;
    }}
    for (wide from = 0; from < width; from += 32 * COLUMNS) {{  // so many columns at a time are summed in registers
        A sum[COLUMNS];
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {{
            const wide k = from + 32 * c + lane;
            sum[c] = k < width ? (A)out[row * width + k] : (A)0;
        }}
        for (wide i = 0; i < n; i += 32) {{
            unsigned int mine = __ballot_sync(0xffffffffu, i + lane < n && index[i + lane] == row);
            while (mine) {{
                const wide place = i + __ffs(mine) - 1;
                const wide at = bags ? bags[place] : place;
                const A scale = parts ? share * parts[place] : share;
                mine &= mine - 1;
                if (at < 0) continue;
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {{
                    const wide k = from + 32 * c + lane;
                    if (k < width) sum[c] += (A)gy[at * width + k] * scale;
                }}
            }}
        }}
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {{
            const wide k = from + 32 * c + lane;
            if (k < width) out[row * width + k] = (T)sum[c];
        }}
    }}
}}

extern "C" __global__ void embedding_renorm(T* table, wide s0, wide s1, const I* index, wide n, double most, double power,
                                            wide rows, wide width) {{
    ROW
    bool here = false;
    for (wide i = lane; i < n; i += 32) here |= index[i] == row;
    if (!__any_sync(0xffffffffu, here)) return;
    const bool largest = isinf(power);
    double sum = 0;
    for (wide k = lane; k < width; k += 32) {{
        const double size = fabs((double)(A)table[row * s0 + k * s1]);
        sum = largest ? max(sum, size) : sum + pow(size, power);
    }}
    for (int m = 16; m; m >>= 1) {{
        const double other = __shfl_xor_sync(0xffffffffu, sum, m);
        sum = largest ? max(sum, other) : sum + other;
    }}
    const double norm = largest ? sum : pow(sum, 1 / power);
    if (!(norm > most)) return;  // nor a row with nan
    for (wide k = lane; k < width; k += 32) {{
        T* place = table + row * s0 + k * s1;
        *place = (T)(A)((double)(A)*place * (most / (norm + 1e-7)));
    }}
}}
"""


@cache
def _kernel(name, kind, index):
    t, a = TYPES[kind]
    nothing = "(float)(0.0 / 0.0)" if kind in "efd" else "0"
    code = _SOURCE.format(T=t, A=a, I="int" if index == "i" else "long long", N=nothing)
    return cupy.RawModule(code=code).get_function(name)  # pyright: ignore


def check_rows(index, rows):
    """Does nothing: reading the indices would make the host wait. One outside of the table gives a row of nan, or 0."""


def embedding(weight, index, out):
    """out (n, d) = the rows of weight at index (n)."""
    if out.size:
        blocks = min(-(-out.size // _THREADS), 1 << 16)
        arguments = (weight, index, out, *map(int, weight.shape), int(out.size))
        _kernel("embedding", weight.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)


def embedding_backward_workspace(count, dtype):
    """Bytes of workspace for :func:`embedding_backward`: none here."""
    return 0


def embedding_backward(gy, index, padding, counts, bags, parts, work, out):
    """out[index[i]] += gy[i], in order, except for ``padding``; divided by the index's count if counts is a buffer.

    With ``bags`` it adds ``gy[bags[i]]``, or nothing for -1; with ``parts``, times ``parts[i]``. Half precision is summed in
    float32, in registers. work is not used.
    """
    if gy.size and index.size:
        skip, nothing = -1 if padding is None else int(padding), np.uint64(0)
        count, bag, part = (nothing if array is None else array for array in (counts, bags, parts))
        arguments = (gy, index, int(index.size), skip, count, bag, part, out, *map(int, out.shape))
        blocks = -(-out.shape[0] * 32 // _THREADS)
        _kernel("embedding_backward", gy.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)


def embedding_renorm(weight, index, max_norm, norm_type):
    """Shrink the rows of weight at index whose ``norm_type``-norm is above ``max_norm`` to that norm, in place."""
    if weight.size and index.size:
        strides = (s // weight.itemsize for s in weight.strides)
        arguments = (weight, *strides, index, int(index.size), float(max_norm), float(norm_type), *map(int, weight.shape))
        blocks = -(-weight.shape[0] * 32 // _THREADS)
        _kernel("embedding_renorm", weight.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)


_ROWS = """
#include <cuda_fp16.h>
typedef {T} T;
typedef {A} A;
typedef {P} P;
typedef {S} S;
typedef long long wide;

// a warp an index: the first of equal ones adds them up, in order
extern "C" __global__ void sum_rows(const wide* index, const T* values, wide n, wide width, wide* first, A* out) {{
    const wide i = ((wide)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (i >= n) return;
    const wide row = index[i];
    bool earlier = false;
    for (wide j = lane; j < i; j += 32) earlier |= index[j] == row;
    const bool again = __any_sync(0xffffffffu, earlier);
    if (lane == 0) first[i] = again ? -1 : row;
    for (wide k = lane; k < width; k += 32) out[i * width + k] = again ? (A)0 : (A)values[i * width + k];
    if (again) return;
    for (wide j = i + 1; j < n; j += 32) {{
        unsigned int mine = __ballot_sync(0xffffffffu, j + lane < n && index[j + lane] == row);
        while (mine) {{
            const wide at = j + __ffs(mine) - 1;
            mine &= mine - 1;
            for (wide k = lane; k < width; k += 32) out[i * width + k] += (A)values[at * width + k];
        }}
    }}
}}

extern "C" __global__ void clear_rows(const wide* index, wide row, T* out, wide n, wide width) {{
    const wide at = (wide)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n * width && index[at / width] == row) out[at] = (T)0.0f;
}}

#define PLACE const wide at = (wide)blockIdx.x * blockDim.x + threadIdx.x; \\
    if (at >= n * width) return; \\
    const wide row = first[at / width]; \\
    if (row < 0 || row >= rows) return; \\
    const wide to = row * width + at % width; \\
    const A d = sign * g[at];

// a mean of squares, whose root is kept in float16
__device__ inline A squared(float x) {{ return x; }}
__device__ inline A squared(double x) {{ return x; }}
__device__ inline A squared(__half x) {{ const A root = (A)__half2float(x); return root * root; }}
__device__ inline void keep_square(A x, float& out) {{ out = x; }}
__device__ inline void keep_square(A x, double& out) {{ out = x; }}
__device__ inline void keep_square(A x, __half& out) {{ out = __float2half((float)sqrt(x)); }}

extern "C" __global__ void sparse_sgd(P* p, const wide* first, const A* g, A sign, A lr, wide n, wide width,
                                      wide rows) {{
    PLACE
    p[to] = (P)((A)p[to] - lr * d);
}}

extern "C" __global__ void sparse_adam(P* p, const wide* first, const A* g, S* m, S* v, A sign, A step_size, A beta1, A beta2,
                                       A eps, wide n, wide width, wide rows) {{
    PLACE
    A mean = (A)m[to], square = squared(v[to]);
    mean += (1 - beta1) * (d - mean);
    square += (1 - beta2) * (d * d - square);
    p[to] = (P)((A)p[to] - step_size * mean / (sqrt(square) + eps));
    m[to] = (S)mean;
    keep_square(square, v[to]);
}}

extern "C" __global__ void sparse_adagrad(P* p, const wide* first, const A* g, S* total, A sign, A rate, A eps, wide n,
                                          wide width, wide rows) {{
    PLACE
    const A sum = squared(total[to]) + d * d;
    p[to] = (P)((A)p[to] - rate * d / (sqrt(sum) + eps));
    keep_square(sum, total[to]);
}}
"""


@cache
def _rows_kernel(name, values, sums, table, state="f"):
    code = _ROWS.format(T=NAMES[values], A=NAMES[sums], P=NAMES[table], S=NAMES[state])
    return cupy.RawModule(code=code).get_function(name)  # pyright: ignore


def clear_rows(index, row, out):
    """out[i] = 0 where index[i] is ``row``."""
    if out.size:
        kernel = _rows_kernel("clear_rows", out.dtype.char, "f", "f")
        kernel((-(-out.size // _THREADS),), (_THREADS,), (index, int(row), out, *map(int, out.shape)))


def sum_rows(index, values, first, out):
    """Sum equal rows: the first of equal indices gets the sum in out and its index in first; the others get 0 and -1."""
    if out.size:
        kernel = _rows_kernel("sum_rows", values.dtype.char, out.dtype.char, "f")
        kernel((-(-len(out) * 32 // _THREADS),), (_THREADS,), (index, values, *map(int, out.shape), first, out))


def _row_step(name, p, first, g, tables, maximize, numbers):
    if g.size:
        scalars = [g.dtype.type(n) for n in (-1 if maximize else 1, *numbers)]
        arguments = (p, first, g, *tables, *scalars, *map(int, g.shape), len(p))
        kernel = _rows_kernel(name, "f", g.dtype.char, p.dtype.char, tables[-1].dtype.char if tables else "f")
        kernel((-(-g.size // _THREADS),), (_THREADS,), arguments)


def sparse_sgd_step(p, first, g, lr, maximize):
    """p[first[i]] -= lr * g[i], where first[i] is not -1."""
    _row_step("sparse_sgd", p, first, g, (), maximize, (lr,))


def sparse_adam_step(p, first, g, m, v, step_size, beta1, beta2, eps, maximize):
    """m, v = running means of g and g**2, and p -= step_size * m / (sqrt(v) + eps), in the rows first[i] that are not -1."""
    _row_step("sparse_adam", p, first, g, (m, v), maximize, (step_size, beta1, beta2, eps))


def sparse_adagrad_step(p, first, g, total, rate, eps, maximize):
    """total += g**2, and p -= rate * g / (sqrt(total) + eps), in the rows first[i] that are not -1."""
    _row_step("sparse_adagrad", p, first, g, (total,), maximize, (rate, eps))
