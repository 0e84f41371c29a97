"""Numbers in 8, 4 or 2 bits, and back."""

from __future__ import annotations

from ..dtypes import arithmetic, uint8
from .base import Op


class Quantize(Op):
    """x in ``bits`` of each element: codes, and of each ``group`` of neighbours the smallest value and the step. Saves nothing.

    The results take ``x.size * bits / 8`` bytes and twice ``max(4, x.itemsize)`` bytes per group. Rounding goes up or down by
    chance (of the ticket), so that each value is right on average; it is wrong by less than a step: its group's range over
    ``2**bits - 1``.
    """

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, bits, group, ticket):
        wide = arithmetic(x.dtype)
        codes = ctx.empty((-(-x.size * bits // 8),), uint8)
        scales = ctx.empty((-(-x.size // group), 2), wide)  # rounded up
        ctx.kernels.quantize(ctx.contiguous(x).reshape(-1), ticket, bits, codes, scales, group)
        return codes, scales


class Dequantize(Op):
    """The values of :class:`Quantize`'s results, in ``shape`` and ``dtype``. Saves nothing."""

    differentiable = False

    @staticmethod
    def forward(ctx, codes, scales, *, bits, group, shape, dtype):
        out = ctx.empty(shape, dtype)
        codes, scales = ctx.contiguous(codes), ctx.contiguous(scales)
        ctx.kernels.dequantize(codes, scales, bits, group, out=out.reshape(-1))
        return out
