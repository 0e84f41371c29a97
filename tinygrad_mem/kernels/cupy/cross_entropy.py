"""Cross-entropy over the middle axis of (outer, class, inner) arrays. As in ``kernels/numpy/cross_entropy.py``."""

from __future__ import annotations

import numpy as np

from .lines import NULL, launch, pointer, strides


def check_target(target, classes, ignore):
    """Does nothing: reading the targets would make the host wait. A target that is not a class gives a nan loss."""


def _seed(gy):
    """A gradient and its two strides; a single number is used for all lines."""
    return (gy, 0, 0) if gy.ndim == 0 else (gy, *strides(gy))


def target_weight(target, weight, ignore, out):
    """out (0-d) = the sum of the weights of all targets that are not ignored."""
    classes = 0 if weight is None else weight.size
    launch(
        "total",
        out.dtype.char,
        (target.shape[0], classes, target.shape[1]),
        *(target, *strides(target), pointer(weight), int(ignore), NULL, NULL, 1.0, NULL, out),
        index=target.dtype.char,
    )


def scaled_sum(rows, norm, out):
    """out (0-d) = the sum of rows over ``norm``: ``None``, a number, or a 0-d array."""
    array = norm if hasattr(norm, "dtype") else None
    count = 1.0 if norm is None or array is not None else float(norm)
    tail = (rows, pointer(array), count, out, NULL)
    launch("total", out.dtype.char, (rows.shape[0], 0, rows.shape[1]), NULL, 0, 0, NULL, 0, *tail)


def log_sum_exp(x, lse):
    """lse (outer, inner) = ln of the sum of e**x over the classes."""
    none = (NULL, 0, 0, NULL, 0, 0.0)
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *none, lse, NULL)


def cross_entropy(x, target, weight, ignore, smoothing, lse, rows):
    """lse = ln of the sum of e**x over the classes; rows = the loss of each line, 0 where ignored; both (outer, inner)."""
    goal = (target, *strides(target), pointer(weight), int(ignore), float(smoothing))
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *goal, lse, rows, index=target.dtype.char)


def cross_entropy_backward(gy, x, lse, target, weight, ignore, smoothing, norm, out, first=0, classes=None):
    """out = gy / norm * d rows / dx: softmax less one-hot, weighted; ``norm`` is ``None`` or a 0-d array.

    x may have only a part of all ``classes``, from ``first`` on. out may be x.
    """
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
    """rows (outer, inner) = -sum over the classes of weight * smoothed target * (x - lse)."""
    _soft(0, None, 1, x, target, weight, smoothing, lse, rows, None)


def soft_cross_entropy_backward(gy, x, target, weight, smoothing, lse, count, out):
    """out = gy / count * (softmax(x) * sum of wanted - wanted), wanted = weight * smoothed target."""
    _soft(1, gy, count, x, target, weight, smoothing, lse, None, out)


def soft_cross_entropy_backward_target(gy, x, target, weight, smoothing, lse, count, out):
    """out = -gy / count * (1 - smoothing) * weight * (x - lse)."""
    _soft(2, gy, count, x, target, weight, smoothing, lse, None, out)


def nll_loss(x, target, weight, ignore, out):
    """out (outer, inner) = -weight[t] * x[t], 0 where ignored."""
    goal = (target, *strides(target), pointer(weight), int(ignore), NULL, out)
    arguments = (NULL, 0, 0, x, *strides(x), *goal, NULL, 0, 0, 0)
    launch("nll", x.dtype.char, x.shape, *arguments, index=target.dtype.char)


def nll_loss_backward(gy, target, weight, ignore, norm, out):
    """out (outer, class, inner), zeros before: -gy / norm * weight[t] at the targets."""
    goal = (target, *strides(target), pointer(weight), int(ignore), pointer(norm), NULL)
    arguments = (*_seed(gy), NULL, 0, 0, 0, *goal, out, *strides(out))
    launch("nll", out.dtype.char, out.shape, *arguments, index=target.dtype.char)
