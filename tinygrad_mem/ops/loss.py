"""Losses. The classification losses keep the logits that they were given, and never a copy of them."""

from __future__ import annotations

import math
from typing import ClassVar

from ..errors import DTypeError, ShapeError
from .base import Op

SUM, MEAN, NONE = "sum", "mean", "none"


def _rows(name, x, target):
    """(n, classes, d) of logits and (n, d) of targets."""
    if x.ndim == 1:
        shape, expected = (1, x.shape[0], 1), ()
    else:
        shape = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
        expected = (x.shape[0], *x.shape[2:])
    if target.shape != expected:
        raise ShapeError(
            f"{name}: Expected target size {list(expected)}, got {list(target.shape)}, for input {list(x.shape)} "
            "(batch, classes, ...)"
        )
    if target.dtype.kind not in "iu":
        raise DTypeError(f"{name}: expected class indices (int64), found {target.dtype}")
    return shape


class _Classification(Op):
    """What cross-entropy and the negative log-likelihood share: rows of losses and weights, and their reduction."""

    @staticmethod
    def _reduce(ctx, losses, weights, reduction, shape):
        ctx.reduction = reduction
        if reduction == NONE:
            return losses.reshape(shape)
        out = ctx.empty((), losses.dtype)
        ctx.kernels.sum(losses, (0, 1), out=out.reshape(1, 1))
        if reduction == MEAN:
            total = ctx.empty((), losses.dtype)
            ctx.kernels.sum(weights, (0, 1), out=total.reshape(1, 1))
            ctx.kernels.divide(out, total, out=out)
            if ctx.needs[0]:
                ctx.save(total=total)
        return out

    @staticmethod
    def _row_grads(ctx, gy, shape):
        """The gradient of every row's loss."""
        if ctx.reduction == NONE:
            return ctx.contiguous(gy).reshape(shape)
        rows = ctx.empty(shape, gy.dtype)
        if ctx.reduction == MEAN:
            ctx.kernels.divide(gy, ctx.take("total"), out=rows)
        else:
            ctx.kernels.copy(gy, out=rows)
        return rows


