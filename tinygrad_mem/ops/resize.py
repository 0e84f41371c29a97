"""Resampling by tables: which inputs an output is made of, axis by axis."""

from .base import Op, want_floating


class Resize(Op):
    """(planes, *sizes) to ``outs``: each output is a sum of a few inputs, in proportions; the tables are inputs.

    Saves back and shares: for each axis, which outputs an input went to, and its shares of them.
    """

    saves = ("back", "shares")

    @staticmethod
    def forward(ctx, x, places, weights, back, shares, *, outs, taps, back_taps, plain):
        if not plain:
            want_floating("interpolate", x)
        x = ctx.contiguous(x)
        out = ctx.empty((x.shape[0], *outs), x.dtype)
        ctx.shape, ctx.taps = x.shape, back_taps
        _run(ctx, x, places, weights, taps, plain, out)
        ctx.save(back=back, shares=shares)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.empty(ctx.shape, gy.dtype)
        _run(ctx, ctx.contiguous(gy), ctx.take("back"), ctx.take("shares"), ctx.taps, False, gx)
        return gx, None, None, None, None


def _run(ctx, x, places, weights, taps, plain, out):
    work = ctx.workspace(ctx.kernels.resize_workspace(x.shape, out.shape[1:], taps, plain, x.dtype))
    ctx.kernels.resize(x, places, weights, taps, plain, work, out=out)
