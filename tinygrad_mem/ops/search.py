"""Looking values up in sorted lines, and counting them by intervals. No gradients."""

from __future__ import annotations

from .base import Op


class SearchSorted(Op):
    """How many of a sorted line (the last axis) are before each value. No gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, sequence, values, *, right, dtype):
        out = ctx.empty(values.shape, dtype)
        sequence, values = ctx.contiguous(sequence), ctx.contiguous(values)
        ctx.kernels.search_sorted(sequence, values, right, out=out)
        return out


class Histogram(Op):
    """How many elements lie in each of ``bins`` equal intervals, in x's dtype. No gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, bins, low, high):
        bounds, out = ctx.empty((2,), x.dtype), ctx.zeros((bins,), x.dtype)
        x = ctx.contiguous(x)
        ctx.kernels.histogram_bounds(x, low, high, out=bounds)
        ctx.kernels.histogram(x, bounds, out=out)
        return out