class CrossEntropy(_Classification):
    """Softmax and negative log-likelihood of class indices in one.

    Saves x (the logits, which are the caller's), one number a row (the logarithm of the sum of exponentials), the targets,
    and the class weights and their sum where there are any; no copy of the logits. Backward makes one buffer of x's size.
    """

    saves = ("x", "target", "weight", "stat", "total")
    outputs = ()

    @staticmethod
    def forward(ctx, x, target, weight, *, ignore_index, reduction, smoothing):
        n, classes, d = _rows("cross_entropy", x, target)
        if weight is not None and weight.shape != (classes,):
            raise ShapeError(f"cross_entropy: weight tensor should be defined for all {classes} classes, got {list(weight.shape)}")
        rows, t = ctx.contiguous(x).reshape(n, classes, d), ctx.contiguous(target).reshape(n, d)
        stat = ctx.empty((n, d), x.dtype)
        ctx.kernels.cross_entropy_statistics(rows, 1, out=stat.reshape(n, 1, d))
        losses, weights = ctx.empty((n, d), x.dtype), ctx.empty((n, d), x.dtype)
        ctx.kernels.cross_entropy(rows, stat, t, weight, ignore_index, smoothing, losses, weights)
        ctx.options = (ignore_index, smoothing)
        if ctx.needs[0]:
            ctx.save(x=x, target=target, stat=stat)
            if weight is not None:
                ctx.save(weight=weight)
        return CrossEntropy._reduce(ctx, losses, weights, reduction, target.shape)

    @staticmethod
    def backward(ctx, gy):
        x, target = ctx.take("x"), ctx.take("target")
        stat = ctx.take("stat")
        n, d = stat.shape
        weight = ctx.take("weight") if "weight" in ctx.saved else None
        gx = ctx.empty_like(x)
        shape = (n, gx.size // max(n * d, 1), d)
        ctx.kernels.cross_entropy_backward(
            CrossEntropy._row_grads(ctx, gy, (n, d)),
            ctx.contiguous(x).reshape(shape),
            stat,
            ctx.contiguous(target).reshape(n, d),
            weight,
            *ctx.options,
            out=gx.reshape(shape),
        )
        return gx, None, None


class NLLLoss(_Classification):
    """Minus the log-probability of class indices. Saves the targets, and the class weights where there are any."""

    saves = ("target", "weight", "total")
    outputs = ()

    @staticmethod
    def forward(ctx, x, target, weight, *, ignore_index, reduction):
        ctx.shape = n, classes, d = _rows("nll_loss", x, target)
        if weight is not None and weight.shape != (classes,):
            raise ShapeError(f"nll_loss: weight tensor should be defined for all {classes} classes, got {list(weight.shape)}")
        losses, weights = ctx.empty((n, d), x.dtype), ctx.empty((n, d), x.dtype)
        rows, t = ctx.contiguous(x).reshape(ctx.shape), ctx.contiguous(target).reshape(n, d)
        ctx.kernels.nll(rows, t, weight, ignore_index, losses, weights)
        ctx.ignore, ctx.x_shape = ignore_index, x.shape
        if ctx.needs[0]:
            ctx.save(target=target)
            if weight is not None:
                ctx.save(weight=weight)
        return NLLLoss._reduce(ctx, losses, weights, reduction, target.shape)

    @staticmethod
    def backward(ctx, gy):
        n, _, d = ctx.shape
        gx = ctx.empty(ctx.x_shape, gy.dtype)
        weight = ctx.take("weight") if "weight" in ctx.saved else None
        target = ctx.contiguous(ctx.take("target")).reshape(n, d)
        grads = NLLLoss._row_grads(ctx, gy, (n, d))
        ctx.kernels.nll_backward(grads, target, weight, ctx.ignore, out=gx.reshape(ctx.shape))
        return gx, None, None


class _Pairwise(Op):
    """A loss of two tensors, elementwise, with its reduction; ``numbers`` go to the kernel. Saves both tensors, no difference.

    The gradient of the second tensor is minus the first's (where ``symmetric``).
    """

    saves = ("x", "y")
    outputs = ()
    kernel: ClassVar[str]

    @classmethod
    def forward(cls, ctx, x, y, *, reduction, numbers=()):
        x, y = ctx.broadcast(x, y.shape) if x.ndim < y.ndim else x, y
        out = ctx.empty(x.shape, x.dtype)
        ctx.reduction, ctx.numbers, ctx.count = reduction, numbers, x.size
        if any(ctx.needs):
            ctx.save(x=x, y=y)
        getattr(ctx.kernels, cls.kernel)(x, y, *numbers, out=out)
        if reduction == NONE:
            return out
        total = ctx.empty((), x.dtype)
        reduce = ctx.kernels.mean if reduction == MEAN else ctx.kernels.sum
        reduce(out, tuple(range(x.ndim)), out=total.reshape((1,) * x.ndim))
        return total

    @classmethod
    def backward(cls, ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        if ctx.reduction == MEAN:
            scaled = ctx.grad_buffer(gy)
            ctx.kernels.multiply(gy, 1.0 / ctx.count if ctx.count else math.nan, out=scaled)
            gy = scaled
        gx = ctx.empty_like(x)
        getattr(ctx.kernels, cls.kernel + "_backward")(gy, x, y, *ctx.numbers, out=gx)
        if not ctx.needs[1]:
            return gx, None
        gz = ctx.empty_like(gx) if ctx.needs[0] else gx
        ctx.kernels.negative(gx, out=gz)
        return gx if ctx.needs[0] else None, gz


class MSELoss(_Pairwise):
    """(x - y)**2. Saves both tensors."""

    kernel = "squared_error"


class L1Loss(_Pairwise):
    """|x - y|. Saves both tensors."""

    kernel = "absolute_error"


class HuberLoss(_Pairwise):
    """Quadratic near zero, linear beyond delta; Huber and smooth L1 by their numbers. Saves both tensors."""

    kernel = "huber"


class BinaryCrossEntropy(Op):
    """-(y * ln(x) + (1 - y) * ln(1 - x)), elementwise. Saves both tensors; the target gets no gradient."""

    saves = ("x", "y")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y):
        out = ctx.empty_like(x)
        if ctx.needs[0]:
            ctx.save(x=x, y=y)
        ctx.kernels.binary_cross_entropy(x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        gx = ctx.empty_like(x)
        ctx.kernels.binary_cross_entropy_backward(gy, x, ctx.take("y"), out=gx)
        return gx, None


class BCEWithLogits(Op):
    """Sigmoid and binary cross-entropy in one, elementwise. Saves both tensors, and the positive weights where there are any."""

    saves = ("x", "y", "positive")
    outputs = ()

    @staticmethod
    def forward(ctx, x, y, positive):
        out = ctx.empty_like(x)
        if ctx.needs[0]:
            ctx.save(x=x, y=y)
            if positive is not None:
                ctx.save(positive=positive)
        ctx.kernels.bce_with_logits(x, y, 1.0 if positive is None else ctx.broadcast(positive, x.shape), out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        gx = ctx.empty_like(x)
        positive = ctx.broadcast(ctx.take("positive"), x.shape) if "positive" in ctx.saved else 1.0
        ctx.kernels.bce_with_logits_backward(gy, x, ctx.take("y"), positive, out=gx)
        return gx, None, None
