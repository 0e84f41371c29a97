"""Update rules of optimizers: one pass over a parameter in tiles, nothing of its size besides its state.

``p`` and the state arrays are written, ``g`` is read. What is half precision is computed in float32 tiles.
Scalars (bias corrections, step sizes) are computed by the caller, in Python.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import arithmetic as _arithmetic
from .halves import cast as _cast
from .rules import adam_rule as _adam_rule
from .rules import average as _average
from .rules import average_square as _average_square
from .rules import decayed as _decayed
from .rules import momentum_rule as _momentum_rule
from .tiles import flags as _flags
from .tiles import tiled as _tiled


def _update(run, temps, p, g, *states, roots=()):
    """``run(p, g, *states, *scratch)`` over tiles, all in p's dtype or float32, whichever is wider.

    What is narrower is widened tile by tile, and rounded to nearest where it is written. Of the states, those at the places
    ``roots`` are means of squares: in float16 they are kept as square roots.
    """
    wide = np.dtype(np.float64 if p.dtype == np.float64 else np.float32)
    arrays = (p, g, *states)
    narrow = [i for i, a in enumerate(arrays) if a is not None and a.dtype != wide]
    if not narrow:
        _tiled(run, *arrays, temps=temps)
        return
    rooted = [i + 2 for i in roots if states[i] is not None and states[i].dtype == np.float16]

    def widened(*tiles):
        given, work = list(tiles[: len(arrays)]), tiles[len(arrays) :]
        for i, tile in zip(narrow, work[temps:], strict=True):
            _cast(given[i], tile)
            if i in rooted:
                np.multiply(tile, tile, out=tile)
            given[i] = tile
        run(*given, *work[:temps])
        for i in narrow:
            if i in rooted:
                np.sqrt(given[i], out=given[i])
            if i != 1:  # the gradient is read, and the rest written
                _cast(given[i], tiles[i])

    _tiled(widened, *arrays, temps=temps + len(narrow), dtype=wide)


def unscale(grad, inverse, found):
    """grad *= inverse, and found = 1 where an element of grad was not finite; half precision is multiplied in float32."""
    wide = _arithmetic(grad.dtype)

    def run(grad, work):
        finite = _flags(work)
        np.isfinite(grad, out=finite)
        if not finite.all():
            found[...] = 1
        if inverse == 1:
            return
        if grad.dtype == wide:
            np.multiply(grad, inverse, out=grad)
        else:
            _cast(grad, work)
            np.multiply(work, inverse, out=work)
            _cast(work, grad)

    _tiled(run, grad, temps=1, dtype=wide)


def renew_master(p, out):
    """out = p where p is not out rounded: what others have written to a parameter since enters its float32 copy."""

    def run(master, p, work):
        rounded = work.reshape(-1).view(p.dtype)[: work.size].reshape(work.shape)
        flag = work.reshape(-1).view(np.bool_)[2 * work.size : 3 * work.size].reshape(work.shape)
        _cast(master, rounded)
        np.not_equal(rounded.view(np.uint16), p.view(np.uint16), out=flag)  # bits: nan too is what it was
        np.copyto(master, p, where=flag)

    _tiled(run, out, p, temps=1)


def sgd_step(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """d = g + weight_decay * p; buf = momentum * buf + (1 - dampening) * d; p -= lr * buf (Nesterov: d + momentum * buf).

    ``buf`` is ``None`` without momentum.
    """

    _update(_momentum_rule(lr, momentum, dampening, weight_decay, nesterov, maximize), 2, p, g, buf)


def adam_step(p, g, m, v, top, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """m, v = running means of d and d**2; p = shrink * p - step_size * m / (sqrt(v) / root + eps), d = g + weight_decay * p.

    ``top`` is the running maximum of v (AMSGrad) or ``None``; root is sqrt(1 - beta2**t).
    """
    run = _adam_rule(step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)
    _update(run, 2, p, g, m, v, top, roots=(1, 2))


def rmsprop_step(p, g, v, buf, mean, lr, alpha, eps, momentum, weight_decay, maximize):
    """v = running mean of d**2; p -= lr * d / (sqrt(v) + eps), d = g + weight_decay * p.

    ``mean`` (centered: sqrt(v - mean**2)) and ``buf`` (momentum) may be ``None``.
    """

    def run(p, g, v, buf, mean, t, u):
        d = _decayed(p, g, t, weight_decay, maximize)
        _average_square(v, d, alpha, u)
        if mean is None:
            np.sqrt(v, out=u)
        else:
            _average(mean, d, alpha, u)
            np.multiply(mean, mean, out=u)
            np.subtract(v, u, out=u)
            np.sqrt(u, out=u)
        np.add(u, eps, out=u)
        np.divide(d, u, out=u)
        if buf is not None:
            np.multiply(buf, momentum, out=buf)
            np.add(buf, u, out=buf)
            np.multiply(buf, lr, out=u)
        else:
            np.multiply(u, lr, out=u)
        np.subtract(p, u, out=p)

    _update(run, 2, p, g, v, buf, mean)


def adagrad_step(p, g, total, rate, eps, weight_decay, maximize):
    """total += d**2; p -= rate * d / (sqrt(total) + eps), d = g + weight_decay * p."""

    def run(p, g, total, t, u):
        d = _decayed(p, g, t, weight_decay, maximize)
        np.multiply(d, d, out=u)
        np.add(total, u, out=total)
        np.sqrt(total, out=u)
        np.add(u, eps, out=u)
        np.divide(d, u, out=u)
        np.multiply(u, rate, out=u)
        np.subtract(p, u, out=p)

    _update(run, 2, p, g, total)


def adadelta_step(p, g, v, moved, lr, rho, eps, weight_decay, maximize):
    """v, moved = running means of d**2 and of the steps squared; p -= lr * d * sqrt(moved + eps) / sqrt(v + eps)."""

    def run(p, g, v, moved, t, u, w):
        d = _decayed(p, g, t, weight_decay, maximize)
        _average_square(v, d, rho, u)
        np.add(v, eps, out=u)
        np.sqrt(u, out=u)
        np.add(moved, eps, out=w)
        np.sqrt(w, out=w)
        np.divide(w, u, out=w)
        np.multiply(w, d, out=w)
        _average_square(moved, w, rho, u)
        np.multiply(w, lr, out=w)
        np.subtract(p, w, out=p)

    _update(run, 3, p, g, v, moved)


def adamax_step(p, g, m, top, rate, beta1, beta2, eps, weight_decay, maximize):
    """m = running mean of d; top = max(beta2 * top, |d| + eps); p -= rate * m / top, d = g + weight_decay * p."""

    def run(p, g, m, top, t, u):
        d = _decayed(p, g, t, weight_decay, maximize)
        _average(m, d, beta1, u)
        np.absolute(d, out=u)
        np.add(u, eps, out=u)
        np.multiply(top, beta2, out=top)
        np.maximum(top, u, out=top)
        np.divide(m, top, out=u)
        np.multiply(u, rate, out=u)
        np.subtract(p, u, out=p)

    _update(run, 2, p, g, m, top)


def nadam_step(p, g, m, v, rate_g, rate_m, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - (rate_g * d + rate_m * m) / (sqrt(v) / root + eps), d = g + weight_decay * p."""

    def run(p, g, m, v, t, u, w):
        d = _decayed(p, g, t, weight_decay, maximize)
        if shrink != 1:
            np.multiply(p, shrink, out=p)
        _average(m, d, beta1, u)
        _average_square(v, d, beta2, u)
        np.multiply(d, rate_g, out=w)
        np.multiply(m, rate_m, out=u)
        np.add(w, u, out=w)
        np.sqrt(v, out=u)
        np.multiply(u, 1 / root, out=u)
        np.add(u, eps, out=u)
        np.divide(w, u, out=u)
        np.subtract(p, u, out=p)

    _update(run, 3, p, g, m, v)


def radam_step(p, g, m, v, rate, rectified, beta1, beta2, eps, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - rate * m, divided by sqrt(v) + eps where ``rectified``; d = g + weight_decay * p."""

    def run(p, g, m, v, t, u):
        d = _decayed(p, g, t, weight_decay, maximize)
        if shrink != 1:
            np.multiply(p, shrink, out=p)
        _average(m, d, beta1, u)
        _average_square(v, d, beta2, u)
        if rectified:
            np.sqrt(v, out=u)
            np.add(u, eps, out=u)
            np.divide(m, u, out=u)
            np.multiply(u, rate, out=u)
        else:
            np.multiply(m, rate, out=u)
        np.subtract(p, u, out=p)

    _update(run, 2, p, g, m, v)
