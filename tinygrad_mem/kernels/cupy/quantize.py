"""Numbers in a few bits. As in ``kernels/numpy/quantize.py``, with other random numbers of the same distribution."""

from __future__ import annotations

import numpy as np

from . import raw
from .philox import SOURCE as _PHILOX

_THREADS = 128

_SOURCE = (
    f"{raw.BLOCKS}{_PHILOX}"
    + """
// a block a group: its smallest value and its step, then its bytes
extern "C" __global__ void quantize(const T* x, unsigned long long seed, unsigned long long call, int bits,
                                    unsigned char* codes, A* scales, wide group, wide size) {
    const wide start = (wide)blockIdx.x * group, stop = min(start + group, size);
    A below = -(A)x[start], high = (A)x[start];
    for (wide i = start + threadIdx.x; i < stop; i += blockDim.x) {
        below = larger(below, -(A)x[i]);
        high = larger(high, (A)x[i]);
    }
    const int levels = (1 << bits) - 1, per = 8 / bits;
    const A low = -block_max(below), step = (block_max(high) - low) / (A)levels;
    if (threadIdx.x == 0) {
        scales[2 * blockIdx.x] = low;
        scales[2 * blockIdx.x + 1] = step;
    }
    for (wide b = start / per + threadIdx.x; b * per < stop; b += blockDim.x) {
        unsigned int byte = 0;
        for (int k = 0; k < per && b * per + k < stop; ++k) {
            const wide i = b * per + k;
            const A v = step == 0 ? (A)0 : ((A)x[i] - low) / step;
            const int code = (int)floor(v + (A)philox_uniform(philox_at(seed, call, i)));
            byte |= (unsigned int)(code < 0 ? 0 : code > levels ? levels : code) << (k * bits);
        }
        codes[b] = (unsigned char)byte;
    }
}

extern "C" __global__ void dequantize(const unsigned char* codes, const A* scales, int bits, wide group, T* out, wide size) {
    const wide i = FIRST;
    if (i >= size) return;
    const int per = 8 / bits, code = codes[i / per] >> (i % per * bits) & ((1 << bits) - 1);
    out[i] = (T)(scales[i / group * 2] + (A)code * scales[i / group * 2 + 1]);
}
"""
)


def _run(name, kind, total, *arguments):
    raw.launch(_SOURCE, name, raw.types(kind), total, *arguments, threads=_THREADS)


def quantize(x, ticket, bits, codes, scales, group):
    key = (np.uint64(n) for n in ticket)
    groups = -(-x.size // group)
    _run("quantize", x.dtype.char, groups * _THREADS, x, *key, np.int32(bits), codes, scales, int(group), x.size)


def dequantize(codes, scales, bits, group, out):
    _run("dequantize", out.dtype.char, out.size, codes, scales, np.int32(bits), int(group), out, out.size)
