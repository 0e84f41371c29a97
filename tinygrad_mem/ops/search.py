"""Looking values up in sorted lines, and counting them by intervals. No gradients."""

from ..dtypes import arithmetic
from .base import Op


class SearchSorted(Op):
    """The number of elements of a sorted line (the last axis) before each value. No gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, sequence, values, *, right, dtype):
        out = ctx.empty(values.shape, dtype)
        sequence, values = ctx.contiguous(sequence), ctx.contiguous(values)
        ctx.kernels.search_sorted(sequence, values, right, out=out)
        return out


class Histogram(Op):
    """The number of elements in each of ``bins`` equal intervals, in x's dtype; of halves counted in float32. No gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, bins, low, high):
        dtype, wide = x.dtype, arithmetic(x.dtype)  # a half that is 2,048 does not grow by 1
        x = ctx.cast(x, wide)
        bounds, counts = ctx.empty((2,), wide), ctx.zeros((bins,), wide)
        ctx.kernels.histogram_bounds(x, low, high, out=bounds)
        ctx.kernels.histogram(x, ctx.cast(ctx.cast(bounds, dtype), wide), out=counts)  # bounds in x's dtype, as PyTorch's
        return ctx.cast(counts, dtype)
