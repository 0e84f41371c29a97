"""Softmax over the middle axis of (outer, class, inner) arrays. As in ``kernels/numpy/softmax.py``."""

from __future__ import annotations

import numpy as np

from .lines import launch, strides


def softmax(x, out):
    launch("softmax", x.dtype.char, x.shape, x, *strides(x), out, *strides(out), np.int32(0))


def log_softmax(x, out):
    launch("softmax", x.dtype.char, x.shape, x, *strides(x), out, *strides(out), np.int32(1))


def softmax_backward(gy, y, out):
    launch("softmax_backward", y.dtype.char, y.shape, gy, *strides(gy), y, *strides(y), out, *strides(out), np.int32(0))


def log_softmax_backward(gy, y, out):
    launch("softmax_backward", y.dtype.char, y.shape, gy, *strides(gy), y, *strides(y), out, *strides(out), np.int32(1))
