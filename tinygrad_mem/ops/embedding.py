"""Looking rows of a table up."""

from __future__ import annotations

from typing import Any

from ..dtypes import arithmetic, float32, int32, int64
from ..errors import DimensionError
from .base import Op, RowsGradient, want_floating


class Embedding(Op):
    """The rows of a table at an index of any shape. Saves the index: 8 bytes per entry (4 of int32); not the table.

    The gradient of the table is a dense array of its size or, if ``sparse``, rows: 8 bytes per entry and its values.
    """

    saves = ("index",)

    @staticmethod
    def forward(ctx, index, weight, *, padding, by_frequency, sparse=False):
        _check_rows(ctx, index, weight.shape[0])
        out = ctx.empty((*index.shape, weight.shape[1]), weight.dtype)
        flat = _flat(ctx, index)
        ctx.kernels.embedding(ctx.contiguous(weight), flat, out=out.reshape(index.size, weight.shape[1]))
        ctx.save(index=index)
        ctx.table, ctx.options, ctx.sparse = weight.shape, (padding, by_frequency), sparse
        return out

    @staticmethod
    def backward(ctx, gy):
        padding, by_frequency = ctx.options
        if ctx.sparse:
            return None, _rows(ctx, ctx.take("index"), gy, padding)
        index = _flat(ctx, ctx.take("index"))
        return None, _table(ctx, gy, index, padding, by_frequency)


def _rows(ctx, index, gy, padding):
    """The gradient as rows: gy itself where it is ours or is as it should be, with 0 where the padding was looked up."""
    own = ctx.copy(index, int64).reshape(index.size)
    values = gy
    if not gy.flags.c_contiguous or (padding is not None and not ctx.owns_grad):
        values = ctx.copy(gy)
    values = values.reshape(index.size, ctx.table[1])
    if padding is not None:
        ctx.kernels.clear_rows(own, padding, out=values)
    return RowsGradient(own, values, ctx.table)


class EmbeddingBag(Op):
    """The sums or means of rows of a table, a bag of indices each, without the rows themselves. Saves index, offsets if given,
    shares if weight needs a gradient, and weight if shares does.

    Bags are the rows of a 2-D index, or cut out of a flat one by offsets. The gradient of the table is a dense array of its
    size or, if ``sparse``, rows: 8 bytes per index and its values. Backward takes 4 bytes per index, and for means and shares
    4 more (8 of float64).
    """

    saves = ("index", "offsets", "shares", "weight")

    @staticmethod
    def forward(ctx, index, weight, offsets, shares, *, bags, mean, padding, by_frequency, sparse):
        y = _bag_output(ctx, index, weight, offsets, bags)
        arrays = (_flat(ctx, index), _flat(ctx, offsets), _flat(ctx, shares))
        ctx.kernels.embedding_bag(ctx.contiguous(weight), *arrays, mean, padding, out=y)
        ctx.save(index=index, offsets=offsets)
        ctx.save(shares=shares if ctx.needs[1] else None, weight=weight if ctx.needs[3] else None)
        ctx.table, ctx.shape, ctx.mean, ctx.options = weight.shape, index.shape, mean, (padding, by_frequency, sparse)
        return y

    @staticmethod
    def backward(ctx, gy):
        index = _flat(ctx, ctx.take("index"))
        offsets, shares = _flat(ctx, ctx.take("offsets")), _flat(ctx, ctx.take("shares"))
        bags, parts = ctx.empty((index.size,), int32), None
        if shares is not None or ctx.mean:
            parts = ctx.empty((index.size,), arithmetic(gy.dtype))
        ctx.kernels.bag_parts(index, offsets, len(gy), shares, ctx.options[0], bags, parts)
        gy = ctx.contiguous(gy)
        gw = gs = None
        if ctx.needs[1]:
            padding, by_frequency, sparse = ctx.options
            if sparse:
                gw = _bag_rows(ctx, gy, index, bags, parts)
            else:
                gw = _table(ctx, gy, index, padding, by_frequency, bags, parts)
        if ctx.needs[3]:
            gs = ctx.empty(ctx.shape, gy.dtype)
            weight = ctx.contiguous(ctx.take("weight"))
            ctx.kernels.embedding_bag_shares_backward(gy, weight, index, bags, ctx.options[0], out=gs.reshape(index.size))
        return None, gw, None, gs


