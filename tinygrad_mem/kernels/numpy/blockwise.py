"""Update rules whose state has a byte or half of one per number, and one float32 per block of numbers: see ``fast/blocks.py``.

As in ``optim.py``, ``p`` and the state are written, ``g`` is read, and half precision is computed in float32.
"""

from ..code_tables import TABLES
from ..formula import formula
from .fast import blocks, rules
from .fast.computed import Written

_SIGNED, _UNSIGNED, _SIGNED4, _LINEAR4 = (TABLES[name] for name in ("dynamic", "positive", "dynamic4", "linear4"))


def _adam_in_bytes(signed, unsigned):
    def formula(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
        m, v = blocks.decoded(m, m_top, block, signed, p.shape), blocks.decoded(v, v_top, block, unsigned, p.shape)
        moved = rules.adam(p, g, m, v, None, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
        return {"p": moved["p"]}

    return formula


@formula(_adam_in_bytes(_SIGNED, _UNSIGNED))
def adam8bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam's rule (``adam_step``) with m and v in bytes: the signed map for m, the unsigned one for v."""
    numbers = (None, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
    blocks.run_by_block(
        _ADAM, p, g, block, [blocks.Blocks(m, m_top, _SIGNED, block), blocks.Blocks(v, v_top, _UNSIGNED, block)], numbers
    )


@formula(_adam_in_bytes(_SIGNED4, _LINEAR4))
def adam4bit_step(p, g, m, m_top, v, v_top, block, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam's rule with two numbers of m, and of v, in a byte: the signed map for m, equal steps for v; block is even."""
    numbers = (None, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
    blocks.run_by_block(
        _ADAM, p, g, block, [blocks.Blocks(m, m_top, _SIGNED4, block), blocks.Blocks(v, v_top, _LINEAR4, block)], numbers
    )


def _sgd8bit_step(p, g, buf, top, block, lr, momentum, dampening, weight_decay, nesterov, maximize):
    buf = blocks.decoded(buf, top, block, _SIGNED, p.shape)
    return {"p": rules.momentum(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize)["p"]}


@formula(_sgd8bit_step)
def sgd8bit_step(p, g, buf, top, block, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """SGD's rule (``sgd_step``) with its momentum in bytes."""
    numbers = (lr, momentum, dampening, weight_decay, nesterov, maximize)
    blocks.run_by_block(_MOMENTUM, p, g, block, [blocks.Blocks(buf, top, _SIGNED, block)], numbers)


_ADAM, _MOMENTUM = Written(rules.adam), Written(rules.momentum)
