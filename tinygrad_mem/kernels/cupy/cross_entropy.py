"""Cross-entropy over the middle axis of (outer, class, inner) arrays. As in ``kernels/numpy/cross_entropy.py``."""

from __future__ import annotations

import numpy as np

from .lines import launch, pointer, strides
from .raw import NULL


def check_target(target, classes, ignore):
    """Does nothing: reading the targets would make the host wait. A target that is not a class gives a nan loss."""


def _seed(gy):
    """A gradient and its two strides; a single number is used for all lines."""
    return (gy, 0, 0) if gy.ndim == 0 else (gy, *strides(gy))


def target_weight(target, weight, ignore, out):
    classes = 0 if weight is None else weight.size
    launch(
        "total",
        out.dtype.char,
        (target.shape[0], classes, target.shape[1]),
        *(target, *strides(target), pointer(weight), int(ignore), NULL, NULL, 1.0, NULL, out),
        index=target.dtype.char,
    )


def scaled_sum(rows, norm, out):
    array = norm if hasattr(norm, "dtype") else None
    count = 1.0 if norm is None or array is not None else float(norm)
    tail = (rows, pointer(array), count, out, NULL)
    launch("total", out.dtype.char, (rows.shape[0], 0, rows.shape[1]), NULL, 0, 0, NULL, 0, *tail)


def log_sum_exp(x, lse):
    none = (NULL, 0, 0, NULL, 0, 0.0)
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *none, lse, NULL)


def cross_entropy(x, target, weight, ignore, smoothing, lse, rows):
    goal = (target, *strides(target), pointer(weight), int(ignore), float(smoothing))
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *goal, lse, rows, index=target.dtype.char)


def cross_entropy_backward(gy, x, lse, target, weight, ignore, smoothing, norm, out, first=0, classes=None):
    every = x.shape[1] if classes is None else classes
    goal = (target, *strides(target), pointer(weight), int(ignore), float(smoothing), pointer(norm))
    arguments = (*_seed(gy), x, *strides(x), lse, *goal, int(first), int(every), out, *strides(out))
    launch("cross_entropy_backward", x.dtype.char, x.shape, *arguments, index=target.dtype.char)


def _soft(mode, gy, count, x, target, weight, smoothing, lse, rows, out):
    seed = (NULL, 0, 0) if gy is None else _seed(gy)
    inputs = (x, *strides(x), target, *strides(target), pointer(weight), float(smoothing), lse)
    result = (NULL, 0, 0, 0) if out is None else (out, *strides(out))
    launch("soft_cross_entropy", x.dtype.char, x.shape, np.int32(mode), *seed, float(count), *inputs, pointer(rows), *result)


def soft_cross_entropy(x, target, weight, smoothing, lse, rows):
    _soft(0, None, 1, x, target, weight, smoothing, lse, rows, None)


def soft_cross_entropy_backward(gy, x, target, weight, smoothing, lse, count, out):
    _soft(1, gy, count, x, target, weight, smoothing, lse, None, out)


def soft_cross_entropy_backward_target(gy, x, target, weight, smoothing, lse, count, out):
    _soft(2, gy, count, x, target, weight, smoothing, lse, None, out)


def nll_loss(x, target, weight, ignore, out):
    goal = (target, *strides(target), pointer(weight), int(ignore), NULL, out)
    arguments = (NULL, 0, 0, x, *strides(x), *goal, NULL, 0, 0, 0)
    launch("nll", x.dtype.char, x.shape, *arguments, index=target.dtype.char)


def nll_loss_backward(gy, target, weight, ignore, norm, out):
    goal = (target, *strides(target), pointer(weight), int(ignore), pointer(norm), NULL)
    arguments = (*_seed(gy), NULL, 0, 0, 0, *goal, out, *strides(out))
    launch("nll", out.dtype.char, out.shape, *arguments, index=target.dtype.char)
