"""Elements kept, bounded or replaced: by a condition, a mask, or their own value."""

from .. import dtypes
from ..dtypes import is_floating, result_type
from ..errors import DTypeError
from .base import Op, broadcast, refuse_bools
from .unary import Flat


class Clamp(Op):
    """x within [low, high], numbers or None; the gradient is gy where x is inside, else 0. Saves x."""

    saves = ("x",)

    @staticmethod
    def forward(ctx, x, *, low, high):
        low, high = dtypes.plain(low), dtypes.plain(high)
        bounds = [b for b in (low, high) if b is not None]
        y = ctx.output(x.shape, result_type(x, *bounds))
        refuse_bools("clamp", y)
        for bound in bounds if is_floating(y.dtype) else ():
            dtypes.fitting(bound, y.dtype)
        dtypes.want_held(y.dtype, *bounds)
        ctx.save(x=x)
        ctx.low, ctx.high = dtypes.rounded(low, y.dtype), dtypes.rounded(high, y.dtype)
        ctx.kernels.clamp(x, low, high, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        ctx.kernels.clamp_backward(gy, ctx.take("x"), ctx.low, ctx.high, out=gx)
        return gx


class Where(Op):
    """x where condition, else y; each gets gy where it was taken, else 0. Saves the condition: one byte per element."""

    saves = ("condition",)

    @staticmethod
    def forward(ctx, condition, x, y):
        if condition.dtype != dtypes.bool:
            raise DTypeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {condition.dtype}")
        shape = broadcast("where", *[z.shape for z in (condition, x, y) if hasattr(z, "shape")])
        out = ctx.output(shape, result_type(x, y))
        dtypes.want_held(out.dtype, x, y)
        ctx.save(condition=condition)
        ctx.kernels.where(condition, x, y, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        condition = ctx.take("condition")
        gx = gz = None
        if ctx.needs[1]:
            gx = ctx.zeros(gy.shape, gy.dtype)
            ctx.kernels.masked_copy(gy, condition, out=gx)
        if ctx.needs[2]:
            gz = ctx.grad_copy(gy)
            ctx.kernels.masked_fill(0, condition, out=gz)
        return None, gx, gz


class MaskedFill(Op):
    """x with ``value`` where mask; the gradient is gy, 0 where mask. Saves the mask: one byte per element."""

    saves = ("mask",)

    @staticmethod
    def forward(ctx, x, mask, *, value):
        if mask.dtype != dtypes.bool:
            raise DTypeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {mask.dtype}")
        value = dtypes.fitting(value, x.dtype)
        y = ctx.output(broadcast("masked_fill", x.shape, mask.shape), x.dtype)
        ctx.save(mask=mask)
        if y is not x:
            ctx.kernels.copy(x, out=y)
        ctx.kernels.masked_fill(value, mask, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_copy(gy)
        ctx.kernels.masked_fill(0, ctx.take("mask"), out=gx)
        return gx, None


class NanToNum(Op):
    """x with nan and infinities replaced. Saves x."""

    saves = ("x",)

    @staticmethod
    def forward(ctx, x, *, nan, high, low):
        y = ctx.output_like(x)
        ctx.save(x=x)
        ctx.kernels.nan_to_num(x, nan, high, low, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        x = ctx.take("x")
        finite = ctx.empty(x.shape, dtypes.bool)
        ctx.kernels.isfinite(x, out=finite)
        gx = ctx.zeros(gy.shape, gy.dtype)
        ctx.kernels.masked_copy(gy, finite, out=gx)
        return gx


class Fill(Flat):
    """Every element becomes ``value``. Saves nothing."""

    same_everywhere = True

    @staticmethod
    def forward(ctx, x, *, value):
        value = dtypes.fitting(value, x.dtype)
        y = ctx.output_like(x)
        ctx.kernels.fill(value, out=y)
        return y
