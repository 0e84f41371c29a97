"""Views: the result shares its input's memory, the backward is a view of gy or a buffer where only a part was shown."""

from __future__ import annotations

import operator
from itertools import product

import numpy as np

from ..dtypes import arithmetic
from ..errors import GraphError, ShapeError
from .base import Op, SliceGradient, address_of, root_of


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
    """True if runs of axes that are contiguous with each other can be divided into ``new``: then a reshape is a view."""
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
        if tuple(shape) == (1,) * (len(shape) - x.ndim) + x.shape:  # nothing is repeated, so it may be written
            return x[(None,) * (len(shape) - x.ndim) + (...,)]
        return ctx.broadcast(x, shape)

    @staticmethod
    def backward(ctx, gy):
        return gy


class Slice(Op):
    """Basic indexing: integers, slices with positive steps, new axes. Saves nothing.

    The gradient is a buffer of x's shape, one for all slices of x.
    """

    view = True

    @staticmethod
    def forward(ctx, x, *, key):
        if not any(k is Ellipsis for k in key):
            key = (*key, ...)  # integers alone would give a scalar, not a view
        ctx.shape, ctx.key = x.shape, key
        return x[key]

    @staticmethod
    def backward(ctx, gy):
        return SliceGradient(ctx.key, gy, ctx.shape)


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
    if not isinstance(x, np.ndarray):
        return ctx.device.xp.lib.stride_tricks.as_strided(x, shape, strides)
    root = root_of(x)
    if not root.flags.c_contiguous or not x.size:
        return np.lib.stride_tricks.as_strided(x, shape, strides)
    return np.ndarray(shape, x.dtype, root, address_of(x) - address_of(root), strides)  # it knows its root, as every view


def diagonal(ctx, x, offset, axis1, axis2):
    """A writable view of a diagonal."""
    rows, columns = x.shape[axis1], x.shape[axis2]
    offset = max(-rows, min(operator.index(offset), columns))  # farther away it is as empty
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


class AsStrided(Op):
    """Any shape and strides over the memory that x shares, ``offset`` elements from x's first. Saves nothing.

    The gradient is a buffer with the strides of x. Gradients of an element that the result shows several times are added in it.
    So if a gradient is needed, x must be dense, in any order of its axes, and must contain all elements of the result.
    """

    view = True

    @staticmethod
    def forward(ctx, x, *, size, stride, offset):
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
        axes = sorted(range(x.ndim), key=lambda a: -x.strides[a])  # in memory order
        dense = x.transpose(axes)
        whole = dense.flags.c_contiguous and offset >= 0 and offset + span <= x.size
        if ctx.needs[0] and not whole:
            raise GraphError(
                "as_strided: a gradient needs a dense tensor that holds all that is shown; give it .contiguous(), or "
                f"detach() it. Found shape {list(x.shape)}, dense {bool(dense.flags.c_contiguous)}, and {span} elements from "
                f"{offset} on"
            )
        ctx.shape, ctx.axes, ctx.layout = dense.shape, axes, (size, stride, offset)
        line = dense.reshape(-1)[offset:] if whole else _memory(ctx, x, offset)
        return strided(ctx, line, size, tuple(s * x.itemsize for s in stride))

    @staticmethod
    def backward(ctx, gy):
        size, stride, offset = ctx.layout
        apart = _apart(size, stride)
        rest = [a for a in range(len(size)) if a not in apart]
        wide = arithmetic(gy.dtype) if rest else gy.dtype  # sums of halves are not halves
        gx = ctx.zeros(ctx.shape, wide)
        steps = tuple(stride[a] * gx.itemsize for a in apart)
        for at in product(*[range(size[a]) for a in rest]) if 0 not in size else ():
            first = offset + sum(i * stride[a] for i, a in zip(at, rest, strict=True))
            part = strided(ctx, gx.reshape(-1)[first:], tuple(size[a] for a in apart), steps)
            key: list = [slice(None)] * len(size)
            for i, a in zip(at, rest, strict=True):
                key[a] = i
            ctx.kernels.add(part, gy[(*key, ...)], out=part)
        return ctx.cast(gx, gy.dtype).transpose(sorted(range(len(ctx.axes)), key=ctx.axes.__getitem__))


def _memory(ctx, x, offset):
    """The memory that x shares, as a line from ``offset`` elements behind x's first on."""
    root = root_of(x)
    line = strided(ctx, root, (root.size,), (root.itemsize,)).view(x.dtype)
    return line[(address_of(x) - address_of(root)) // x.itemsize + offset :]


def _apart(size, stride):
    """Axes, in order, along which no element is shown twice: as many elements as possible, from the largest axis on."""
    chosen = []
    for axis in sorted(range(len(size)), key=lambda a: -size[a]):
        reach = 1
        for a in sorted([*chosen, axis], key=lambda a: stride[a]):
            if size[a] > 1 and stride[a] < reach:
                break
            reach += (size[a] - 1) * stride[a]
        else:
            chosen.append(axis)
    return sorted(chosen)
