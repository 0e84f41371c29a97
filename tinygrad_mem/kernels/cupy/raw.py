"""Kernels in CUDA C: compiled once for each combination of types, and launched."""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

_NULL = np.uint64(0)  # a null pointer
NAMES = {"e": "__half", "f": "float", "d": "double", "?": "bool", "b": "signed char", "B": "unsigned char", "h": "short"}
NAMES |= {"i": "int", "l": "long long", "q": "long long"}
"""A dtype's character -> its type in CUDA C."""
_HEAD = """
#include <cuda_fp16.h>
typedef long long wide;
#define FIRST ((wide)blockIdx.x * blockDim.x + threadIdx.x)
#define EACH(i, total) for (wide i = FIRST; i < (total); i += (wide)gridDim.x * blockDim.x)
"""
WARPS = """
#define ALONG(c, size) for (wide c = lane; c < (size); c += LANES)
__device__ inline A lane_max(A v) {
    for (int m = LANES / 2; m; m >>= 1) v = max(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}
__device__ inline A lane_sum(A v) {
    for (int m = LANES / 2; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}
"""
"""For kernels of which ``LANES`` threads share a line: 32, or 1."""
BLOCKS = """
template <typename V> __device__ inline V larger(V a, V b) { return b > a || b != b ? b : a; }
template <bool MOST, typename V> __device__ V of_block(V v) {
    __shared__ V warps[32];
    for (int m = 16; m; m >>= 1) {
        const V other = __shfl_xor_sync(0xffffffffu, v, m);
        v = MOST ? larger(v, other) : v + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = warps[0];
    for (int i = 1; i < (int)blockDim.x / 32; ++i) v = MOST ? larger(v, warps[i]) : v + warps[i];
    return v;
}
template <typename V> __device__ inline V block_sum(V v) { return of_block<false>(v); }
template <typename V> __device__ inline V block_max(V v) { return of_block<true>(v); }
"""
"""The sum and the largest of a block's numbers, one a thread, for every thread: of whole warps, in a fixed order. A nan is the
largest.
"""


def types(kind):
    """T, the type in memory, and A, that of the arithmetic, of numbers whose dtype has this character."""
    return {"T": NAMES[kind], "A": "float" if kind == "e" else NAMES[kind]}


def text(source, **meanings):
    """The whole source, with what it leaves open: types for letters, numbers for words."""
    lines = [f"typedef {of} {name};\n" if isinstance(of, str) else f"#define {name} {of}\n" for name, of in meanings.items()]
    return _HEAD + "".join(lines) + source


@cache
def _module(source):
    return cupy.RawModule(code=source)  # pyright: ignore


@cache
def _compiled(source, name, **meanings):
    """The kernel ``name`` of a source."""
    return _module(text(source, **meanings)).get_function(name)


def launch(source, name, meanings, total, *arguments, threads=128, most=(1 << 31) - 1):
    """Run a kernel with a thread for each of ``total``, in at most ``most`` blocks; if ``total`` is 0, do nothing.

    ``None`` is passed as a null pointer.
    """
    if total:
        blocks = min(-(-int(total) // threads), most)
        _compiled(source, name, **meanings)((blocks,), (threads,), tuple([_NULL if a is None else a for a in arguments]))
