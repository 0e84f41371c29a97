"""Cross-entropy whose targets are class probabilities. As in ``kernels/numpy/soft_cross_entropy.py``."""

from __future__ import annotations

import numpy as np

from .lines import launch, seed, strides


def _soft(mode, gy, count, x, target, weight, smoothing, lse, rows, out):
    given = (None, 0, 0) if gy is None else seed(gy)
    inputs = (x, *strides(x), target, *strides(target), weight, float(smoothing), lse)
    result = (None, 0, 0, 0) if out is None else (out, *strides(out))
    launch("soft_cross_entropy", x.dtype.char, x.shape, np.int32(mode), *given, float(count), *inputs, rows, *result)


def soft_cross_entropy(x, target, weight, smoothing, lse, rows):
    _soft(0, None, 1, x, target, weight, smoothing, lse, rows, None)


def soft_cross_entropy_backward(gy, x, target, weight, smoothing, lse, count, out):
    _soft(1, gy, count, x, target, weight, smoothing, lse, None, out)


def soft_cross_entropy_backward_target(gy, x, target, weight, smoothing, lse, count, out):
    _soft(2, gy, count, x, target, weight, smoothing, lse, None, out)
