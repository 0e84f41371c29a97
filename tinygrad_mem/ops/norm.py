"""Normalisation. Every op saves its input and a few statistics, never the normalised values."""

import math

from ..dtypes import arithmetic
from ..errors import ShapeError
from .base import Op, want_floating


def channels_apart(name, x, weight, bias, running_mean, running_var):
    """The shape of x as (N, channels, the rest in one).

    Raises:
        DTypeError: x is not floating.
        ShapeError: a parameter or a statistic does not have one number per channel.
    """
    want_floating(name, x)
    each = x.shape[1:2]
    for which, v in (("weight", weight), ("bias", bias), ("running_mean", running_mean), ("running_var", running_var)):
        if v is not None and v.shape != each:
            raise ShapeError(f"{name}: {which} should contain {x.shape[1]} elements not {v.size}")
    return (x.shape[0], x.shape[1], math.prod(x.shape[2:]))


class BatchNorm(Op):
    """Per channel (axis 1): (x - mean) / sqrt(variance + eps) * weight + bias, over all other axes.

    Saves x, mean (``x.shape[1] * max(4, x.itemsize)`` bytes), rstd (``x.shape[1] * max(4, x.itemsize)`` bytes), and weight if x
    needs a gradient; rstd is 1 / sqrt(variance + eps). In training the running statistics are written by the kernel, in the
    forward only.

    Source: Ioffe and Szegedy, *Batch normalization*, 2015.
    """

    saves = ("x", "weight", "mean", "rstd")
    outputs = ()

    @staticmethod
    def forward(ctx, x, weight, bias, *, running_mean, running_var, training, momentum, eps):
        n, channels, _ = ctx.shape = channels_apart("batch_norm", x, weight, bias, running_mean, running_var)
        x3 = ctx.contiguous(x).reshape(ctx.shape)
        wide = arithmetic(x.dtype)
        mean, rstd = ctx.empty((channels,), wide), ctx.empty((channels,), wide)
        out = ctx.output(x.shape, x.dtype)
        if training:
            partial = ctx.empty((2, max(n, 1), channels), wide)
            ctx.kernels.batch_statistics(x3, eps, momentum, running_mean, running_var, partial[:, :n], mean, rstd)
            lines = partial.reshape(2 * max(n, 1), channels)[:2]  # nothing is allocated once the statistics are written
        else:
            lines = ctx.empty((2, channels), wide)
            ctx.kernels.given_statistics(running_mean, running_var, eps, mean, rstd)
        ctx.training = training
        ctx.save(x=x, mean=mean, rstd=rstd, weight=weight if ctx.needs[0] else None)
        ctx.kernels.batch_norm(x3, mean, rstd, weight, bias, lines, out=out.reshape(ctx.shape))
        return out

    @staticmethod
    def backward(ctx, gy):
        x, mean, rstd, weight = map(ctx.take, ("x", "mean", "rstd", "weight"))
        n, channels, _ = ctx.shape
        contiguous = ctx.contiguous(gy)
        gx = None
        if ctx.needs[0]:
            gx = contiguous if ctx.owns_grad or contiguous is not gy else ctx.empty(gy.shape, gy.dtype)
        partial, sums = ctx.empty((2, n, channels), mean.dtype), ctx.empty((2, channels), mean.dtype)
        gy3, x3 = contiguous.reshape(ctx.shape), ctx.contiguous(x).reshape(ctx.shape)
        buffers = partial, ctx.empty((3, channels), mean.dtype), sums
        out = _shaped(ctx, gx, ctx.shape)
        ctx.kernels.batch_norm_backward(gy3, x3, mean, rstd, weight, ctx.training, *buffers, out=out)
        return gx, sums[1] if ctx.needs[1] else None, sums[0] if ctx.needs[2] else None


class SampleNorm(Op):
    """Layer, group, instance and RMS norm: statistics of each sample and group, an affine map that broadcasts.

    ``layout`` is x's shape as (n, groups, k, length); the affine parameters have the shape ``affine`` within (groups, k,
    length). Saves x, rstd (``layout[0] * layout[1] * max(4, x.itemsize)`` bytes), mean (``layout[0] * layout[1] * max(4,
    x.itemsize)`` bytes) if ``centre``, and weight if x needs a gradient.

    Source: Ba et al., *Layer normalization*, 2016; Wu and He, *Group normalization*, 2018; Zhang and Sennrich, *RMSNorm*, 2019.
    """

    saves = ("x", "weight", "mean", "rstd")
    outputs = ()

    @staticmethod
    def forward(ctx, x, weight, bias, *, layout, affine, eps, centre):
        want_floating("norm", x)
        ctx.layout, ctx.affine = layout, affine
        ctx.parameter_shapes = [None if p is None else p.shape for p in (weight, bias)]
        wide = arithmetic(x.dtype)
        mean = ctx.empty(layout[:2], wide) if centre else None
        rstd = ctx.empty(layout[:2], wide)
        out = ctx.output(x.shape, x.dtype)
        w, b = _shaped(ctx, weight, affine), _shaped(ctx, bias, affine)
        ctx.kernels.sample_norm(ctx.contiguous(x).reshape(layout), w, b, eps, centre, mean, rstd, out=out.reshape(layout))
        ctx.save(x=x, rstd=rstd, mean=mean, weight=weight if ctx.needs[0] else None)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, rstd, mean = ctx.take("x"), ctx.take("rstd"), ctx.take("mean")
        weight = _shaped(ctx, ctx.take("weight"), ctx.affine)
        gy = ctx.contiguous(gy)
        gw = ctx.empty((1, *ctx.affine), rstd.dtype) if ctx.needs[1] else None
        gb = ctx.empty((1, *ctx.affine), rstd.dtype) if ctx.needs[2] else None
        gx = ctx.grad_buffer(gy) if ctx.needs[0] else None
        stat = ctx.empty((2, *ctx.layout[:2]), rstd.dtype)
        pair, out = (_shaped(ctx, gy, ctx.layout), _shaped(ctx, x, ctx.layout)), _shaped(ctx, gx, ctx.layout)
        ctx.kernels.sample_norm_backward(*pair, mean, rstd, weight, stat, gw, gb, out=out)
        weight_shape, bias_shape = ctx.parameter_shapes
        return gx, _shaped(ctx, gw, weight_shape), _shaped(ctx, gb, bias_shape)


def _shaped(ctx, x, shape):
    """``x``, contiguous, in ``shape``; ``None`` stays."""
    return None if x is None else ctx.contiguous(x).reshape(shape)
