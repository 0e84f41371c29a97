"""Indexing by tensors. Indices are int64 and within bounds: the functions above this room see to that.

On an axis of size n the indices of ``Take`` and ``IndexPut`` are from -n to n - 1, all others from 0 to n - 1. Kernels count
negative ones from the end: a copy of the index without them would be memory that depends on values.
"""

from ..dtypes import fitting
from ..errors import DTypeError, ShapeError
from .base import Op, want_numbers


class Take(Op):
    """Rows of x (axis 0) by an index of any shape. The gradient is gy, added up per row. Saves the index: 8 bytes per entry."""

    saves = ("index",)

    @staticmethod
    def forward(ctx, x, index):
        out = ctx.empty((*index.shape, *x.shape[1:]), x.dtype)
        ctx.shape = x.shape
        ctx.save(index=index)
        x, index = ctx.contiguous(x), ctx.contiguous(index)
        ctx.kernels.take(x, index, out=out)
        return out

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.zeros(ctx.shape, gy.dtype)
        gy, index = ctx.contiguous(gy), ctx.contiguous(ctx.take("index"))
        ctx.kernels.add_rows(gy, index, out=gx)
        return gx, None


class IndexPut(Op):
    """x with ``value`` at the places of a key of arrays and slices; added there if ``accumulate``. Saves the indices."""

    saves = tuple(f"index{i}" for i in range(8))
    places = True

    @staticmethod
    def forward(ctx, x, value, *indices, key, accumulate):
        full = _full_key(key, indices)
        shape = _selected_shape(x.shape, full)
        try:
            value = ctx.broadcast(value, shape) if hasattr(value, "shape") else value
        except ValueError:
            raise ShapeError(
                f"shape mismatch: value tensor of shape {list(value.shape)} cannot be broadcast to indexing result of shape "
                f"{list(shape)}"
            ) from None
        y = ctx.output_copy(x)
        ctx.save(**{f"index{i}": index for i, index in enumerate(indices)})
        ctx.key, ctx.accumulate, ctx.shape = key, accumulate, shape
        _put(ctx, value, full, accumulate, y)
        return y

    @staticmethod
    def backward(ctx, gy):
        indices = [ctx.take(f"index{i}") for i in range(len(ctx.needs) - 2)]
        full = _full_key(ctx.key, indices)
        gx = gv = None
        if ctx.needs[1]:
            gv = ctx.empty(ctx.shape, gy.dtype)
            ctx.kernels.index_get(gy, full, out=gv)
        if ctx.needs[0]:
            gx = gy
            if not ctx.accumulate:
                gx = ctx.grad_copy(gy)
                _put(ctx, 0, full, False, gx)
        return (gx, gv, *[None] * len(indices))


def _put(ctx, value, key, accumulate, out):
    """``index_put`` with its workspace."""
    size = ctx.kernels.index_put_workspace(out, accumulate)
    ctx.kernels.index_put(value, key, accumulate, ctx.workspace(size), out=out)


def _full_key(key, indices):
    """The key with its arrays in place of the markers (their numbers)."""
    return tuple(indices[k[0]] if isinstance(k, tuple) else k for k in key)


def _selected_shape(shape, key):
    """The shape of ``x[key]``, for arrays that broadcast and are not separated by slices, or are (then they go first)."""
    arrays = [(i, k.shape) for i, k in enumerate(key) if hasattr(k, "shape")]
    size = max((len(s) for _, s in arrays), default=0)
    common = [1] * size
    for _, s in arrays:
        for j, n in enumerate(s, size - len(s)):
            common[j] = n if common[j] == 1 else common[j]
    places = [i for i, _ in arrays]
    rest = [len(range(*k.indices(n))) if isinstance(k, slice) else None for k, n in zip(key, shape, strict=False)]
    rest += list(shape[len(key) :])
    adjacent = places == list(range(places[0], places[-1] + 1)) if places else True
    before = [n for n in rest[: places[0]] if n is not None] if places and adjacent else []
    after = [n for n in (rest[places[0] :] if places and adjacent else rest) if n is not None]
    return (*before, *common, *after)


def gathered(ctx, x, axis, index):
    """The values of x at ``index`` along an axis."""
    out = ctx.empty(index.shape, x.dtype)
    ctx.kernels.gather(x, axis, index, out=out)
    return out


def in_corner(ctx, x, shape):
    """x in the first corner of an array of zeros, or x itself where it has that shape."""
    if x.shape == shape:
        return x
    whole = ctx.zeros(shape, x.dtype)
    ctx.kernels.copy(x, out=whole[tuple(slice(0, n) for n in x.shape)])
    return whole


class Gather(Op):
    """x at ``index`` along an axis. Saves the index: 8 bytes per entry."""

    saves = ("index",)

    @staticmethod
    def forward(ctx, x, index, *, axis):
        ctx.shape, ctx.axis = x.shape, axis
        ctx.save(index=index)
        return gathered(ctx, x, axis, index)

    @staticmethod
    def backward(ctx, gy):
        gx = ctx.zeros(ctx.shape, gy.dtype)
        ctx.kernels.scatter_add(gy, ctx.axis, ctx.take("index"), out=gx)
        return gx, None


class Scatter(Op):
    """x with ``source`` (a tensor or a number) written, or added, at ``index`` along an axis. Saves the index."""

    saves = ("index",)
    places = True

    @staticmethod
    def forward(ctx, x, index, source, *, axis, add):
        if not hasattr(source, "dtype"):
            want_numbers("scatter", src=source)
            source = fitting(source, x.dtype)
        elif source.dtype != x.dtype:
            raise DTypeError(f"scatter(): Expected self.dtype to be equal to src.dtype, found {x.dtype} and {source.dtype}")
        y = ctx.output_copy(x)
        ctx.axis, ctx.add = axis, add
        ctx.source_shape = getattr(source, "shape", None)
        ctx.save(index=index)
        (ctx.kernels.scatter_add if add else ctx.kernels.scatter)(source, axis, index, out=y)
        return y

    @staticmethod
    def backward(ctx, gy):
        index = ctx.take("index")
        gx = gs = None
        if ctx.needs[2]:
            gs = in_corner(ctx, gathered(ctx, gy, ctx.axis, index), ctx.source_shape)
        if ctx.needs[0]:
            gx = gy
            if not ctx.add:
                gx = ctx.grad_copy(gy)
                ctx.kernels.scatter(0, ctx.axis, index, out=gx)
        return gx, None, gs
