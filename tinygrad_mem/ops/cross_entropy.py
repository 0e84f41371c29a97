"""Cross-entropy and negative log-likelihood over classes: the class axis is 1 (0 of a single sample).

Kernels see (outer, class, inner) views of the scores and (outer, inner) views of the targets; ``rows`` is the loss of each.
"""

import math
from itertools import pairwise

from ..dtypes import arithmetic
from .base import Op


def joins(x, axes):
    """True if consecutive ``axes`` of ``x`` can be seen as one without a copy."""
    axes = [a for a in axes if x.shape[a] != 1]
    return x.size == 0 or all(x.strides[a] == x.strides[b] * x.shape[b] for a, b in pairwise(axes))


def class_view(ctx, x):
    """``x`` as (outer, class, inner), a view of it, or of a copy where its strides allow none."""
    if x.ndim == 1:
        return x.reshape(1, x.shape[0], 1)
    if not joins(x, range(2, x.ndim)):
        x = ctx.contiguous(x)
    return x.reshape(x.shape[0], x.shape[1], math.prod(x.shape[2:]))


def line_view(ctx, target, shape):
    """``target`` as (outer, inner) to the scores' (outer, class, inner)."""
    if target.ndim > 1 and not joins(target, range(1, target.ndim)):
        target = ctx.contiguous(target)
    return target.reshape(shape[0], shape[2])


def lines_of(ctx, x, target, weight, ignore):
    """The views of scores and targets, which are checked, the weights, and a buffer for the loss of each line."""
    scores = class_view(ctx, x)
    goal = line_view(ctx, target, scores.shape)
    ctx.kernels.check_target(goal, scores.shape[1], ignore)
    wide = arithmetic(x.dtype)
    return scores, goal, ctx.cast(weight, wide), ctx.empty(goal.shape, wide)


def without_classes(ctx, smoothing, *lines):
    """The sums over no class, ``lines`` = 0: every target is one to ignore, or was refused. A share of no class is nan."""
    for each in lines:
        ctx.kernels.fill(math.nan if smoothing else 0, out=each)


def weight_of_targets(ctx, goal, scores, weights, ignore, smoothing=0):
    """A new 0-d array: the sum of the weights of the targets that are not ignored."""
    norm = ctx.empty((), arithmetic(scores.dtype))
    if scores.shape[1]:
        ctx.kernels.target_weight(goal, weights, ignore, smoothing, out=norm)
    else:
        without_classes(ctx, 0, norm)
    return norm


def reduced(ctx, rows, dtype, shape, reduction, norm):
    """The result of the losses of all lines: themselves, their sum, or their sum over ``norm`` (an array, or a number)."""
    if reduction == "none":
        rows = rows.reshape(shape)
        return rows if rows.dtype == dtype else ctx.copy(rows, dtype)
    out = ctx.empty((), dtype)
    ctx.kernels.scaled_sum(rows, norm if reduction == "mean" else None, out=out)
    return out


class CrossEntropy(Op):
    """-ln softmax(x)[target] a line, of the classes of one sample or pixel.

    Saves x, target, weight if given, lse (``target.size * max(4, x.itemsize)`` bytes), and norm (``max(4, x.itemsize)`` bytes)
    if ``reduction == "mean"``: the logarithm of the softmax's denominator, and the sum of the targets' weights.
    """

    saves = ("x", "target", "weight", "lse", "norm")

    @staticmethod
    def forward(ctx, x, target, weight, *, ignore, smoothing, reduction):
        scores, goal, weights, rows = lines_of(ctx, x, target, weight, ignore)
        lse = ctx.empty_like(rows)
        if scores.size:
            ctx.kernels.cross_entropy(scores, goal, weights, ignore, smoothing, lse, rows)
        else:
            without_classes(ctx, smoothing, lse, rows)
        norm = weight_of_targets(ctx, goal, scores, weights, ignore, smoothing) if reduction == "mean" else None
        ctx.save(x=x, target=target, lse=lse, weight=weight, norm=norm)
        ctx.options = ignore, smoothing
        return reduced(ctx, rows, x.dtype, target.shape if x.ndim > 1 else (), reduction, norm)

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        scores = class_view(ctx, x)
        goal = line_view(ctx, ctx.take("target"), scores.shape)
        lse = ctx.take("lse")
        weight = ctx.cast(ctx.take("weight"), lse.dtype)
        norm = ctx.take("norm")
        gx = ctx.empty(x.shape, x.dtype)
        seed = gy if gy.ndim == 0 else line_view(ctx, gy, scores.shape)
        if gx.size:
            result = gx.reshape(scores.shape)
            ctx.kernels.cross_entropy_backward(seed, scores, lse, goal, weight, *ctx.options, norm, out=result)
        return gx, None, None


