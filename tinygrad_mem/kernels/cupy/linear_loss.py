"""Cross-entropy of scores that are computed in parts. As in ``kernels/numpy/linear_loss.py``."""

from __future__ import annotations

from .lines import launch as _launch
from .lines import pointer as _pointer
from .lines import strides as _strides


def fold_scores(x, first, target, weight, ignore, smoothing, classes, lse, picked):
    """Add a part of the scores of each line: x (outer, some of all classes, inner), from class ``first`` on."""
    goal = (target, *_strides(target), _pointer(weight), int(ignore), float(smoothing), int(first), int(classes))
    _launch("fold_scores", x.dtype.char, x.shape, x, *_strides(x), *goal, lse, picked, index=target.dtype.char)


def finish_scores(target, weight, ignore, smoothing, classes, lse, picked):
    """picked = the loss of each line, after :func:`fold_scores` of all its classes; 0 where ignored."""
    goal = (target, *_strides(target), _pointer(weight), int(ignore), float(smoothing))
    shape = (target.shape[0], classes, target.shape[1])
    _launch("finish_scores", lse.dtype.char, shape, *goal, lse, picked, index=target.dtype.char)