def _bag_output(ctx, index, weight, offsets, bags):
    """A new array with a row for each bag, where the arguments fit."""
    want_floating("embedding_bag", weight)
    _check_rows(ctx, index, weight.shape[0])
    if offsets is not None:
        ctx.kernels.check_bags(offsets, index.size)
    return ctx.empty((bags, weight.shape[1]), weight.dtype)


def _check_rows(ctx, index, rows) -> None:
    """Refuse indices outside of the table: where values are not read, any index of an empty one. Raises: DimensionError."""
    if index.size and not rows:
        raise DimensionError(f"index out of range in self: the table has no rows, found {index.size} indices")
    ctx.kernels.check_rows(index, rows)


def _flat(ctx, x) -> Any:
    """``x`` as a contiguous line; ``None`` stays."""
    return None if x is None else ctx.contiguous(x).reshape(x.size)


def _table(ctx, gy, index, padding, by_frequency, bags=None, parts=None):
    """The gradient as an array of the table's size.

    Row ``index[i]`` gets row i of gy; where there are bags, row ``bags[i]`` of gy times ``parts[i]``.
    """
    gw = ctx.zeros(ctx.table, gy.dtype)
    counts = ctx.empty(ctx.table[:1], float32) if by_frequency else None
    rows = ctx.contiguous(gy).reshape(index.size if bags is None else len(gy), ctx.table[1])
    work = ctx.workspace(ctx.kernels.embedding_backward_workspace(index.size, gy.dtype))
    ctx.kernels.embedding_backward(rows, index, padding, counts, bags, parts, work, out=gw)
    return gw


def _bag_rows(ctx, gy, index, bags, parts):
    """The gradient as rows, with 0 where the padding was looked up."""
    own, values = ctx.copy(index, int64), ctx.empty((index.size, ctx.table[1]), gy.dtype)
    ctx.kernels.embedding_bag_rows(gy, bags, parts, out=values)
    if ctx.options[0] is not None:
        ctx.kernels.clear_rows(own, ctx.options[0], out=values)
    return RowsGradient(own, values, ctx.table)


class EmbeddingBagMax(Op):
    """The largest of rows of a table, a bag of indices each. Saves places
    (``(4 if len(weight) < 2**31 else 8) * y.size`` bytes).

    These are the rows of the table in which each element was found; the gradient goes there, as an array of the table's size.
    """

    saves = ("places",)

    @staticmethod
    def forward(ctx, index, weight, offsets, *, bags, padding):
        y = _bag_output(ctx, index, weight, offsets, bags)
        places = ctx.empty(y.shape, int32 if len(weight) < 2**31 else int64)
        arrays = (_flat(ctx, index), _flat(ctx, offsets))
        ctx.kernels.embedding_bag_max(ctx.contiguous(weight), *arrays, padding, out=y, places=places)
        ctx.save(places=places)
        ctx.table = weight.shape
        return y

    @staticmethod
    def backward(ctx, gy):
        gw = ctx.zeros(ctx.table, gy.dtype)
        gy, places = ctx.contiguous(gy), ctx.take("places")
        ctx.kernels.embedding_bag_max_backward(gy, places, out=gw)
        return None, gw, None


class EmbeddingRenorm(Op):
    """The rows of a table that an index names, shrunk to a largest norm, in place. Saves nothing, and has no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, weight, index, *, max_norm, norm_type):
        _check_rows(ctx, index, weight.shape[0])
        out = ctx.output_copy(weight)
        ctx.kernels.embedding_renorm(out, _flat(ctx, index), max_norm, norm_type)
        return out
