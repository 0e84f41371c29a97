"""Formulas of update rules, for states in floats or in bytes."""

import numpy as np


def decayed(p, g, weight_decay, maximize):
    """The gradient after weight decay: g (or -g) plus weight_decay * p."""
    if weight_decay:
        return p * weight_decay - g if maximize else p * weight_decay + g
    return -g if maximize else g


def average(mean, value, keep):
    """keep * mean + (1 - keep) * value."""
    return mean + (value - mean) * (1 - keep)


def average_square(mean, value, keep):
    """keep * mean + (1 - keep) * value**2."""
    return mean * keep + value * value * (1 - keep)


def mean_square(p, g, v, beta2, weight_decay, maximize):
    """Adam's v alone."""
    return {"v": average_square(v, decayed(p, g, weight_decay, maximize), beta2)}


def momentum(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """SGD; buf is ``None`` without momentum."""
    step = d = decayed(p, g, weight_decay, maximize)
    if buf is not None:
        buf = buf * momentum + d * (1 - dampening)
        step = buf * momentum + d if nesterov else buf
    return {"p": p - step * lr, "buf": buf}


def adam(p, g, m, v, top, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam; top is ``None`` without AMSGrad."""
    d = decayed(p, g, weight_decay, maximize)
    p = p * shrink
    m, v = average(m, d, beta1), average_square(v, d, beta2)
    top = None if top is None else np.maximum(top, v)
    rms = np.sqrt(v if top is None else top)
    step = m / (rms + eps * root) * (step_size * root)  # numerator and denominator times root: one pass less
    return {"p": p - step, "m": m, "v": v, "top": top}
