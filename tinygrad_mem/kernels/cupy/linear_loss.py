"""Cross-entropy of scores that are computed in parts. As in ``kernels/numpy/linear_loss.py``."""

from __future__ import annotations

from .lines import launch, strides


def fold_scores(x, first, target, weight, ignore, smoothing, classes, lse, picked):
    goal = (target, *strides(target), weight, int(ignore), float(smoothing), int(first), int(classes))
    launch("fold_scores", x.dtype.char, x.shape, x, *strides(x), *goal, lse, picked, index=target.dtype.char)


def finish_scores(target, weight, ignore, smoothing, classes, lse, picked):
    goal = (target, *strides(target), weight, int(ignore), float(smoothing))
    shape = (target.shape[0], classes, target.shape[1])
    launch("finish_scores", lse.dtype.char, shape, *goal, lse, picked, index=target.dtype.char)
