"""Comparison, logic and bits: bools and integers, which have no gradient."""

from .. import dtypes
from ..dtypes import is_floating
from ..errors import DTypeError
from .base import Op, broadcast, want_numbers
from .elementwise import alike, binary_output, not_bool


class Compare(Op):
    """A comparison or a logical op, by the kernel's name: bool, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        want_numbers(kernel, **{which: z for which, z in (("input", x), ("other", y)) if not hasattr(z, "dtype")})
        shape = broadcast(kernel, *[z.shape for z in (x, y) if hasattr(z, "shape")])
        out = ctx.output(shape, dtypes.bool)
        getattr(ctx.kernels, kernel)(*alike(ctx, x, y), out=out)
        return out


class Classify(Op):
    """isnan, isinf, isfinite or logical_not, by the kernel's name: bool, no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, kernel):
        out = ctx.output(x.shape, dtypes.bool)
        getattr(ctx.kernels, kernel)(x, out=out)
        return out


class Bitwise(Op):
    """and, or, xor and shifts of integers and bools, by the kernel's name: no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, y, *, kernel):
        for z in (x, y):
            if is_floating(getattr(z, "dtype", dtypes.int64)) or isinstance(z, float):
                raise DTypeError(f"{kernel}: expected integers or bools, found {getattr(z, 'dtype', type(z).__name__)}")
        out = binary_output(ctx, kernel, x, y)
        if "shift" in kernel:
            not_bool(kernel, out)
        getattr(ctx.kernels, kernel)(*alike(ctx, x, y), out=out)
        return out


class BitwiseNot(Op):
    """~x of integers and bools: no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x):
        if is_floating(x.dtype):
            raise DTypeError(f"bitwise_not: expected integers or bools, found {x.dtype}")
        out = ctx.output_like(x)
        ctx.kernels.bitwise_not(x, out=out)
        return out
