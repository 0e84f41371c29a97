"""The loss of logarithms of class probabilities, with class indices as targets; (outer, class, inner) arrays."""

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .cross_entropy import _is_target, _of_target
from .fast.targets import patches, weights
from .fast.threads import scratch
from .index import gather as _gather
from .index import scatter as _scatter


def _nll_loss(x, target, weight, ignore):
    return -_of_target(target, weight, ignore) * np.sum(np.where(_is_target(x.shape[1], target), x, 0), axis=1)


@formula(_nll_loss)
def nll_loss(x, target, weight, ignore, out):
    """out (outer, inner) = -weight[t] * x[t], 0 where ignored."""
    for a, b in patches(target.shape):
        goal, rows = target[a, b], out[a, b]
        at, skip = scratch(goal.shape, np.int64, 6, 8), scratch(goal.shape, np.bool_, 7, 8)
        np.copyto(at, goal, casting="unsafe")
        np.equal(goal, ignore, out=skip)
        np.copyto(at, 0, where=skip)
        found = rows if rows.dtype == x.dtype else scratch(goal.shape, x.dtype, 7, 8)
        _gather(x[a, :, b], 1, at[:, None], out=found[:, None])  # in scratch below slot 6
        w = weights(weight, goal, ignore, out.dtype, 5)
        np.multiply(found, w, out=rows)
        np.negative(rows, out=rows)
        np.copyto(rows, 0, where=scratch(goal.shape, np.bool_, 6, 8))  # as weights left it


def _nll_loss_backward(gy, target, weight, ignore, norm, out):
    g = -gy * _of_target(target, weight, ignore) / (1 if norm is None else norm)
    return _is_target(out.shape[1], target) * g[:, None]


@formula(_nll_loss_backward)
def nll_loss_backward(gy, target, weight, ignore, norm, out):
    """out (outer, class, inner), zeros before: -gy / norm * weight[t] at the targets."""
    factor = -1.0 if norm is None else -1.0 / float(norm) if float(norm) else -np.inf
    for a, b in patches(target.shape):
        goal = target[a, b]
        w = weights(weight, goal, ignore, arithmetic(out.dtype), 7)
        skip = scratch(goal.shape, np.bool_, 6, 8)  # as weights left it
        np.multiply(w, gy[a, b] if gy.ndim else gy, out=w, casting="unsafe")
        np.multiply(w, factor, out=w)
        np.copyto(w, 0, where=skip)
        at = scratch(goal.shape, np.int64, 5, 8)
        np.copyto(at, goal, casting="unsafe")
        np.copyto(at, 0, where=skip)
        _scatter(w[:, None], 1, at[:, None], out[a, :, b])  # in scratch below slot 5
