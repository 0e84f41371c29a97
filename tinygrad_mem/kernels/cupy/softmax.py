"""Softmax over the middle axis of (outer, class, inner) arrays. As in ``kernels/numpy/softmax.py``."""

from __future__ import annotations

from .lines import launch as _launch
from .lines import strides as _strides


def softmax(x, out):
    """out = e**(x - max) / sum."""
    _launch("softmax", x.dtype.char, x.shape, x, *_strides(x), out, *_strides(out), 0)


def log_softmax(x, out):
    """out = x - max - ln(sum(e**(x - max)))."""
    _launch("softmax", x.dtype.char, x.shape, x, *_strides(x), out, *_strides(out), 1)


def softmax_backward(gy, y, out):
    """out = y * (gy - sum(gy * y))."""
    _launch("softmax_backward", y.dtype.char, y.shape, gy, *_strides(gy), y, *_strides(y), out, *_strides(out), 0)


def log_softmax_backward(gy, y, out):
    """out = gy - e**y * sum(gy)."""
    _launch("softmax_backward", y.dtype.char, y.shape, gy, *_strides(gy), y, *_strides(y), out, *_strides(out), 1)
