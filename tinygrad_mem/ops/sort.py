"""Orders along one axis: sort, topk, median. All give values and int64 indices, and save the indices alone."""

import math

from .. import dtypes
from ..dtypes import is_floating
from .base import Op


def along(x, axis):
    """``x`` with the axis to work along: a 0-d array is a line of one."""
    return (x.reshape(1), 0) if x.ndim == 0 else (x, axis)


def line_shape(shape, axis, count, keepdim):
    """``shape`` with ``count`` elements along ``axis``, or without the axis."""
    if not shape:
        return ()
    return (*shape[:axis], *((count,) if keepdim else ()), *shape[axis + 1 :])


def spread(ctx, gy, index):
    """The gradient of values that stood at ``index``: gy there, 0 elsewhere."""
    shape, axis = ctx.shape, ctx.axis
    gx = ctx.zeros(shape, gy.dtype)
    target, axis = along(gx, axis)
    kept = (1,) if not shape else line_shape(shape, axis, ctx.count, True)
    ctx.kernels.scatter(ctx.contiguous(gy).reshape(kept), axis, index.reshape(kept), out=target)
    return gx


def fill_order(ctx, x, axis, start, stop, descending, out):
    """out = int64 indices of the ranks ``start`` to ``stop``, with the kernel's workspace."""
    work = ctx.workspace(ctx.kernels.order_workspace(x, axis))
    ctx.kernels.order(x, axis, start, stop, descending, work, out=out)


class Ranks(Op):
    """The base of ops that give values and int64 indices of some ranks along ``axis``. Saves the index: 8 bytes each.

    The gradient is gy where the values stood, 0 elsewhere.
    """

    saves = ("index",)
    outputs = ("index",)

    @staticmethod
    def backward(ctx, gy, _):
        return spread(ctx, gy, ctx.take("index")) if gy is not None else None


def ranks(ctx, x, axis, start, stop, descending, keepdim, *, nan_first=False):
    """Values and indices of the ranks ``start`` to ``stop`` along ``axis``; ``nan_first``: of a line with a nan, the nan."""
    ctx.shape, ctx.axis, ctx.count = x.shape, axis, stop - start
    shape = line_shape(x.shape, axis, stop - start, keepdim)
    values, index = ctx.empty(shape, x.dtype), ctx.empty(shape, dtypes.int64)
    x, axis = along(ctx.contiguous(x), axis)
    kept = line_shape(x.shape, axis, stop - start, True)
    places = index.reshape(kept)
    fill_order(ctx, x, axis, start, stop, descending, places)
    if nan_first and is_floating(x.dtype):
        _to_nan(ctx, x, axis, places, values.reshape(kept))
    ctx.kernels.gather(x, axis, places, out=values.reshape(kept))
    ctx.save(index=index)
    return values, index


class Sort(Ranks):
    """Values and indices in order along ``axis``; ties stay in order, nan is the largest. Saves the index: 8 bytes each."""

    @staticmethod
    def forward(ctx, x, *, axis, descending):
        return ranks(ctx, x, axis, 0, x.shape[axis] if x.ndim else 1, descending, True)


class TopK(Ranks):
    """The ``k`` largest (or smallest) along ``axis``, in order. Saves the index: 8 bytes each."""

    @staticmethod
    def forward(ctx, x, *, k, axis, largest):
        return ranks(ctx, x, axis, 0, k, largest, True)


class Median(Ranks):
    """The lower median along ``axis``; nan where there is one. Saves the index: 8 bytes each."""

    @staticmethod
    def forward(ctx, x, *, axis, keepdim):
        middle = (x.shape[axis] - 1) // 2 if x.ndim else 0
        return ranks(ctx, x, axis, middle, middle + 1, False, keepdim, nan_first=True)


def _to_nan(ctx, x, axis, places, top):
    """The place of the first nan in each line that has one; ``top`` is a buffer."""
    first = ctx.empty(places.shape, dtypes.int64)
    fill_order(ctx, x, axis, 0, 1, True, first)
    ctx.kernels.gather(x, axis, first, out=top)
    flag = ctx.empty(places.shape, dtypes.bool)
    ctx.kernels.isnan(top, out=flag)
    ctx.kernels.where(flag, first, places, out=places)


_NOTHING = {"i8": -(2**63), "i4": -(2**31), "b1": 1}
"""The median of no integers: what nan becomes in each dtype, in PyTorch too; 0 in the others."""


class MedianOfAll(Op):
    """The lower median of all elements; nan where there is one. Saves x and y.

    All elements that equal it share its gradient, as in PyTorch.
    """

    saves = ("x", "y")

    @staticmethod
    def forward(ctx, x):
        y = ctx.empty((), x.dtype)
        ctx.save(x=x, y=y)
        if not x.size:
            ctx.kernels.fill(math.nan if is_floating(x.dtype) else _NOTHING.get(x.dtype.str[1:], 0), out=y)
            return y
        line = ctx.contiguous(x).reshape(-1)
        place, value = ctx.empty((1,), dtypes.int64), y.reshape(1)
        middle = (line.size - 1) // 2
        fill_order(ctx, line, 0, middle, middle + 1, False, place)
        if is_floating(x.dtype):
            _to_nan(ctx, line, 0, place, value)
        ctx.kernels.gather(line, 0, place, out=value)
        return y

    @staticmethod
    def backward(ctx, gy):
        x, y = ctx.take("x"), ctx.take("y")
        gx, count = ctx.empty_like(x), ctx.empty((1,) * x.ndim, x.dtype)
        axes = tuple(range(x.ndim))
        ctx.kernels.extremum_share(gy.reshape(count.shape), x, y.reshape(count.shape), axes, True, count, out=gx)
        return gx


class ArgSort(Op):
    """The indices of :class:`Sort`. No gradient, and nothing but the indices is made."""

    differentiable = False

    @staticmethod
    def forward(ctx, x, *, axis, descending):
        index = ctx.empty(x.shape, dtypes.int64)
        x, axis = along(x, axis)
        fill_order(ctx, x, axis, 0, x.shape[axis], descending, index.reshape(x.shape))
        return index
