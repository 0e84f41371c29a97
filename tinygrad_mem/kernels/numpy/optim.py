"""Update rules of optimizers: one pass over a parameter in tiles, nothing of its size besides its state.

``p`` and the state arrays are written, ``g`` is read: a formula returns what is written, by name. What is half precision is
computed in float32 tiles. Scalars (bias corrections, step sizes) are computed by the caller, in Python.
"""

from functools import wraps

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast import rules, tiles
from .fast.computed import Written, computed
from .fast.halves import cast


def _rule(*roots, but=()):
    """The kernel of an update rule, whose arguments begin with p and g; it does not get those of the rule in ``but``.

    All tiles are in p's dtype or float32, whichever is wider; what is narrower is widened tile by tile, and rounded to
    nearest where it is written. The states ``roots`` are means of squares: in float16 they are kept as square roots.
    """

    def kernel_of(plain):
        written = Written(plain, but)
        rooted = {written.names.index(name) for name in roots}

        @wraps(plain)
        def kernel(p, g, *rest):
            run, temps = written(p, g, *rest)
            wide = arithmetic(p.dtype)
            narrow = [i for i, a in enumerate((p, g, *rest)) if isinstance(a, np.ndarray) and a.dtype != wide]
            if narrow:
                squares = [i for i in rooted.intersection(narrow) if rest[i - 2].dtype == np.float16]
                run, temps = _widened(run, temps, 2 + len(rest), narrow, squares), temps + len(narrow)
            tiles.tiled(run, p, g, *rest, temps=temps, dtype=wide)

        kernel.formula, kernel.roots, kernel.traced = plain, roots, "update"  # pyright: ignore[reportAttributeAccessIssue]
        return kernel

    return kernel_of


def _widened(run, temps, count, narrow, squares):
    """``run`` of tiles that are widened first: the arguments at the places ``narrow`` of ``count``, and then squared."""

    def widened(*parts):
        given, work = list(parts[:count]), parts[count:]
        for i, tile in zip(narrow, work[temps:], strict=True):
            cast(given[i], tile)
            if i in squares:
                np.multiply(tile, tile, out=tile)
            given[i] = tile
        run(*given, *work[:temps])
        for i in narrow:
            if i in squares:
                np.sqrt(given[i], out=given[i])
            if i != 1:  # the gradient is read, and the rest written
                cast(given[i], parts[i])

    return widened


def _unscale(grad, inverse, found):
    return {"grad": grad * inverse, "found": found if np.isfinite(grad).all() else np.ones_like(found)}


@formula(_unscale)
def unscale(grad, inverse, found):
    """grad *= inverse, and found = 1 where an element of grad was not finite; half precision is multiplied in float32."""
    wide = arithmetic(grad.dtype)

    def run(grad, work):
        finite = tiles.flags(work)
        np.isfinite(grad, out=finite)
        if not finite.all():
            found[...] = 1
        if inverse == 1:
            return
        if grad.dtype == wide:
            np.multiply(grad, inverse, out=grad)
        else:
            cast(grad, work)
            np.multiply(work, inverse, out=work)
            cast(work, grad)

    tiles.tiled(run, grad, temps=1, dtype=wide)


@formula(None, "it compares bits of halves, of which a formula sees nothing")
def renew_master(p, out):
    """out = p where p is not out rounded: what others have written to a parameter since enters its float32 copy."""

    def run(master, p, work):
        rounded = work.reshape(-1).view(p.dtype)[: work.size].reshape(work.shape)
        flag = work.reshape(-1).view(np.bool_)[2 * work.size : 3 * work.size].reshape(work.shape)
        cast(master, rounded)
        np.not_equal(rounded.view(np.uint16), p.view(np.uint16), out=flag)  # bits: nan too is what it was
        np.copyto(master, p, where=flag)

    tiles.tiled(run, out, p, temps=1)


@_rule()
def sgd_step(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize):
    """d = g + weight_decay * p; buf = momentum * buf + (1 - dampening) * d; p -= lr * buf (Nesterov: d + momentum * buf).

    ``buf`` is ``None`` without momentum.
    """
    return rules.momentum(p, g, buf, lr, momentum, dampening, weight_decay, nesterov, maximize)


