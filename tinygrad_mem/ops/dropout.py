"""Dropout by counter."""

from .base import Op


class Dropout(Op):
    """Each cell of ``length`` neighbours is replaced by ``dropped`` with probability p; the rest is kept[0] * x + kept[1].

    Saves nothing: the ticket (two numbers) gives the mask again.

    Source: Srivastava et al., *Dropout*, 2014; Klambauer et al., *Self-normalizing neural networks*, 2017 (alpha dropout);
    the counter-based mask: Salmon et al., SC 2011.
    """

    @staticmethod
    def forward(ctx, x, *, p, kept, dropped, length, ticket):
        y = ctx.output_like(x)
        ctx.p, ctx.scale, ctx.length, ctx.ticket = p, kept[0], length, ticket
        _masked(ctx, kept, dropped, x, y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        _masked(ctx, (ctx.scale, 0.0), 0.0, gy, gx)
        return gx


def _masked(ctx, kept, dropped, x, out):
    """The kernel takes contiguous arrays; others are copied to a buffer."""
    source = ctx.contiguous(x)
    target = out if out.flags.c_contiguous else ctx.empty(out.shape, out.dtype)
    shape = (x.size // ctx.length, ctx.length)
    ctx.kernels.dropout(ctx.ticket, ctx.p, kept, dropped, source.reshape(shape), out=target.reshape(shape))
    if target is not out:
        ctx.kernels.copy(target, out=out)
