"""Running sums, products and extrema along one axis."""

from .. import dtypes
from ..dtypes import is_floating
from .base import Op
from .sort import along


class CumSum(Op):
    """Running sums along ``axis``, integers and bools in int64; the gradient is the running sum from the end. Saves nothing."""

    @staticmethod
    def forward(ctx, x, *, axis, dtype=None):
        out = ctx.output(x.shape, dtype or (x.dtype if is_floating(x.dtype) else dtypes.int64))
        ctx.axis = axis
        line, axis = along(x, axis)
        ctx.kernels.cumsum(line, axis, False, out=out.reshape(line.shape))
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty_like(gy)
        line, axis = along(gy, ctx.axis)
        ctx.kernels.cumsum(line, axis, True, out=gx.reshape(line.shape))
        return gx


class CumProd(Op):
    """Running products along ``axis``, integers and bools in int64. Saves x and y."""

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x, *, axis, dtype=None):
        out = ctx.empty(x.shape, dtype or (x.dtype if is_floating(x.dtype) else dtypes.int64))
        ctx.axis = axis
        line, axis = along(x, axis)
        ctx.kernels.cumprod(line, axis, out=out.reshape(line.shape))
        ctx.save(x=x, y=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        x, y = along(ctx.take("x"), 0)[0], along(ctx.take("y"), 0)[0]
        if y.shape[ctx.axis] == 1:  # each product is its factor, which may be inf
            return gy
        gx = ctx.empty_like(gy)
        line, axis = along(gy, ctx.axis)
        ctx.kernels.cumprod_backward(line, x, y, axis, ctx.empty_like(line), out=gx.reshape(line.shape))
        return gx


class CumExtremum(Op):
    """The running largest (or smallest) along ``axis``, and where it was seen last. Saves the index: 8 bytes each."""

    saves = ("index",)
    outputs = ("index",)

    @staticmethod
    def forward(ctx, x, *, axis, largest):
        out, index = ctx.empty_like(x), ctx.empty(x.shape, dtypes.int64)
        ctx.axis = axis
        line, axis = along(x, axis)
        ctx.kernels.cumulative_extremum(line, axis, largest, out.reshape(line.shape), index.reshape(line.shape))
        ctx.save(index=index)
        return out, index

    @staticmethod
    def backward(ctx, gy, _):
        if gy is None:
            return None
        gx = ctx.zeros(gy.shape, gy.dtype)
        line, axis = along(ctx.contiguous(gy), ctx.axis)
        ctx.kernels.add_along(line, axis, ctx.take("index").reshape(line.shape), out=gx.reshape(line.shape))
        return gx