@_rule("v", "top")
def adam_step(p, g, m, v, top, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """m, v = running means of d and d**2; p = shrink * p - step_size * m / (sqrt(v) / root + eps), d = g + weight_decay * p.

    ``top`` is the running maximum of v (AMSGrad) or ``None``; root is sqrt(1 - beta2**t).
    """
    return rules.adam(p, g, m, v, top, step_size, beta1, beta2, eps, root, weight_decay, shrink, maximize)


@_rule("v")
def rmsprop_step(p, g, v, buf, mean, lr, alpha, eps, momentum, weight_decay, maximize):
    """v = running mean of d**2; p -= lr * d / (sqrt(v) + eps), d = g + weight_decay * p.

    ``mean`` (centered: sqrt(v - mean**2)) and ``buf`` (momentum) may be ``None``.
    """
    d = rules.decayed(p, g, weight_decay, maximize)
    v, variance = rules.average_square(v, d, alpha), None
    if mean is not None:
        mean = rules.average(mean, d, alpha)
        variance = v - mean * mean
    step = d / (np.sqrt(v if variance is None else variance) + eps)
    if buf is not None:
        step = buf = buf * momentum + step
    return {"p": p - step * lr, "v": v, "buf": buf, "mean": mean}


@_rule("total")
def adagrad_step(p, g, total, rate, eps, weight_decay, maximize):
    """total += d**2; p -= rate * d / (sqrt(total) + eps), d = g + weight_decay * p."""
    d = rules.decayed(p, g, weight_decay, maximize)
    total = total + d * d
    return {"p": p - d / (np.sqrt(total) + eps) * rate, "total": total}


@_rule("v", "moved")
def adadelta_step(p, g, v, moved, lr, rho, eps, weight_decay, maximize):
    """v, moved = running means of d**2 and of the steps squared; p -= lr * d * sqrt(moved + eps) / sqrt(v + eps)."""
    d = rules.decayed(p, g, weight_decay, maximize)
    v = rules.average_square(v, d, rho)
    step = np.sqrt(moved + eps) / np.sqrt(v + eps) * d
    return {"p": p - step * lr, "v": v, "moved": rules.average_square(moved, step, rho)}


@_rule()
def adamax_step(p, g, m, top, rate, beta1, beta2, eps, weight_decay, maximize):
    """m = running mean of d; top = max(beta2 * top, |d| + eps); p -= rate * m / top, d = g + weight_decay * p."""
    d = rules.decayed(p, g, weight_decay, maximize)
    m = rules.average(m, d, beta1)
    top = np.maximum(top * beta2, np.abs(d) + eps)
    return {"p": p - m / top * rate, "m": m, "top": top}


@_rule("v")
def nadam_step(p, g, m, v, rate_g, rate_m, beta1, beta2, eps, root, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - (rate_g * d + rate_m * m) / (sqrt(v) / root + eps), d = g + weight_decay * p."""
    d = rules.decayed(p, g, weight_decay, maximize)
    m, v = rules.average(m, d, beta1), rules.average_square(v, d, beta2)
    ahead = d * rate_g + m * rate_m
    return {"p": p * shrink - ahead / (np.sqrt(v) * (1 / root) + eps), "m": m, "v": v}


@_rule("v")
def radam_step(p, g, m, v, rate, rectified, beta1, beta2, eps, weight_decay, shrink, maximize):
    """Adam's m and v; p = shrink * p - rate * m, divided by sqrt(v) + eps where ``rectified``; d = g + weight_decay * p."""
    d = rules.decayed(p, g, weight_decay, maximize)
    m, v = rules.average(m, d, beta1), rules.average_square(v, d, beta2)
    step = m / (np.sqrt(v) + eps) if rectified else m
    return {"p": p * shrink - step * rate, "m": m, "v": v}


@_rule()
def lion_step(p, g, m, lr, beta1, beta2, shrink, maximize):
    """p = shrink * p - lr * sign(beta1 * m + (1 - beta1) * d); m = beta2 * m + (1 - beta2) * d, d = g or -g."""
    d = rules.decayed(p, g, 0, maximize)
    return {"p": p * shrink - np.sign(rules.average(m, d, beta1)) * lr, "m": rules.average(m, d, beta2)}


@computed
def moved_mean_square(mean, norm, keep, share, out):
    """out = keep * mean + share * norm**2: a mean of squares, moved towards those of numbers with this norm."""
    return mean * keep + norm * norm * share


@_rule()
def adam_mini_step(p, g, m, v, step_size, beta1, eps, root, shrink, maximize):
    """m = running mean of d = g or -g; p = shrink * p - step_size * m / (sqrt(v) / root + eps); v is broadcast."""
    m = rules.average(m, rules.decayed(p, g, 0, maximize), beta1)
    return {"p": p * shrink - m / (np.sqrt(v) + eps * root) * (step_size * root), "m": m}


@_rule()
def muon_direction(p, g, buf, momentum, nesterov):
    """buf = running mean of g; p = buf, or with Nesterov's variant buf moved on by g."""
    buf = rules.average(buf, g, momentum)
    return {"p": rules.average(buf, g, momentum) if nesterov else buf, "buf": buf}


@computed
def weighted_sum(x, y, a, b, out):
    """out = a * x + b * y."""
    return x * a + y * b


@_rule()
def scaled_step(p, g, scale, rate, shrink):
    """p = shrink * p - rate * g * scale; ``scale`` is broadcast, or ``None`` for 1."""
    return {"p": p * shrink - (g if scale is None else g * scale) * rate}


@computed
def growth_limit(norm, before, growth, out):
    """out = what makes an update of this norm at most ``growth`` times as long as the one before: 1 after one of norm 0."""
    return np.where(before > 0, np.minimum(before * growth / norm, 1), 1.0)


@_rule()
def lomo_step(p, g, lr, bound, maximize):
    """p -= lr * d, d = g or -g, cut to -bound and bound; ``None`` cuts nothing."""
    d = rules.decayed(p, g, 0, maximize)
    return {"p": p - (d if bound is None else np.minimum(np.maximum(d, -bound), bound)) * lr}
