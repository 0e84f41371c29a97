"""Rows of a table by index, and the sum of gradients into them. As in ``kernels/numpy/embedding.py``.

Gradients are summed by one warp a row of the table, which looks through the indices in order: nothing is atomic, and the
same input gives the same bits. Indices outside of the table give nan rows.
"""

from __future__ import annotations

from functools import cache as _cache

import cupy as _cupy
import numpy as _np

_TYPES = {"e": ("__half", "float"), "f": ("float", "float"), "d": ("double", "double")}
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
        out[i] = row >= 0 && row < rows ? table[row * width + i % width] : (T)(float)(0.0 / 0.0);
    }}
}}

#define COLUMNS 8
#define ROW const wide row = ((wide)blockIdx.x * blockDim.x + threadIdx.x) / 32; \\
    const int lane = threadIdx.x % 32; \\
    if (row >= rows) return;

extern "C" __global__ void embedding_backward(const T* gy, const I* index, wide n, wide padding, float* counts, T* out,
                                              wide rows, wide width) {{
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
                const wide at = i + __ffs(mine) - 1;
                mine &= mine - 1;
                #pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {{
                    const wide k = from + 32 * c + lane;
                    if (k < width) sum[c] += (A)gy[at * width + k] * share;
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
    if (norm <= most) return;
    for (wide k = lane; k < width; k += 32) {{
        T* place = table + row * s0 + k * s1;
        *place = (T)(A)((double)(A)*place * (most / (norm + 1e-7)));
    }}
}}
"""


@_cache
def _kernel(name, kind, index):
    t, a = _TYPES[kind]
    return _cupy.RawModule(code=_SOURCE.format(T=t, A=a, I="int" if index == "i" else "long long")).get_function(name)  # pyright: ignore


def check_rows(index, rows):
    """Nothing: reading the indices would make the host wait. One outside of the table gives a row of nan."""


def embedding(weight, index, out):
    """out (n, d) = the rows of weight at index (n)."""
    if out.size:
        blocks = min(-(-out.size // _THREADS), 1 << 16)
        arguments = (weight, index, out, *map(int, weight.shape), int(out.size))
        _kernel("embedding", weight.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)


def embedding_backward_workspace(count, dtype):
    """Bytes of workspace that :func:`embedding_backward` wants: none here."""
    return 0


def embedding_backward(gy, index, padding, counts, work, out):
    """out[index[i]] += gy[i], in order, but not for ``padding``; over its count where counts is a buffer.

    Halves are summed in float32, in registers; work is not used.
    """
    if gy.size:
        skip, count = -1 if padding is None else int(padding), _np.uint64(0) if counts is None else counts
        arguments = (gy, index, int(index.size), skip, count, out, *map(int, out.shape))
        blocks = -(-out.shape[0] * 32 // _THREADS)
        _kernel("embedding_backward", gy.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)


def embedding_renorm(weight, index, max_norm, norm_type):
    """Shrink the rows of weight at index whose ``norm_type``-norm is above ``max_norm`` to that norm, in place."""
    if weight.size and index.size:
        strides = (s // weight.itemsize for s in weight.strides)
        arguments = (weight, *strides, index, int(index.size), float(max_norm), float(norm_type), *map(int, weight.shape))
        blocks = -(-weight.shape[0] * 32 // _THREADS)
        _kernel("embedding_renorm", weight.dtype.char, index.dtype.char)((blocks,), (_THREADS,), arguments)
