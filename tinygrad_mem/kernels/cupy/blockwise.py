"""Update rules whose state has 8 or 4 bits per number, and one float32 per block. As in ``kernels/numpy/blockwise.py``.

One thread block per block of numbers, in two passes: the first finds the largest new state, the second updates and packs.
"""

from __future__ import annotations

from functools import cache

import cupy
import numpy as np

from ..dynamic_map import borders, dynamic_map, linear_map
from .c_names import NAMES
from .places import SOURCE
from .places import places as _places

_THREADS = 256


def _tables(bits, *maps):
    """Tables in CUDA of two maps, that of v and that of m, and of their borders but for the last, infinity."""
    lines = []
    for name, values in (("VALUES", maps), ("BORDERS", [borders(each)[:-1] for each in maps])):
        rows = ["{" + ", ".join(f"{n:.9e}f" for n in row) + "}" for row in values]
        lines.append(f"__constant__ float {name}{bits}[2][{len(values[0])}] = {{{', '.join(rows)}}};\n")
    return "".join(lines)


_SOURCE = """
typedef long long wide;

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

__device__ inline float wider(__half x) { return __half2float(x); }
__device__ inline float wider(float x) { return x; }
__device__ inline double wider(double x) { return x; }
#define GRADIENT W x = wider(p[place(ps, i)]), d = wider(g[place(gs, i)]); if (maximize) d = -d; d += weight_decay * x;
#define EACH for (wide i = first + threadIdx.x; i < last; i += blockDim.x)

extern "C" __global__ void adam8bit(P* p, Places ps, const G* g, Places gs, unsigned char* m, float* m_top, unsigned char* v,
        float* v_top, wide n, wide block, double step_size, double beta1_, double beta2_, double eps, double root,
        double weight_decay_, double shrink, int maximize) {
    __shared__ float shared[256];
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W beta1 = beta1_, beta2 = beta2_, weight_decay = weight_decay_;
    const W m_scale = m_top[blockIdx.x], v_scale = v_top[blockIdx.x];
#define MOMENTS W mean = VALUES8[1][m[i]] * m_scale, square = VALUES8[0][v[i]] * v_scale; CHANGE
#define CHANGE \\
    mean += (1 - beta1) * (d - mean); square = beta2 * square + (1 - beta2) * d * d;
    float m_most = 0, v_most = 0;
    EACH { GRADIENT MOMENTS m_most = fmaxf(m_most, fabs((float)mean)); v_most = fmaxf(v_most, (float)square); }
    m_most = largest(m_most, shared);
    v_most = largest(v_most, shared);
    EACH {
        GRADIENT MOMENTS
        x = x * (W)shrink - (W)(step_size * root) * mean / (sqrt(square) + (W)(eps * root));
        p[place(ps, i)] = (P)x;
        m[i] = nearest((float)mean / m_most, BORDERS8[1], 128);
        v[i] = nearest((float)square / v_most, BORDERS8[0], 128);
    }
    if (threadIdx.x == 0) { m_top[blockIdx.x] = m_most; v_top[blockIdx.x] = v_most; }
}

extern "C" __global__ void adam4bit(P* p, Places ps, const G* g, Places gs, unsigned char* m, float* m_top, unsigned char* v,
        float* v_top, wide n, wide block, double step_size, double beta1_, double beta2_, double eps, double root,
        double weight_decay_, double shrink, int maximize) {  // a thread reads and writes both numbers of a byte
    __shared__ float shared[256];
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W beta1 = beta1_, beta2 = beta2_, weight_decay = weight_decay_;
    const W m_scale = m_top[blockIdx.x], v_scale = v_top[blockIdx.x];
#define HALVES4 const int bits = i % 2 * 4; \\
    W mean = VALUES4[1][m[i / 2] >> bits & 15] * m_scale, square = VALUES4[0][v[i / 2] >> bits & 15] * v_scale; CHANGE
    float m_most = 0, v_most = 0;
    EACH { GRADIENT HALVES4 m_most = fmaxf(m_most, fabs((float)mean)); v_most = fmaxf(v_most, (float)square); }
    m_most = largest(m_most, shared);
    v_most = largest(v_most, shared);
    for (wide k = first / 2 + threadIdx.x; 2 * k < last; k += blockDim.x) {
        int m_code = 0, v_code = 0;
        for (wide i = 2 * k; i < min(2 * k + 2, last); ++i) {
            GRADIENT HALVES4
            x = x * (W)shrink - (W)(step_size * root) * mean / (sqrt(square) + (W)(eps * root));
            p[place(ps, i)] = (P)x;
            m_code |= nearest((float)mean / m_most, BORDERS4[1], 8) << bits;
            v_code |= nearest((float)square / v_most, BORDERS4[0], 8) << bits;
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
#define MOMENTUM W speed = momentum * (VALUES8[1][buf[i]] * scale) + (1 - (W)dampening) * d;
    float most = 0;
    EACH { GRADIENT MOMENTUM most = fmaxf(most, fabs((float)speed)); }
    most = largest(most, shared);
    EACH {
        GRADIENT MOMENTUM
        p[place(ps, i)] = (P)(x - (W)lr * (nesterov ? d + momentum * speed : speed));
        buf[i] = nearest((float)speed / most, BORDERS8[1], 128);
    }
    if (threadIdx.x == 0) top[blockIdx.x] = most;
}
"""


@cache
def _kernel(name, p, g, more=""):
    head = _tables(8, dynamic_map(False), dynamic_map(True)) + _tables(4, linear_map(), dynamic_map(True, 4))
    wide = "double" if p == "d" else "float"
    types = f"typedef {NAMES[p]} P;\ntypedef {NAMES[g]} G;\ntypedef {wide} W;\n"
    source = "#include <cuda_fp16.h>\n" + types + head + SOURCE + _SOURCE + more
    return cupy.RawModule(code=source).get_function(name)  # pyright: ignore


def _run(name, p, g, block, states, *numbers, threads=_THREADS):
    if p.size:
        arguments = p, _places(p), g, _places(g), *states, int(p.size), int(block), *numbers
        _kernel(name, p.dtype.char, g.dtype.char)((-(-p.size // block),), (threads,), arguments)


def adam8bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    numbers = [float(n) for n in (step_size, beta1, beta2, eps, root, weight_decay, shrink)]
    _run("adam8bit", p, g, block, (m, m_top, v, v_top), *numbers, np.int32(maximize))


def adam4bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    numbers = [float(n) for n in (step_size, beta1, beta2, eps, root, weight_decay, shrink)]
    _run("adam4bit", p, g, block, (m, m_top, v, v_top), *numbers, np.int32(maximize), threads=64)


def sgd8bit_step(p, g, buf, top, block, lr, momentum, dampening, weight_decay, nesterov, maximize):
    numbers = [float(n) for n in (lr, momentum, dampening, weight_decay)]
    _run("sgd8bit", p, g, block, (buf, top), *numbers, np.int32(nesterov), np.int32(maximize))
