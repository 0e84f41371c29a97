"""Normalisation. Every op saves its input and a few statistics, never the normalised values."""

from __future__ import annotations

import math

from ..dtypes import arithmetic
from ..errors import ShapeError
from .base import Op, want_floating


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
        want_floating("batch_norm", x)
        n, channels, _ = ctx.shape = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
        for name, v in (("weight", weight), ("bias", bias), ("running_mean", running_mean), ("running_var", running_var)):
            if v is not None and v.shape != (channels,):
                raise ShapeError(f"batch_norm: {name} should contain {channels} elements not {v.size}")
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
        if any(ctx.needs):
            ctx.save(x=x, mean=mean, rstd=rstd)
            if weight is not None and ctx.needs[0]:
                ctx.save(weight=weight)
        ctx.kernels.batch_norm(x3, mean, rstd, weight, bias, lines, out=out.reshape(ctx.shape))
        return out

    @staticmethod
    def backward(ctx, gy):
        x, mean, rstd = ctx.take("x"), ctx.take("mean"), ctx.take("rstd")
        weight = ctx.take("weight") if "weight" in ctx.saved else None
        n, channels, _ = ctx.shape
        contiguous = ctx.contiguous(gy)
        gx = None
        if ctx.needs[0]:
            gx = contiguous if ctx.owns_grad or contiguous is not gy else ctx.empty(gy.shape, gy.dtype)
        partial, sums = ctx.empty((2, n, channels), mean.dtype), ctx.empty((2, channels), mean.dtype)
        x3, lines = ctx.contiguous(x).reshape(ctx.shape), ctx.empty((3, channels), mean.dtype)
        ctx.kernels.batch_norm_backward(
            contiguous.reshape(ctx.shape),
            x3,
            mean,
            rstd,
            weight,
            ctx.training,
            partial,
            lines,
            sums,
            out=None if gx is None else gx.reshape(ctx.shape),
        )
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
        ctx.layout, ctx.affine, ctx.centre = layout, affine, centre
        ctx.parameter_shapes = [None if p is None else p.shape for p in (weight, bias)]
        wide = arithmetic(x.dtype)
        mean = ctx.empty(layout[:2], wide) if centre else None
        rstd = ctx.empty(layout[:2], wide)
        out = ctx.output(x.shape, x.dtype)
        w = None if weight is None else ctx.contiguous(weight).reshape(affine)
        b = None if bias is None else ctx.contiguous(bias).reshape(affine)
        ctx.kernels.sample_norm(ctx.contiguous(x).reshape(layout), w, b, eps, centre, mean, rstd, out=out.reshape(layout))
        if any(ctx.needs):
            ctx.save(x=x, rstd=rstd)
            if centre:
                ctx.save(mean=mean)
            if weight is not None and ctx.needs[0]:
                ctx.save(weight=weight)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, rstd = ctx.take("x"), ctx.take("rstd")
        mean = ctx.take("mean") if ctx.centre else None
        weight = ctx.contiguous(ctx.take("weight")).reshape(ctx.affine) if "weight" in ctx.saved else None
        gy = ctx.contiguous(gy)
        gw = ctx.empty((1, *ctx.affine), rstd.dtype) if ctx.needs[1] else None
        gb = ctx.empty((1, *ctx.affine), rstd.dtype) if ctx.needs[2] else None
        gx = ctx.grad_buffer(gy) if ctx.needs[0] else None
        stat = ctx.empty((2, *ctx.layout[:2]), rstd.dtype)
        ctx.kernels.sample_norm_backward(
            gy.reshape(ctx.layout),
            ctx.contiguous(x).reshape(ctx.layout),
            mean,
            rstd,
            weight,
            stat,
            gw,
            gb,
            out=None if gx is None else gx.reshape(ctx.layout),
        )
        shapes = ctx.parameter_shapes
        return gx, None if gw is None else gw.reshape(shapes[0]), None if gb is None else gb.reshape(shapes[1])
