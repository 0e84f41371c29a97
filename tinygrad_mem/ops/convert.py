"""Copies and casts."""

from ..devices import device
from ..errors import ShapeError
from .base import Op


class Clone(Op):
    """A contiguous copy. Saves nothing."""

    @staticmethod
    def forward(ctx, x):
        return ctx.copy(x)

    @staticmethod
    def backward(ctx, gy):
        return gy


class Cast(Op):
    """A copy in another dtype. Saves nothing; the engine casts the gradient back."""

    @staticmethod
    def forward(ctx, x, *, dtype):
        return ctx.copy(x, dtype)

    @staticmethod
    def backward(ctx, gy):
        return gy


class Copy(Op):
    """The second input, broadcast and cast to the first, which it replaces. Saves nothing."""

    @staticmethod
    def forward(ctx, x, source):
        try:
            source = ctx.broadcast(source, x.shape)
        except ValueError:
            raise ShapeError(
                f"copy_: output with shape {list(x.shape)} doesn't match the broadcast shape of source {list(source.shape)}"
            ) from None
        y = ctx.target if ctx.target is not None else ctx.empty_like(x)
        ctx.kernels.copy(source, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        zeros = ctx.zeros(gy.shape, gy.dtype) if ctx.needs[0] else None
        return zeros, gy if ctx.needs[1] else None


class Upload(Op):
    """The target filled with values from the host, of its shape and dtype; ``meta`` takes none. No gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, values):
        y = ctx.output_like(x)
        ctx.device.upload(values, y)
        return y


class Transfer(Op):
    """A copy on another device, through the host where neither is the host. Saves nothing; the gradient comes back."""

    @staticmethod
    def forward(ctx, x, *, to):
        ctx.source, ctx.to = ctx.device, to
        return transferred(x, ctx.device, to)

    @staticmethod
    def backward(ctx, gy):
        return transferred(gy, ctx.to, ctx.source)


def transferred(x, source, to):
    """``x`` of ``source`` in a new array of ``to``."""
    out = to.empty(x.shape, x.dtype)
    if to.kind == "meta":
        return out
    if to.kind == "cpu":
        source.download(x, out)
    elif source.kind == "cpu":
        to.upload(x, out)
    else:  # through a host buffer of the cpu's pool
        host = device("cpu").empty(x.shape, x.dtype)
        source.download(x, host)
        to.upload(host, out)
    return out
