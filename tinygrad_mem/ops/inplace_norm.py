"""Batch norm and leaky ReLU as one op that saves only its output, not its input."""

from ..dtypes import arithmetic
from .base import Op
from .norm import channels_apart


class InPlaceABN(Op):
    """Batch norm and leaky ReLU (slope above 0), both invertible: backward finds the normalised values again from y.

    Saves y, weight if given, bias if given, and rstd (``x.shape[1] * max(4, x.itemsize)`` bytes): one array of x's size, which
    the next layer saves too; batch norm and an activation save two. The weight's absolute value is taken for eps where it is
    smaller, since a 0 could not be inverted; its gradient is that of the value taken.

    Source: Rota Bulo et al., *In-place activated batch norm for memory-optimized training of DNNs*, CVPR 2018.
    """

    saves = ("y", "weight", "bias", "rstd")

    @staticmethod
    def forward(ctx, x, weight, bias, *, running_mean, running_var, training, momentum, eps, slope):
        n, channels, _ = ctx.shape = channels_apart("inplace_abn", x, weight, bias, running_mean, running_var)
        wide = arithmetic(x.dtype)
        ctx.options = slope, training, eps
        mean, rstd = ctx.empty((channels,), wide), ctx.empty((channels,), wide)
        scale = None if weight is None else ctx.empty((channels,), wide)
        lines = ctx.empty((2, channels), wide)
        partial = ctx.empty((2, max(n, 1) if training else 0, channels), wide)
        y, x3 = ctx.output_like(x), ctx.contiguous(x).reshape(ctx.shape)
        flat = y if y.flags.c_contiguous else ctx.empty(y.shape, y.dtype)
        if weight is not None:
            ctx.kernels.bounded_scale(weight, eps, out=scale)
        if training:
            ctx.kernels.batch_statistics(x3, eps, momentum, running_mean, running_var, partial[:, :n], mean, rstd)
        else:
            ctx.kernels.given_statistics(running_mean, running_var, eps, mean, rstd)
        ctx.kernels.batch_norm(x3, mean, rstd, scale, bias, lines, out=flat.reshape(ctx.shape))
        ctx.kernels.leaky_relu(flat, slope, out=flat)
        if flat is not y:
            ctx.kernels.copy(flat, out=y)
        ctx.save(y=y, rstd=rstd, weight=weight, bias=bias)
        return y

    @staticmethod
    def backward(ctx, gy):
        y, rstd, weight, bias = (ctx.take(name) for name in ("y", "rstd", "weight", "bias"))
        slope, training, eps = ctx.options
        n, channels, _ = ctx.shape
        gz = ctx.contiguous(gy)
        gz = gz if ctx.owns_grad or gz is not gy else ctx.empty(gy.shape, gy.dtype)
        partial, sums = ctx.empty((2, n, channels), rstd.dtype), ctx.empty((2, channels), rstd.dtype)
        scale = None if weight is None else ctx.empty((channels,), rstd.dtype)
        work = ctx.empty((3, channels), rstd.dtype)
        y = ctx.contiguous(y)
        ctx.kernels.leaky_relu_backward(gy, y, slope, out=gz)
        if weight is not None:
            ctx.kernels.bounded_scale(weight, eps, out=scale)
        gx = gz.reshape(ctx.shape) if ctx.needs[0] else None
        ctx.kernels.inplace_norm_backward(
            gz.reshape(ctx.shape), y.reshape(ctx.shape), scale, bias, rstd, slope, training, partial, work, sums, out=gx
        )
        return gz if ctx.needs[0] else None, sums[1] if ctx.needs[1] else None, sums[0] if ctx.needs[2] else None
