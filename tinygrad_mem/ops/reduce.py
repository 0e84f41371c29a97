"""Reductions. ``axes`` is a tuple of axes counted from the front; kernels keep reduced axes, ops drop them unless asked."""

import math

from .. import dtypes
from ..dtypes import is_floating, is_half
from ..errors import DTypeError, ShapeError
from .base import Op
from .sort import Ranks, along, line_shape


def kept_shape(shape, axes):
    """``shape`` with the reduced axes of size 1."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def reduced_output(ctx, x, axes, keepdim, dtype):
    """The output, and the view of it that keeps the reduced axes."""
    kept = kept_shape(x.shape, axes)
    out = ctx.output(kept if keepdim else tuple(n for i, n in enumerate(x.shape) if i not in axes), dtype)
    return out, out.reshape(kept)


def _kept(ctx, gy):
    """gy, x and y (gy where it was not saved), the reduced axes kept, and a buffer for the gradient of x."""
    x, y = ctx.take("x"), ctx.take("y")
    kept = kept_shape(x.shape, ctx.axes)
    return gy.reshape(kept), x, (gy if y is None else y).reshape(kept), ctx.empty_like(x)


def refuse_empty(name, x, axes):
    """Some reductions have no value over nothing."""
    if any(x.shape[a] == 0 for a in axes):
        raise ShapeError(f"{name}(): Expected reduction dim to have non-zero size, found shape {list(x.shape)} over {axes}")


class Sum(Op):
    """Sum over axes, integers and bools in int64. Saves nothing; the gradient is a view of gy, which takes no memory."""

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, dtype=None):
        dtype = dtype or (x.dtype if is_floating(x.dtype) else dtypes.int64)
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
        if not is_floating(dtype or x.dtype):
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
    """Product over axes; the gradient is gy * y / x, and what the other factors give where x is 0. Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, dtype=None):
        out, kept = reduced_output(ctx, x, axes, keepdim, dtype or (x.dtype if is_floating(x.dtype) else dtypes.int64))
        ctx.axes = axes
        ctx.kernels.prod(x, axes, out=kept)
        ctx.save(x=x, y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gy, x, y, gx = _kept(ctx, gy)
        ctx.kernels.prod_backward(gy, x, y, ctx.axes, out=gx)
        return gx


class Var(Op):
    """The variance over axes, the divisor being the count less ``correction``; its root if asked; with the mean if asked.

    Saves x, mean (``y.nbytes`` bytes), and y if ``root``.
    """

    saves = ("x", "mean", "y")
    outputs = ("mean", "y")

    @staticmethod
    def forward(ctx, x, *, axes, correction, keepdim, root=False, with_mean=False):
        if not is_floating(x.dtype):
            raise DTypeError(f"std and var only support floating point dtypes, found {x.dtype}; convert it with .float()")
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        mean = ctx.empty(out.shape, x.dtype)
        kept_mean = mean.reshape(kept.shape)
        middle = finer(ctx, kept_mean)  # differences from a rounded mean would add its error to the variance
        count = math.prod(x.shape[a] for a in axes)
        divisor = max(count - correction, 0)
        ctx.kernels.mean(x, axes, out=middle)
        if middle is not kept_mean:
            ctx.kernels.copy(middle, out=kept_mean)
        wide = finer(ctx, kept)
        ctx.kernels.variance(x, middle, axes, 1.0 / divisor if divisor else math.inf if count else math.nan, out=wide)
        if root:
            ctx.kernels.sqrt(wide, out=kept)
        elif wide is not kept:
            ctx.kernels.copy(wide, out=kept)
        ctx.axes, ctx.count, ctx.freedom = axes, count, count - correction
        ctx.save(x=x, mean=mean, y=out if root else None)
        return (out, mean) if with_mean else out

    @staticmethod
    def backward(ctx, gy, gmean=None):
        x = ctx.take("x")
        kept = kept_shape(x.shape, ctx.axes)
        mean, y, gy, gmean = [None if g is None else g.reshape(kept) for g in (ctx.take("mean"), ctx.take("y"), gy, gmean)]
        gx = ctx.empty_like(x)
        factor = 2.0 / ctx.freedom if ctx.freedom else math.inf
        ctx.kernels.variance_backward(gy, gmean, x, mean, y, factor, 1.0 / max(ctx.count, 1), out=gx)
        return gx


def wider(ctx, kept):
    """The array for partial sums: ``kept`` itself, or a float32 buffer in place of float16."""
    return ctx.empty(kept.shape, dtypes.float32) if is_half(kept.dtype) else kept


def finer(ctx, kept):
    """The array for sums that rounding must not reach: ``kept``, or one of float64 for float32 and of float32 for halves."""
    wide = dtypes.float32 if is_half(kept.dtype) else dtypes.float64
    return kept if kept.dtype == wide else ctx.empty(kept.shape, wide)


class Extremum(Op):
    """amax or amin, by the kernel's name. Saves x and y; equal elements share the gradient evenly.

    Where y is nan, the gradient is nan; or all nan share it, if ``nans``: amax and max differ there, as in PyTorch.
    """

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, kernel, nans=False):
        refuse_empty(kernel, x, axes)
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        ctx.axes, ctx.nans = axes, nans
        getattr(ctx.kernels, kernel)(x, axes, out=kept)
        ctx.save(x=x, y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gy, x, y, gx = _kept(ctx, gy)
        ctx.kernels.extremum_share(gy, x, y, ctx.axes, ctx.nans, ctx.empty(y.shape, x.dtype), out=gx)
        return gx


class ExtremumAlong(Ranks):
    """(values, indices) of the first largest or smallest along one axis. Saves the index: 8 bytes each."""

    @staticmethod
    def forward(ctx, x, *, axis, keepdim, low):
        ctx.shape, ctx.axis, ctx.count = x.shape, axis, 1
        if x.ndim:
            refuse_empty("min" if low else "max", x, (axis,))
        shape = line_shape(x.shape, axis, 1, keepdim)
        values, index = ctx.empty(shape, x.dtype), ctx.empty(shape, dtypes.int64)
        x, axis = along(x, axis)
        first_extremum(ctx, x, axis, low, index.reshape(line_shape(x.shape, axis, 1, False)))
        kept = values.reshape(line_shape(x.shape, axis, 1, True))
        (ctx.kernels.amin if low else ctx.kernels.amax)(x, (axis,), out=kept)
        ctx.save(index=index)
        return values, index


def first_extremum(ctx, x, axis, low, out):
    """out = the int64 index of the first largest or smallest along ``axis``, with the kernel's workspace."""
    work = ctx.workspace(ctx.kernels.arg_workspace(x.shape, axis, x.dtype))
    (ctx.kernels.argmin if low else ctx.kernels.argmax)(x, axis, work, out=out)


class ArgExtremum(Op):
    """argmax or argmin along one axis: int64, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axis, keepdim, low):
        if x.ndim:
            refuse_empty("argmin" if low else "argmax", x, (axis,))
        out = ctx.empty(line_shape(x.shape, axis, 1, keepdim), dtypes.int64)
        x, axis = along(x, axis)
        first_extremum(ctx, x, axis, low, out.reshape(line_shape(x.shape, axis, 1, False)))
        return out


class CountNonzero(Op):
    """The number of elements over axes that are not 0: int64, no gradient, and no mask is made."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axes):
        out, kept = reduced_output(ctx, x, axes, False, dtypes.int64)
        ctx.kernels.count_nonzero(x, axes, out=kept)
        return out


class Truth(Op):
    """all or any, by the kernel's name: bool (uint8 of uint8), no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axes, keepdim, kernel):
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype if x.dtype == dtypes.uint8 else dtypes.bool)
        getattr(ctx.kernels, kernel)(x, axes, out=kept)
        return out


class LogSumExp(Op):
    """ln of the sum of e**x over axes; the gradient is gy * e**(x - y). Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, keepdim):
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype if is_floating(x.dtype) else dtypes.get_default_dtype())
        ctx.axes = axes
        wide = wider(ctx, kept)
        if x.size == 0:
            ctx.kernels.fill(-math.inf, out=kept)
        else:
            ctx.kernels.logsumexp(x, axes, ctx.empty(kept.shape, wide.dtype), out=wide)
            if wide is not kept:
                ctx.kernels.copy(wide, out=kept)
        ctx.save(x=x, y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gy, x, y, gx = _kept(ctx, gy)
        ctx.kernels.logsumexp_backward(gy, x, y, out=gx)
        return gx


class Norm(Op):
    """The p-norm over axes, p a number or infinite. Saves x if ``p != 0``, and y if ``p not in (0, 1)``.

    Equal sizes share the gradient of an infinite p; unless ``shared``, each has all of it.
    """

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axes, p, keepdim, shared=True):
        if not is_floating(x.dtype):
            raise DTypeError(f"norm(): the input should be floating, found {x.dtype}; convert it with .float()")
        if math.isinf(p) or p < 0:
            refuse_empty("norm", x, axes)
        out, kept = reduced_output(ctx, x, axes, keepdim, x.dtype)
        ctx.axes, ctx.p, ctx.shared = axes, p, shared
        wide = wider(ctx, kept)
        ctx.kernels.norm(x, axes, p, out=wide)
        if wide is not kept:
            ctx.kernels.copy(wide, out=kept)
        if p != 0:
            ctx.save(x=x, y=out if p != 1 else None)
        return out

    @staticmethod
    def backward(ctx, gy):
        if ctx.p == 0:
            return None
        gy, x, y, gx = _kept(ctx, gy)
        if math.isinf(ctx.p):
            count = ctx.empty(y.shape, x.dtype) if ctx.shared else None
            ctx.kernels.extreme_size_share(gy, x, y, ctx.axes, count, out=gx)
        else:
            ctx.kernels.norm_backward(gy, x, y, ctx.p, out=gx)
        return gx
