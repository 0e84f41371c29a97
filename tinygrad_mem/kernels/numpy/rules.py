"""The arithmetic of update rules on one tile, for whoever brings the state: as it is, or unpacked from bytes."""

from __future__ import annotations

import numpy as np


def decayed(p, g, t, weight_decay, maximize):
    """The gradient to follow: g (or -g) plus weight_decay * p; in t, unless it is g itself."""
    if weight_decay:
        np.multiply(p, weight_decay, out=t)
        (np.subtract if maximize else np.add)(t, g, out=t)
        return t
    if maximize:
        np.negative(g, out=t)
        return t
    return g


def average(mean, value, keep, t):
    """mean = keep * mean + (1 - keep) * value."""
    np.subtract(value, mean, out=t)
    np.multiply(t, 1 - keep, out=t)
    np.add(mean, t, out=mean)


def average_square(mean, value, keep, t):
    """mean = keep * mean + (1 - keep) * value**2."""
    np.multiply(value, value, out=t)
    np.multiply(t, 1 - keep, out=t)
    np.multiply(mean, keep, out=mean)
    np.add(mean, t, out=mean)


def momentum_rule(lr, momentum, dampening, weight_decay, nesterov, maximize):
    """``run(p, g, buf, t, u)`` of SGD; buf is ``None`` without momentum."""

    def run(p, g, buf, t, u):
        d = decayed(p, g, t, weight_decay, maximize)
        if buf is not None:
            np.multiply(buf, momentum, out=buf)
            if dampening:
                np.multiply(d, 1 - dampening, out=u)
                np.add(buf, u, out=buf)
            else:
                np.add(buf, d, out=buf)
            if nesterov:
                np.multiply(buf, momentum, out=u)
                np.add(u, d, out=u)
                d = u
            else:
                d = buf
        np.multiply(d, lr, out=u)
        np.subtract(p, u, out=p)

    return run


def adam_rule(step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """``run(p, g, m, v, top, t, u)`` of Adam; top is ``None`` without AMSGrad."""
    size, floor = step_size * root, eps * root  # both sides of the division times root: one pass less

    def run(p, g, m, v, top, t, u):
        d = decayed(p, g, t, weight_decay, maximize)
        if shrink != 1:
            np.multiply(p, shrink, out=p)
        average(m, d, beta1, u)
        average_square(v, d, beta2, u)
        if top is None:
            np.sqrt(v, out=u)
        else:
            np.maximum(top, v, out=top)
            np.sqrt(top, out=u)
        np.add(u, floor, out=u)
        np.divide(m, u, out=u)
        np.multiply(u, size, out=u)
        np.subtract(p, u, out=p)

    return run
