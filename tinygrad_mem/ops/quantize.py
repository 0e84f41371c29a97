"""Numbers in 8, 4 or 2 bits, and back."""

from ..dtypes import arithmetic, float32, is_floating, uint8
from ..errors import DTypeError
from ..kernels.code_tables import TABLES
from .base import Op, want_floating
from .linalg import bias_gradient, input_gradient, linear_forward, matrix


class Quantize(Op):
    """x in ``bits`` of each element: codes, and of each ``group`` of neighbours the smallest value and the step. Saves nothing.

    The results take ``x.size * bits / 8`` bytes and twice ``max(4, x.itemsize)`` bytes per group. Rounding goes up or down by
    chance (of the ticket), so that each value is right on average; it is wrong by less than a step: its group's range over
    ``2**bits - 1``.
    """

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, bits, group, ticket):
        want_floating("quantize", x)
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


class QuantizeBlocks(Op):
    """x as codes of a table, and the largest absolute value of each block of its numbers in C order. Saves nothing.

    The results take ``-(-x.size * bits // 8)`` bytes, uint8, and 4 bytes per block, float32.
    """

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, table, block):
        want_floating("quantize_blocks", x)
        codes = ctx.empty((-(-x.size * TABLES[table].bits // 8),), uint8)
        absmax = ctx.empty((-(-x.size // block),), float32)
        ctx.kernels.quantize_blocks(ctx.contiguous(x).reshape(-1), table, block, codes, absmax)
        return codes, absmax


class DequantizeBlocks(Op):
    """The numbers of :class:`QuantizeBlocks`'s results, in ``shape`` and ``dtype``. Saves nothing.

    With double quantization ``absmax`` is codes, ``nested`` has their scales and ``offset`` their mean; else both are ``None``.
    """

    differentiable = False

    @staticmethod
    def forward(ctx, codes, absmax, nested, offset, *, table, block, shape, dtype):
        return _numbers(ctx, (codes, absmax, nested, offset), table, block, shape, dtype)


def _numbers(ctx, quantized, table, block, shape, dtype):
    """A new array with the numbers of codes."""
    if not is_floating(dtype):
        raise DTypeError(f"dequantized numbers have a floating dtype, found {dtype}: pass a floating dtype or a floating input")
    out = ctx.empty(shape, dtype)
    ctx.kernels.dequantize_blocks(*map(ctx.contiguous, quantized), table, block, out=out.reshape(-1))
    return out


class QuantizedLinear(Op):
    """x @ weight.T + bias, where weight is codes. It exists in x's dtype while the product runs, and again in backward.

    The gradients are gy @ weight, and the sum of gy over all rows; the weight has none, so x is not kept. The weight's codes
    are references to the layer's own arrays: no new memory.

    Saves codes if x needs a gradient, absmax if x does, nested if x does, and offset if x does.
    """

    saves = ("codes", "absmax", "nested", "offset")

    @staticmethod
    def forward(ctx, x, codes, bias, absmax, nested, offset, *, table, block, shape):
        ctx.how = {"table": table, "block": block, "shape": shape}
        quantized = codes, absmax, nested, offset
        if ctx.needs[0]:
            ctx.save(**dict(zip(QuantizedLinear.saves, quantized, strict=True)))
        return linear_forward(ctx, x, _numbers(ctx, quantized, **ctx.how, dtype=x.dtype), bias)

    @staticmethod
    def backward(ctx, gy):
        rows = matrix(ctx, gy)
        gx = gb = None
        if ctx.needs[2]:
            gb = bias_gradient(ctx, rows)
        if ctx.needs[0]:
            quantized = [ctx.take(name) for name in QuantizedLinear.saves]
            gx = input_gradient(ctx, rows, _numbers(ctx, quantized, **ctx.how, dtype=gy.dtype))
        return gx, None, gb, None, None, None
