"""Numbers as codes of 4 or 8 bits, with a scale for each block. As in ``kernels/numpy/block_codes.py``."""

from __future__ import annotations

from functools import cache

from ..code_tables import NESTED, TABLES
from . import raw

_THREADS = 128

_SOURCE = (
    f"{raw.BLOCKS}"
    + """
__device__ inline unsigned int code(float x) {
    if (x != x) x = 0;
    return EVEN ? (int)rintf(x * 127.0f) + 127 : nearest(x, OWN_BORDERS);
}

// a block a group: its largest absolute value, then its bytes
extern "C" __global__ void quantize_blocks(const T* x, unsigned char* codes, float* absmax, wide block, wide size) {
    const wide start = (wide)blockIdx.x * block, stop = min(start + block, size);
    float top = 0;
    for (wide i = start + threadIdx.x; i < stop; i += blockDim.x) top = larger(top, fabsf((float)x[i]));
    top = block_max(top);
    if (threadIdx.x == 0) absmax[blockIdx.x] = top;
    const int per = 8 / BITS;
    for (wide b = start / per + threadIdx.x; b * per < stop; b += blockDim.x) {
        unsigned int byte = 0;
        for (int k = 0; k < per && b * per + k < stop; ++k)
            byte |= code((float)x[b * per + k] / top) << (k * BITS);
        codes[b] = (unsigned char)byte;
    }
}

extern "C" __global__ void dequantize_blocks(const unsigned char* codes, const void* absmax, const float* nested,
                                             const float* offset, wide block, T* out, wide size) {
    const wide i = FIRST;
    if (i >= size) return;
    const int per = 8 / BITS, code = codes[i / per] >> (i % per * BITS) & ((1 << BITS) - 1);
    const wide b = i / block;
    const A scale = nested ? (A)DYNAMIC_NUMBERS[((const unsigned char*)absmax)[b]] * (A)nested[b / NESTED] + (A)offset[0]
                           : (A)((const float*)absmax)[b];
    out[i] = (T)((A)OWN_NUMBERS[code] * scale);
}
"""
)


_NEAREST = """
__device__ inline int nearest(float x, const float* border) {
    int low = 0;
    for (int step = 1 << (BITS - 1); step; step >>= 1) if (border[low + step - 1] < x) low += step;
    return low;
}
"""


@cache
def _tables(bits, **named):
    """The tables with these names in CUDA: numbers, borders, and the search among the borders of a number of bits."""
    lines = [f"#define BITS {bits}\n"]
    for name, table in named.items():
        for what, values in (("NUMBERS", TABLES[table].numbers), ("BORDERS", TABLES[table].borders[:-1])):
            numbers = ", ".join(f"{n:.9e}f" for n in values)
            lines.append(f"__constant__ float {name}_{what}[{len(values)}] = {{{numbers}}};\n")
    return "".join([*lines, _NEAREST])


def _run(name, table, kind, total, *arguments):
    source = _tables(TABLES[table].bits, OWN=table, DYNAMIC="dynamic") + _SOURCE
    meanings = raw.types(kind) | {"NESTED": NESTED, "EVEN": int(table == "int8")}
    raw.launch(source, name, meanings, total, *arguments, threads=_THREADS)


def quantize_blocks(x, table, block, codes, absmax):
    _run("quantize_blocks", table, x.dtype.char, absmax.size * _THREADS, x, codes, absmax, int(block), x.size)


def dequantize_blocks(codes, absmax, nested, offset, table, block, out):
    arguments = (codes, absmax, nested, offset, int(block), out, out.size)
    _run("dequantize_blocks", table, out.dtype.char, out.size, *arguments)
