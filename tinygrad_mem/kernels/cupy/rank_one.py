"""Adam with moments of 4 bits, the second scaled along the axes, in two kernels. As in ``kernels/numpy/rank_one.py``.

The first finds the largest numbers: nonnegative floats are in the order of their bits, so an integer's ``atomicMax`` does, and
the order of the threads changes nothing. The second updates and packs, as ``adam4bit``.
"""

from __future__ import annotations

import numpy as np

from ..numpy.fast import rules
from .blockwise import _run, _source, _step
from .places import _KIND

_THREADS, _BLOCKS = 256, 1 << 12

_LINES = """
__device__ inline float smallest(const Places& lines, const float* top, wide i) {  // of the lines through i
    float found = __int_as_float(0x7f800000);
    for (int axis = (int)lines.axes - 1; axis >= 0; --axis) {
        const wide rest = i / lines.shape[axis];
        found = least(found, top[lines.step[axis] + i - rest * lines.shape[axis]]);
        i = rest;
    }
    return found;
}
#define SQUARE const W v = VALUE(POSITIVE, v_codes) * (W)smallest(lines, v_top, i);
"""
_TOPS = (
    f"{_LINES}"
    + """
extern "C" __global__ void adam4bit_tops(const P* param, Places ps, const G* grad, Places gs, const unsigned char* v_codes,
        const float* v_top, unsigned* fresh, Places lines, wide n, double beta2, double weight_decay) {
    EACH(i, n) {
        GIVEN SQUARE RULE
        const unsigned found = __float_as_uint((float)new_v);
        wide left = i;
        for (int axis = (int)lines.axes - 1; axis >= 0; --axis) {
            const wide rest = left / lines.shape[axis];
            unsigned* most = fresh + lines.step[axis] + left - rest * lines.shape[axis];
            if (*(volatile unsigned*)most < found) atomicMax(most, found);  // seldom
            left = rest;
        }
    }
}
"""
)
_ADAM = (
    f"{_LINES}"
    + """
extern "C" __global__ void adam4bit_rank1(P* param, Places ps, const G* grad, Places gs, unsigned char* m_codes, float* m_top,
        unsigned char* v_codes, const float* v_top, const float* fresh, Places lines, wide n, wide block, double step_size,
        double beta1, double beta2, double eps, double root, double weight_decay, double shrink) {
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W m_scale = m_top[blockIdx.x];
#define MEAN const W m = VALUE(SIGNED, m_codes) * m_scale;
    float m_most = 0;
    EACH_OF_BLOCK { GIVEN MEAN const W v = 0; RULE m_most = larger(m_most, fabsf((float)new_m)); }
    m_most = block_max(m_most);
    EACH_BYTE {
        int m_code = 0, v_code = 0;
        OF_BYTE {
            GIVEN MEAN SQUARE RULE
            param[place(ps, i)] = (P)new_p;
            m_code |= CODE(SIGNED, (float)new_m / m_most);
            v_code |= CODE(POSITIVE, (float)new_v / smallest(lines, fresh, i));
        }
        m_codes[k] = m_code;
        v_codes[k] = v_code;
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
    source, blocks = _source(_TOPS, 4, rules.mean_square, maximize=maximize), min(-(-size // _THREADS), _BLOCKS)
    _run(source, "adam4bit_tops", p, g, blocks, _THREADS, v, v_top, fresh, lines, size, float(beta2), float(weight_decay))
    source, rates = _source(_ADAM, 4, rules.adam, top=None, maximize=maximize), (step_size, beta1, beta2, eps, root)
    states = m, m_top, v, v_top, fresh, lines
    _step(source, "adam4bit_rank1", p, g, states, block, (*rates, weight_decay, shrink), threads=64)
    v_top.view(np.uint32)[...] = fresh
