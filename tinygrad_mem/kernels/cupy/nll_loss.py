"""The loss of logarithms of class probabilities. As in ``kernels/numpy/nll_loss.py``."""

from __future__ import annotations

from .lines import launch, seed, strides


def nll_loss(x, target, weight, ignore, out):
    goal = (target, *strides(target), weight, int(ignore), None, out)
    arguments = (None, 0, 0, x, *strides(x), *goal, None, 0, 0, 0)
    launch("nll", x.dtype.char, x.shape, *arguments, index=target.dtype.char)


def nll_loss_backward(gy, target, weight, ignore, norm, out):
    goal = (target, *strides(target), weight, int(ignore), norm, None)
    arguments = (*seed(gy), None, 0, 0, 0, *goal, out, *strides(out))
    launch("nll", out.dtype.char, out.shape, *arguments, index=target.dtype.char)
