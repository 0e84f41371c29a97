"""Views: the result shares its input's memory, the backward is a view of gy or a buffer where only a part was shown."""

from __future__ import annotations

from ..errors import ShapeError
from .base import Op


class View(Op):
    """The same elements in another shape, without a copy. Saves nothing."""

    view = True

    @staticmethod
    def forward(ctx, x, *, shape):
        ctx.shape = x.shape
        y = _reshaped(x, shape)
        if y is None:
            raise ShapeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension spans across two "
                f"contiguous subspaces). Use .reshape(...) instead. Asked {list(shape)} of {list(x.shape)}"
            )
        return y

    @staticmethod
    def backward(ctx, gy):
        gy = ctx.contiguous(gy)
        return gy.reshape(ctx.shape)


def _reshaped(x, shape):
    """``x`` with another shape of as many elements if that needs no copy, else ``None``."""
    if x.flags.c_contiguous or _regroups(x.shape, x.strides, shape):
        return x.reshape(shape)
    return None


def _regroups(old, strides, new):
    """Whether runs of axes that lie behind one another in memory can be cut into ``new``: then a reshape is a view."""
    if 0 in old:
        return True
    axes = [(n, s) for n, s in zip(old, strides, strict=True) if n != 1]
    new = [n for n in new if n != 1]
    i = j = 0
    while i < len(axes) and j < len(new):
        have, want = axes[i][0], new[j]
        while have != want:
            if have < want:
                if axes[i][1] != axes[i + 1][1] * axes[i + 1][0]:
                    return False
                i += 1
                have *= axes[i][0]
            else:
                j += 1
                want *= new[j]
        i, j = i + 1, j + 1
    return True


class Permute(Op):
    """Axes in another order. Saves nothing."""

    view = True

    @staticmethod
    def forward(ctx, x, *, axes):
        ctx.axes = axes
        return x.transpose(axes)

    @staticmethod
    def backward(ctx, gy):
        inverse = sorted(range(len(ctx.axes)), key=ctx.axes.__getitem__)
        return gy.transpose(inverse)


class Expand(Op):
    """Size-1 axes repeated without memory. Saves nothing; the engine sums the gradient."""

    view = True

    @staticmethod
    def forward(ctx, x, *, shape):
        return ctx.broadcast(x, shape)

    @staticmethod
    def backward(ctx, gy):
        return gy


class Slice(Op):
    """Basic indexing: integers, slices with positive steps, new axes. Saves nothing; the gradient is a buffer of x's shape."""

    view = True

    @staticmethod
    def forward(ctx, x, *, key):
        if not any(k is Ellipsis for k in key):
            key = (*key, ...)  # integers alone would give a scalar, not a view
        ctx.shape, ctx.key = x.shape, key
        return x[key]

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.zeros(ctx.shape, gy.dtype)
        ctx.kernels.copy(gy, out=gx[ctx.key])
        return gx


class Diagonal(Op):
    """A diagonal of two axes, as a last axis. Saves nothing; the gradient is a buffer of x's shape."""

    view = True

    @staticmethod
    def forward(ctx, x, *, offset, axis1, axis2):
        ctx.shape, ctx.where = x.shape, (offset, axis1, axis2)
        return diagonal(ctx, x, offset, axis1, axis2)

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.zeros(ctx.shape, gy.dtype)
        ctx.kernels.copy(gy, out=diagonal(ctx, gx, *ctx.where))
        return gx


def strided(ctx, x, shape, strides):
    """A view of ``x`` with these shape and strides (in bytes)."""
    return ctx.device.xp.lib.stride_tricks.as_strided(x, shape, strides)


def diagonal(ctx, x, offset, axis1, axis2):
    """A writable view of a diagonal."""
    rows, columns = x.shape[axis1], x.shape[axis2]
    first = x
    if offset:
        cut = [slice(None)] * x.ndim
        cut[axis2 if offset > 0 else axis1] = slice(abs(offset), None)
        first = x[tuple(cut)]
    length = max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)
    rest = [i for i in range(x.ndim) if i not in (axis1, axis2)]
    shape = (*[x.shape[i] for i in rest], length)
    return strided(ctx, first, shape, (*[x.strides[i] for i in rest], x.strides[axis1] + x.strides[axis2]))


class Windows(Op):
    """Sliding windows along an axis, as a last axis. Saves nothing; overlapping gradients add up in a buffer of x's shape."""

    view = True

    @staticmethod
    def forward(ctx, x, *, axis, size, step):
        ctx.shape, ctx.window = x.shape, (axis, step)
        count = (x.shape[axis] - size) // step + 1
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
        strides = (*x.strides[:axis], x.strides[axis] * step, *x.strides[axis + 1 :], x.strides[axis])
        return strided(ctx, x, shape, strides)

    @staticmethod
    def backward(ctx, gy):
        axis, step = ctx.window
        gx = ctx.empty(ctx.shape, gy.dtype)
        ctx.kernels.windows_backward(gy, axis, step, out=gx)
        return gx
