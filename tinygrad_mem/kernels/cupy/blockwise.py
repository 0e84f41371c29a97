"""Update rules whose state has 8 or 4 bits per number, and one float32 per block. As in ``kernels/numpy/blockwise.py``.

One thread block per block of numbers, in two passes: the first finds the largest new state, the second updates and packs. What
a rule computes is made from the CPU's formula.
"""

from __future__ import annotations

import inspect
from functools import cache

import numpy as np

from ..numpy.fast import rules
from . import raw
from .block_codes import _tables
from .computed import HELPERS, NUMBER, expressions
from .places import SOURCE as _PLACES
from .places import places as _places

_MAPS = {8: {"SIGNED": "dynamic", "POSITIVE": "positive"}, 4: {"SIGNED": "dynamic4", "POSITIVE": "linear4"}}
"""Bits -> the tables of codes."""


_SOURCE = """
#define PER (8 / BITS)
#define VALUE(map, codes) map##_NUMBERS[codes[i / PER] >> i % PER * BITS & ((1 << BITS) - 1)]
#define CODE(map, x) (nearest(x, map##_BORDERS) << i % PER * BITS)
#define GIVEN const W p = wider(param[place(ps, i)]), g = wider(grad[place(gs, i)]);
#define EACH_OF_BLOCK for (wide i = first + threadIdx.x; i < last; i += blockDim.x)
// a thread has all numbers of a byte
#define EACH_BYTE for (wide k = first / PER + threadIdx.x; PER * k < last; k += blockDim.x)
#define OF_BYTE for (wide i = PER * k; i < min(PER * k + PER, last); ++i)
"""
_ADAM = """
extern "C" __global__ void adam_in_bytes(P* param, Places ps, const G* grad, Places gs, unsigned char* m_codes, float* m_top,
        unsigned char* v_codes, float* v_top, wide n, wide block, double step_size, double beta1, double beta2, double eps,
        double root, double weight_decay, double shrink) {
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W m_scale = m_top[blockIdx.x], v_scale = v_top[blockIdx.x];
#define MOMENTS const W m = VALUE(SIGNED, m_codes) * m_scale, v = VALUE(POSITIVE, v_codes) * v_scale;
    float m_most = 0, v_most = 0;
    EACH_OF_BLOCK {
        GIVEN MOMENTS RULE
        m_most = larger(m_most, fabsf((float)new_m));
        v_most = larger(v_most, (float)new_v);
    }
    m_most = block_max(m_most);
    v_most = block_max(v_most);
    EACH_BYTE {
        int m_code = 0, v_code = 0;
        OF_BYTE {
            GIVEN MOMENTS RULE
            param[place(ps, i)] = (P)new_p;
            m_code |= CODE(SIGNED, (float)new_m / m_most);
            v_code |= CODE(POSITIVE, (float)new_v / v_most);
        }
        m_codes[k] = m_code;
        v_codes[k] = v_code;
    }
    if (threadIdx.x == 0) { m_top[blockIdx.x] = m_most; v_top[blockIdx.x] = v_most; }
}
"""
_SGD = """
extern "C" __global__ void sgd8bit(P* param, Places ps, const G* grad, Places gs, unsigned char* codes, float* top, wide n,
        wide block, double lr, double momentum, double dampening, double weight_decay) {
    const wide first = blockIdx.x * block, last = min(first + block, n);
    const W scale = top[blockIdx.x];
#define MOMENTUM const W buf = VALUE(SIGNED, codes) * scale;
    float most = 0;
    EACH_OF_BLOCK { GIVEN MOMENTUM RULE most = larger(most, fabsf((float)new_buf)); }
    most = block_max(most);
    EACH_OF_BLOCK {
        GIVEN MOMENTUM RULE
        param[place(ps, i)] = (P)new_p;
        codes[i] = CODE(SIGNED, (float)new_buf / most);
    }
    if (threadIdx.x == 0) top[blockIdx.x] = most;
}
"""


@cache
def _source(kernel, bits, rule, **chosen):
    """The source of a kernel, with a formula's results as ``new_p``, ``new_m`` and so on. It branches on what is ``chosen``."""
    arrays: dict[str, np.dtype] = dict.fromkeys(("p", "g", "m", "v", "buf"), np.dtype("f"))
    kinds = {name: chosen.get(name, arrays.get(name, NUMBER)) for name in inspect.signature(rule).parameters}
    new = " ".join([f"const W new_{name} = {text};" for name, text in expressions(rule, kinds, set()).items()])
    return f"{HELPERS}{raw.BLOCKS}{_tables(bits, **_MAPS[bits])}{_PLACES}{_SOURCE}#define RULE {new}\n{kernel}"


def _run(source, name, p, g, blocks, threads, *arguments):
    """Launch a kernel of p, g and the arguments."""
    meanings = {"P": raw.NAMES[p.dtype.char], "G": raw.NAMES[g.dtype.char], "W": raw.types(p.dtype.char)["A"]}
    given = p, _places(p), g, _places(g), *arguments
    raw.launch(source, name, meanings, blocks * threads, *given, threads=threads)


def _step(source, name, p, g, states, block, rates, threads=256):
    """Launch a rule with a block of threads for each block of numbers."""
    _run(source, name, p, g, -(-p.size // block), threads, *states, p.size, int(block), *map(float, rates))


def adam8bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    source = _source(_ADAM, 8, rules.adam, top=None, maximize=maximize)
    rates = step_size, beta1, beta2, eps, root, weight_decay, shrink
    _step(source, "adam_in_bytes", p, g, (m, m_top, v, v_top), block, rates)


def adam4bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    source = _source(_ADAM, 4, rules.adam, top=None, maximize=maximize)
    rates = step_size, beta1, beta2, eps, root, weight_decay, shrink
    _step(source, "adam_in_bytes", p, g, (m, m_top, v, v_top), block, rates, threads=64)


def sgd8bit_step(p, g, buf, top, block, lr, momentum, dampening, weight_decay, nesterov, maximize):
    source = _source(_SGD, 8, rules.momentum, nesterov=nesterov, maximize=maximize)
    _step(source, "sgd8bit", p, g, (buf, top), block, (lr, momentum, dampening, weight_decay))
