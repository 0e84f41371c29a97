"""Reductions. ``axes`` is a tuple of axes counted from the front; kernels keep reduced axes, ops drop them unless asked."""

from __future__ import annotations

import math

from .. import dtypes
from ..errors import DTypeError, ShapeError
from .base import Op


def kept_shape(shape, axes):
    """``shape`` with the reduced axes of size 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def reduced_shape(shape, axes, keepdim):
    """``shape`` after the reduction."""
    return kept_shape(shape, axes) if keepdim else tuple(n for i, n in enumerate(shape) if i not in axes)


def reduced_output(ctx, x, axes, keepdim, dtype):
    """The output, and the view of it that keeps the reduced axes."""
    out = ctx.output(reduced_shape(x.shape, axes, keepdim), dtype)
    return out, out.reshape(kept_shape(x.shape, axes))


def refuse_empty(name, x, axes):
    """Some reductions have no value over nothing."""
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"{name}(): Expected reduction dim to have non-zero size, found shape {list(x.shape)} over {axes}")


class Sum(Op):
    """Sum over axes, integers and bools in int64. Saves nothing; the gradient is a broadcast view, which takes no memory."""

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, dtype=None):
        dtype = dtype or (x.dtype if x.dtype.kind == "f" else dtypes.int64)
        out, kept = reduced_output(ctx, x, axes, keepdim, dtype)
        ctx.shape, ctx.axes = x.shape, axes
        ctx.kernels.sum(x, axes, out=kept)
        return out

    @staticmethod
    def backward(ctx, gy):
        return ctx.broadcast(gy.reshape(kept_shape(ctx.shape, ctx.axes)), ctx.shape)


class Mean(Op):
    """Mean over axes. Saves nothing; the gradient is a broadcast view of gy divided by the count."""

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, dtype=None):
        if (dtype or x.dtype).kind != "f":
            raise DTypeError(
                "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
                f"Got: {x.dtype}"
            )
        out, kept = reduced_output(ctx, x, axes, keepdim, dtype or x.dtype)
        ctx.shape, ctx.axes = x.shape, axes
        ctx.kernels.mean(x, axes, out=kept)
        return out

    @staticmethod
    def backward(ctx, gy):
        count = math.prod(ctx.shape[a] for a in ctx.axes)
        g = ctx.grad_buffer(gy)
        ctx.kernels.multiply(gy, 1.0 / count if count else math.nan, out=g)
        return ctx.broadcast(g.reshape(kept_shape(ctx.shape, ctx.axes)), ctx.shape)


class Prod(Op):
    """Product over axes. Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, dtype=None):
        out, kept = reduced_output(ctx, x, axes, keepdim, dtype or (x.dtype if x.dtype.kind == "f" else dtypes.int64))
        ctx.axes = axes
        if ctx.needs[0]:
            ctx.save(x=x)
        ctx.kernels.prod(x, axes, out=kept)
        if ctx.needs[0]:
            ctx.save(y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        kept = kept_shape(x.shape, ctx.axes)
        gx = ctx.empty_like(x)
        ctx.kernels.prod_backward(gy.reshape(kept), x, y.reshape(kept), ctx.axes, out=gx)
        return gx


class Var(Op):
    """Variance over axes, the divisor being the count less ``correction``. Saves x and the mean, of the kept shape."""

    saves = ("x", "mean")
    outputs = ()

    @staticmethod
    def forward(ctx, x, *, axes, correction, keepdim):
        if x.dtype.kind != "f":
            raise DTypeError(f"std and var only support floating point dtypes, found {x.dtype}")
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        count = math.prod(x.shape[a] for a in axes)
        mean = ctx.empty(kept.shape, x.dtype)
        ctx.kernels.mean(x, axes, out=mean)
        work = ctx.empty_like(x)
        ctx.kernels.deviation_squares(x, mean, axes, work, out=kept)
        ctx.divisor = max(count - correction, 0)
        ctx.kernels.divide(kept, float(ctx.divisor), out=kept)
        ctx.kept = kept.shape
        if ctx.needs[0]:
            ctx.save(x=x, mean=mean)
        return out

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        gx = ctx.empty_like(x)
        factor = 2.0 / ctx.divisor if ctx.divisor else math.nan
        ctx.kernels.var_backward(gy.reshape(ctx.kept), x, ctx.take("mean"), factor, out=gx)
        return gx


class Extremum(Op):
    """amax or amin, by the kernel's name. Saves x and y; equal elements share the gradient evenly."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, kernel):
        refuse_empty(kernel, x, axes)
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        ctx.axes = axes
        if ctx.needs[0]:
            ctx.save(x=x)
        getattr(ctx.kernels, kernel)(x, axes, out=kept)
        if ctx.needs[0]:
            ctx.save(y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        kept = kept_shape(x.shape, ctx.axes)
        gx, count = ctx.empty_like(x), ctx.empty(kept, x.dtype)
        ctx.kernels.extremum_share(gy.reshape(kept), x, y.reshape(kept), ctx.axes, count, out=gx)
        return gx


class ArgExtremum(Op):
    """argmax or argmin along one axis, by the kernel's name: int64, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axis, keepdim, kernel):
        if x.ndim:
            refuse_empty(kernel, x, (axis,))
        out = ctx.empty(reduced_shape(x.shape, (axis,), keepdim), dtypes.int64)
        if x.ndim == 0:
            ctx.kernels.fill(0, out=out)
        else:
            getattr(ctx.kernels, kernel)(x, axis, out=out.reshape(reduced_shape(x.shape, (axis,), False)))
        return out


class Truth(Op):
    """all or any, by the kernel's name: bool, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, kernel):
        out, kept = reduced_output(ctx, x, axes, keepdim, dtypes.bool)
        getattr(ctx.kernels, kernel)(x, axes, out=kept)
        return out


class LogSumExp(Op):
    """ln of the sum of e**x over axes. Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim):
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype if x.dtype.kind == "f" else dtypes.get_default_dtype())
        ctx.axes = axes
        if ctx.needs[0]:
            ctx.save(x=x)
        ctx.kernels.logsumexp(x, axes, ctx.empty(kept.shape, kept.dtype), out=kept)
        if ctx.needs[0]:
            ctx.save(y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        kept = kept_shape(x.shape, ctx.axes)
        gx = ctx.empty_like(x)
        ctx.kernels.logsumexp_backward(gy.reshape(kept), x, y.reshape(kept), out=gx)
        return gx


class Norm(Op):
    """The Euclidean norm over axes. Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim):
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        ctx.axes = axes
        if ctx.needs[0]:
            ctx.save(x=x)
        if len(axes) == x.ndim:
            ctx.kernels.sum_squares(x, out=kept)
        else:
            work = ctx.empty_like(x)
            ctx.kernels.square(x, out=work)
            ctx.kernels.sum(work, axes, out=kept)
        ctx.kernels.sqrt(kept, out=kept)
        if ctx.needs[0]:
            ctx.save(y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        kept = kept_shape(x.shape, ctx.axes)
        gx = ctx.empty_like(x)
        ctx.kernels.norm_backward(gy.reshape(kept), x, y.reshape(kept), out=gx)
        return gx
