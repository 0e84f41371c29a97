"""Random fills, from a ticket."""

from .base import Op


class Draw(Op):
    """Fill the target by a kernel of kernels/*/random.py. Saves nothing; the gradient of what was there is zero."""

    @staticmethod
    def forward(ctx, x, *, kernel, ticket, numbers):
        y = ctx.output_like(x)
        getattr(ctx.kernels, kernel)(ticket, *numbers, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        return ctx.zeros(gy.shape, gy.dtype)
