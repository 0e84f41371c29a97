"""Dropout by counter."""

from __future__ import annotations

from .base import Op


class Dropout(Op):
    """Zeros with probability p, the rest scaled by 1 / (1 - p). Saves no array: the ticket (two numbers) gives the mask again.

    Source: Srivastava et al., *Dropout*, 2014; the counter-based mask: Salmon et al., SC 2011.
    """

    @staticmethod
    def forward(ctx, x, *, p, ticket):
        y = ctx.output_like(x)
        ctx.p, ctx.ticket = p, ticket
        _masked(ctx, x, y)
        return y

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.grad_buffer(gy)
        _masked(ctx, gy, gx)
        return gx


def _masked(ctx, x, out):
    """The kernel wants contiguous arrays; others go through a buffer."""
    source = ctx.contiguous(x)
    target = out if out.flags.c_contiguous else ctx.empty(out.shape, out.dtype)
    ctx.kernels.dropout(ctx.ticket, ctx.p, source, out=target)
    if target is not out:
        ctx.kernels.copy(target, out=out)
