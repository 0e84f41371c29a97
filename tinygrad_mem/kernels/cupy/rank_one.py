"""Adam with moments of 4 bits, the second scaled along the axes, in two kernels. As in ``kernels/numpy/rank_one.py``.

The first finds the largest numbers: nonnegative floats are in the order of their bits, so an integer's ``atomicMax`` does, and
the order of the threads changes nothing. The second updates and packs, as ``adam4bit``.
"""

from __future__ import annotations

import numpy as np

from .blockwise import SOURCES, _run
from .places import _KIND

_THREADS, _BLOCKS = 256, 1 << 12

_SOURCE = (
    f"{SOURCES[4]}"
    + """
__device__ inline float smallest(const Places& lines, const float* top, wide i) {  // of the lines through i
    float found = __int_as_float(0x7f800000);
    for (int axis = (int)lines.axes - 1; axis >= 0; --axis) {
        const wide rest = i / lines.shape[axis];
        found = fminf(found, top[lines.step[axis] + i - rest * lines.shape[axis]]);
        i = rest;
    }
    return found;
}
#define SQUARE W square = VALUE(0, v) * (W)smallest(lines, v_top, i)

extern "C" __global__ void adam4bit_tops(const P* p, Places ps, const G* g, Places gs, const unsigned char* v,
        const float* v_top, unsigned* fresh, Places lines, wide n, double beta2_, double weight_decay_, int maximize) {
    const W beta2 = beta2_, weight_decay = weight_decay_;
    EACH(i, n) {
        GRADIENT
        SQUARE;
        const unsigned found = __float_as_uint((float)(beta2 * square + (1 - beta2) * d * d));
        wide left = i;
        for (int axis = (int)lines.axes - 1; axis >= 0; --axis) {
            const wide rest = left / lines.shape[axis];
            unsigned* most = fresh + lines.step[axis] + left - rest * lines.shape[axis];
            if (*(volatile unsigned*)most < found) atomicMax(most, found);  // seldom
            left = rest;
        }
    }
}

extern "C" __global__ void adam4bit_rank1(P* p, Places ps, const G* g, Places gs, unsigned char* m, float* m_top,
        unsigned char* v, const float* v_top, const float* fresh, Places lines, wide n, wide block, double step_size,
        double beta1_, double beta2_, double eps, double root, double weight_decay_, double shrink, int maximize) {
    __shared__ float shared[256];
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W beta1 = beta1_, beta2 = beta2_, weight_decay = weight_decay_;
    const W m_scale = m_top[blockIdx.x];
#define MEAN W mean = VALUE(1, m) * m_scale;
    float m_most = 0;
    OF_BLOCK { GRADIENT MEAN mean += (1 - beta1) * (d - mean); m_most = fmaxf(m_most, fabs((float)mean)); }
    m_most = largest(m_most, shared);
    for (wide k = first / PER + threadIdx.x; PER * k < last; k += blockDim.x) {  // a thread has both numbers of a byte
        int m_code = 0, v_code = 0;
        for (wide i = PER * k; i < min(PER * k + PER, last); ++i) {
            GRADIENT MEAN SQUARE;
            mean += (1 - beta1) * (d - mean); square = beta2 * square + (1 - beta2) * d * d;
            x = x * (W)shrink - (W)(step_size * root) * mean / (sqrt(square) + (W)(eps * root));
            p[place(ps, i)] = (P)x;
            m_code |= CODE(1, (float)mean / m_most);
            v_code |= CODE(0, (float)square / smallest(lines, fresh, i));
        }
        m[k] = m_code;
        v[k] = v_code;
    }
    if (threadIdx.x == 0) m_top[blockIdx.x] = m_most;
}
"""
)


def _lines(shape):
    """The argument ``lines``: the shape, and where the numbers of each axis begin."""
    found = np.zeros((), _KIND)
    found["axes"] = len(shape)
    found["shape"][: len(shape)] = shape
    found["step"][1 : len(shape)] = np.cumsum(shape)[:-1]
    return found


def adam4bit_rank1_step(
    p, g, work, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize
):
    if p.size == 0:
        return
    fresh, lines, size = work[: v_top.nbytes].view(np.uint32), _lines(p.shape), int(p.size)
    fresh[...] = 0
    numbers = float(beta2), float(weight_decay), np.int32(maximize)
    blocks = min(-(-size // _THREADS), _BLOCKS)
    _run(_SOURCE, "adam4bit_tops", 4, p, g, blocks, _THREADS, v, v_top, fresh, lines, size, *numbers)
    rates = [float(n) for n in (step_size, beta1, beta2, eps, root, weight_decay, shrink)]
    states = m, m_top, v, v_top, fresh, lines
    _run(_SOURCE, "adam4bit_rank1", 4, p, g, -(-size // block), 64, *states, size, int(block), *rates, np.int32(maximize))
    v_top.view(np.uint32)[...] = fresh
