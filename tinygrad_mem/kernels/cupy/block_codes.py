"""Numbers as codes of 4 or 8 bits, with a scale for each block. As in ``kernels/numpy/block_codes.py``."""

from __future__ import annotations

from functools import cache

from ..code_tables import NESTED, TABLES
from . import raw

_THREADS = 128

_SOURCE = """
__device__ inline int nearest(float x) {
    if (x != x) x = 0;
    if (EVEN) return (int)rintf(x * 127.0f) + 127;
    int low = 0;
    for (int step = COUNT / 2; step; step >>= 1) if (BORDERS[low + step - 1] < x) low += step;
    return low;
}

// a block a group: its largest absolute value, then its bytes
extern "C" __global__ void quantize_blocks(const T* x, unsigned char* codes, float* absmax, wide block, wide size) {
    __shared__ float largest[128];
    const wide start = (wide)blockIdx.x * block, stop = min(start + block, size);
    float top = 0;
    for (wide i = start + threadIdx.x; i < stop; i += blockDim.x) {
        const float v = fabsf((float)x[i]);
        top = v > top || v != v ? v : top;
    }
    largest[threadIdx.x] = top;
    for (int m = blockDim.x / 2; m; m >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < m) {
            const float v = largest[threadIdx.x + m];
            if (v > largest[threadIdx.x] || v != v) largest[threadIdx.x] = v;
        }
    }
    __syncthreads();
    top = largest[0];
    if (threadIdx.x == 0) absmax[blockIdx.x] = top;
    const int per = 8 / BITS;
    for (wide b = start / per + threadIdx.x; b * per < stop; b += blockDim.x) {
        unsigned int byte = 0;
        for (int k = 0; k < per && b * per + k < stop; ++k)
            byte |= (unsigned int)nearest((float)x[b * per + k] / top) << (k * BITS);
        codes[b] = (unsigned char)byte;
    }
}

extern "C" __global__ void dequantize_blocks(const unsigned char* codes, const void* absmax, const float* nested,
                                             const float* offset, wide block, T* out, wide size) {
    const wide i = FIRST;
    if (i >= size) return;
    const int per = 8 / BITS, code = codes[i / per] >> (i % per * BITS) & ((1 << BITS) - 1);
    const wide b = i / block;
    const A scale = nested ? (A)DYNAMIC[((const unsigned char*)absmax)[b]] * (A)nested[b / NESTED] + (A)offset[0]
                           : (A)((const float*)absmax)[b];
    out[i] = (T)((A)NUMBERS[code] * scale);
}
"""


def _constant(name, values):
    """A table in CUDA."""
    return f"__constant__ float {name}[{len(values)}] = {{{', '.join(f'{n:.9e}f' for n in values)}}};\n"


@cache
def _source(table):
    """The kernels of a table."""
    own = TABLES[table]
    tables = {"NUMBERS": own.numbers, "BORDERS": own.borders[:-1], "DYNAMIC": TABLES["dynamic"].numbers}
    return "".join([_constant(*each) for each in tables.items()]) + _SOURCE


def _run(name, table, kind, total, *arguments):
    numbers = {"COUNT": len(TABLES[table].numbers), "BITS": TABLES[table].bits, "NESTED": NESTED, "EVEN": int(table == "int8")}
    raw.launch(_source(table), name, raw.types(kind) | numbers, total, *arguments, threads=_THREADS)


def quantize_blocks(x, table, block, codes, absmax):
    _run("quantize_blocks", table, x.dtype.char, absmax.size * _THREADS, x, codes, absmax, int(block), x.size)


def dequantize_blocks(codes, absmax, nested, offset, table, block, out):
    arguments = (codes, absmax, nested, offset, int(block), out, out.size)
    _run("dequantize_blocks", table, out.dtype.char, out.size, *arguments)
