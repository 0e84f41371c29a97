"""Update rules whose state has 8 or 4 bits per number, and one float32 per block. As in ``kernels/numpy/blockwise.py``.

One thread block per block of numbers, in two passes: the first finds the largest new state, the second updates and packs.
"""

from __future__ import annotations

import numpy as np

from ..code_tables import TABLES
from . import raw
from .places import SOURCE as _PLACES
from .places import places as _places

_MAPS = {8: (TABLES["positive"], TABLES["dynamic"]), 4: (TABLES["linear4"], TABLES["dynamic4"])}
"""Bits -> the maps of v and of m."""


def _tables(maps):
    """Tables in CUDA of two maps, and of their borders but for the last, infinity."""
    lines = []
    for name, values in (("VALUES", [each.numbers for each in maps]), ("BORDERS", [each.borders[:-1] for each in maps])):
        rows = ["{" + ", ".join(f"{n:.9e}f" for n in row) + "}" for row in values]
        lines.append(f"__constant__ float {name}[2][{len(values[0])}] = {{{', '.join(rows)}}};\n")
    return "".join(lines)


_SOURCE = """
__device__ inline int nearest(float x, const float* border, int step) {
    int low = 0;
    for (; step; step >>= 1) if (border[low + step - 1] < x) low += step;
    return low;
}

__device__ float largest(float x, float* shared) {
    __syncthreads();
    shared[threadIdx.x] = x;
    for (int half = blockDim.x / 2; half; half >>= 1) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
    return shared[0];
}

#define GRADIENT W x = wider(p[place(ps, i)]), d = wider(g[place(gs, i)]); if (maximize) d = -d; d += weight_decay * x;
#define PER (8 / BITS)
#define VALUE(map, codes) VALUES[map][codes[i / PER] >> i % PER * BITS & ((1 << BITS) - 1)]
#define CODE(map, x) (nearest(x, BORDERS[map], 1 << (BITS - 1)) << i % PER * BITS)
#define OF_BLOCK for (wide i = first + threadIdx.x; i < last; i += blockDim.x)

extern "C" __global__ void adam_in_bytes(P* p, Places ps, const G* g, Places gs, unsigned char* m, float* m_top,
        unsigned char* v, float* v_top, wide n, wide block, double step_size, double beta1_, double beta2_, double eps,
        double root, double weight_decay_, double shrink, int maximize) {
    __shared__ float shared[256];
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W beta1 = beta1_, beta2 = beta2_, weight_decay = weight_decay_;
    const W m_scale = m_top[blockIdx.x], v_scale = v_top[blockIdx.x];
#define MOMENTS W mean = VALUE(1, m) * m_scale, square = VALUE(0, v) * v_scale; \\
    mean += (1 - beta1) * (d - mean); square = beta2 * square + (1 - beta2) * d * d;
    float m_most = 0, v_most = 0;
    OF_BLOCK { GRADIENT MOMENTS m_most = fmaxf(m_most, fabs((float)mean)); v_most = fmaxf(v_most, (float)square); }
    m_most = largest(m_most, shared);
    v_most = largest(v_most, shared);
    for (wide k = first / PER + threadIdx.x; PER * k < last; k += blockDim.x) {  // a thread has all numbers of a byte
        int m_code = 0, v_code = 0;
        for (wide i = PER * k; i < min(PER * k + PER, last); ++i) {
            GRADIENT MOMENTS
            x = x * (W)shrink - (W)(step_size * root) * mean / (sqrt(square) + (W)(eps * root));
            p[place(ps, i)] = (P)x;
            m_code |= CODE(1, (float)mean / m_most);
            v_code |= CODE(0, (float)square / v_most);
        }
        m[k] = m_code;
        v[k] = v_code;
    }
    if (threadIdx.x == 0) { m_top[blockIdx.x] = m_most; v_top[blockIdx.x] = v_most; }
}

extern "C" __global__ void sgd8bit(P* p, Places ps, const G* g, Places gs, unsigned char* buf, float* top, wide n, wide block,
        double lr, double momentum_, double dampening, double weight_decay_, int nesterov, int maximize) {
    __shared__ float shared[256];
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W momentum = momentum_, weight_decay = weight_decay_, scale = top[blockIdx.x];
#define MOMENTUM W speed = momentum * (VALUE(1, buf) * scale) + (1 - (W)dampening) * d;
    float most = 0;
    OF_BLOCK { GRADIENT MOMENTUM most = fmaxf(most, fabs((float)speed)); }
    most = largest(most, shared);
    OF_BLOCK {
        GRADIENT MOMENTUM
        p[place(ps, i)] = (P)(x - (W)lr * (nesterov ? d + momentum * speed : speed));
        buf[i] = CODE(1, (float)speed / most);
    }
    if (threadIdx.x == 0) top[blockIdx.x] = most;
}
"""


SOURCES = {bits: _tables(maps) + _PLACES + _SOURCE for bits, maps in _MAPS.items()}
"""Bits -> the kernels for them."""


def _run(source, name, bits, p, g, blocks, threads, *arguments):
    """Launch a kernel of p, g and the arguments."""
    meanings = {"P": raw.NAMES[p.dtype.char], "G": raw.NAMES[g.dtype.char], "W": raw.types(p.dtype.char)["A"], "BITS": bits}
    given = p, _places(p), g, _places(g), *arguments
    raw.launch(source, name, meanings, blocks * threads, *given, threads=threads)


def _step(name, bits, p, g, states, block, rates, *flags, threads=256):
    """Launch a rule with a block of threads for each block of numbers."""
    numbers = p.size, int(block), *map(float, rates), *map(np.int32, flags)
    _run(SOURCES[bits], name, bits, p, g, -(-p.size // block), threads, *states, *numbers)


def adam8bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    rates = step_size, beta1, beta2, eps, root, weight_decay, shrink
    _step("adam_in_bytes", 8, p, g, (m, m_top, v, v_top), block, rates, maximize)


def adam4bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    rates = step_size, beta1, beta2, eps, root, weight_decay, shrink
    _step("adam_in_bytes", 4, p, g, (m, m_top, v, v_top), block, rates, maximize, threads=64)


def sgd8bit_step(p, g, buf, top, block, lr, momentum, dampening, weight_decay, nesterov, maximize):
    _step("sgd8bit", 8, p, g, (buf, top), block, (lr, momentum, dampening, weight_decay), nesterov, maximize)
