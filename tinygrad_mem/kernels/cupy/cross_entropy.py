"""Cross-entropy over the middle axis of (outer, class, inner) arrays. As in ``kernels/numpy/cross_entropy.py``."""

from __future__ import annotations

from .lines import launch, seed, strides


def check_target(target, classes, ignore):
    """Does nothing: reading the targets would make the host wait. A target that is not a class gives a nan loss."""


def target_weight(target, weight, ignore, smoothing, out):
    classes = 0 if weight is None else weight.size
    shape, rest = (target.shape[0], classes, target.shape[1]), (None, None, 1.0, float(smoothing), None, out)
    launch("total", out.dtype.char, shape, target, *strides(target), weight, int(ignore), *rest, index=target.dtype.char)


def scaled_sum(rows, norm, out):
    array = norm if hasattr(norm, "dtype") else None
    count = 1.0 if norm is None or array is not None else float(norm)
    tail = (rows, array, count, 0.0, out, None)
    launch("total", out.dtype.char, (rows.shape[0], 0, rows.shape[1]), None, 0, 0, None, 0, *tail)


def log_sum_exp(x, lse):
    none = (None, 0, 0, None, 0, 0.0)
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *none, lse, None)


def cross_entropy(x, target, weight, ignore, smoothing, lse, rows):
    goal = (target, *strides(target), weight, int(ignore), float(smoothing))
    launch("cross_entropy", x.dtype.char, x.shape, x, *strides(x), *goal, lse, rows, index=target.dtype.char)


def cross_entropy_backward(gy, x, lse, target, weight, ignore, smoothing, norm, out, first=0, classes=None):
    every = x.shape[1] if classes is None else classes
    goal = (target, *strides(target), weight, int(ignore), float(smoothing), norm)
    arguments = (*seed(gy), x, *strides(x), lse, *goal, int(first), int(every), out, *strides(out))
    launch("cross_entropy_backward", x.dtype.char, x.shape, *arguments, index=target.dtype.char)