class CrossEntropyProbabilities(Op):
    """-sum of target * ln softmax(x) over the classes (axis 1, of a vector 0).

    Saves x, target, weight if given, and lse (``x.size // x.shape[min(1, x.ndim - 1)] * max(4, x.itemsize)`` bytes).
    """

    saves = ("x", "target", "weight", "lse")

    @staticmethod
    def forward(ctx, x, target, weight, *, smoothing, reduction):
        wide = arithmetic(x.dtype)
        scores, goal = class_view(ctx, x), class_view(ctx, target)
        outer, _, inner = scores.shape
        lse, rows = ctx.empty((outer, inner), wide), ctx.empty((outer, inner), wide)
        weights = ctx.cast(weight, wide)
        if scores.size:
            ctx.kernels.log_sum_exp(scores, lse)
            ctx.kernels.soft_cross_entropy(scores, goal, weights, smoothing, lse, rows)
        else:
            without_classes(ctx, 0, lse, rows)
        ctx.save(x=x, target=target, lse=lse, weight=weight)
        ctx.count = outer * inner if reduction == "mean" else 1
        ctx.smoothing = smoothing
        lines = outer * inner if scores.shape[1] else 0  # as PyTorch counts them: elements by classes
        return reduced(ctx, rows, x.dtype, (*x.shape[:1], *x.shape[2:]) if x.ndim > 1 else (), reduction, lines)

    @staticmethod
    def backward(ctx, gy):
        x, target, lse = ctx.take("x"), ctx.take("target"), ctx.take("lse")
        scores, goal = class_view(ctx, x), class_view(ctx, target)
        weight = ctx.cast(ctx.take("weight"), lse.dtype)
        seed = gy if gy.ndim == 0 else line_view(ctx, gy, scores.shape)
        grads = []
        for need, like, kernel in (
            (ctx.needs[0], x, ctx.kernels.soft_cross_entropy_backward),
            (ctx.needs[1], target, ctx.kernels.soft_cross_entropy_backward_target),
        ):
            grad = ctx.empty(like.shape, like.dtype) if need else None
            if grad is not None and grad.size:
                kernel(seed, scores, goal, weight, ctx.smoothing, lse, ctx.count, out=grad.reshape(scores.shape))
            grads.append(grad)
        return (*grads, None)


class NLLLoss(Op):
    """-weight[target] * x[target] a line.

    Saves target, weight if given, and norm (``max(4, x.itemsize)`` bytes) if ``reduction == "mean"``; not x.
    """

    saves = ("target", "weight", "norm")

    @staticmethod
    def forward(ctx, x, target, weight, *, ignore, reduction):
        scores, goal, weights, rows = lines_of(ctx, x, target, weight, ignore)
        if scores.size:
            ctx.kernels.nll_loss(scores, goal, weights, ignore, out=rows)
        else:
            without_classes(ctx, 0, rows)
        norm = weight_of_targets(ctx, goal, scores, weights, ignore) if reduction == "mean" else None
        ctx.save(target=target, weight=weight, norm=norm)
        ctx.like = x.shape, x.dtype, scores.shape, ignore
        return reduced(ctx, rows, x.dtype, target.shape if x.ndim > 1 else (), reduction, norm)

    @staticmethod
    def backward(ctx, gy):
        shape, dtype, lines, ignore = ctx.like
        goal = line_view(ctx, ctx.take("target"), lines)
        weight = ctx.cast(ctx.take("weight"), arithmetic(dtype))
        norm = ctx.take("norm")
        gx = ctx.zeros(shape, dtype)
        seed = gy if gy.ndim == 0 else line_view(ctx, gy, lines)
        if gx.size:
            ctx.kernels.nll_loss_backward(seed, goal, weight, ignore, norm, out=gx.reshape(lines))
        return gx, None, None
