"""Looking rows of a table up."""

from __future__ import annotations

import numpy as np

from .base import Op, Rows


class Embedding(Op):
    """The rows of a table at an index of any shape. Saves the index: 8 bytes an entry (4 of int32); not the table.

    The gradient of the table is a dense array of its size or, if ``sparse``, rows: 8 bytes an entry and its values.
    """

    saves = ("index",)
    outputs = ()

    @staticmethod
    def forward(ctx, index, weight, *, padding, by_frequency, sparse=False):
        ctx.kernels.check_rows(index, weight.shape[0])
        out = ctx.empty((*index.shape, weight.shape[1]), weight.dtype)
        flat = ctx.contiguous(index).reshape(index.size)
        ctx.kernels.embedding(ctx.contiguous(weight), flat, out=out.reshape(index.size, weight.shape[1]))
        if ctx.needs[1]:
            ctx.save(index=index)
        ctx.table, ctx.options, ctx.sparse = weight.shape, (padding, by_frequency), sparse
        return out

    @staticmethod
    def backward(ctx, gy):
        padding, by_frequency = ctx.options
        if ctx.sparse:
            return None, _rows(ctx, ctx.take("index"), gy, padding)
        index = ctx.contiguous(ctx.take("index"))
        gw = ctx.zeros(ctx.table, gy.dtype)
        counts = ctx.empty(ctx.table[:1], np.dtype(np.float32)) if by_frequency else None
        rows = ctx.contiguous(gy).reshape(index.size, ctx.table[1])
        size = ctx.kernels.embedding_backward_workspace(index.size, gy.dtype)
        work = ctx.workspace(size) if size else None
        ctx.kernels.embedding_backward(rows, index.reshape(index.size), padding, counts, work, out=gw)
        return None, gw


def _rows(ctx, index, gy, padding):
    """The gradient as rows: gy itself where it is ours or is as it should be, with 0 where the padding was looked up."""
    own = ctx.empty((index.size,), np.dtype(np.int64))
    ctx.kernels.copy(index, out=own.reshape(index.shape))
    values = gy
    if not gy.flags.c_contiguous or (padding is not None and not ctx.owns_grad):
        values = ctx.empty(gy.shape, gy.dtype)
        ctx.kernels.copy(gy, out=values)
    values = values.reshape(index.size, ctx.table[1])
    if padding is not None:
        ctx.kernels.clear_rows(own, padding, out=values)
    return Rows(own, values, ctx.table)


class EmbeddingRenorm(Op):
    """The rows of a table that an index names, shrunk to a largest norm, in place. Saves nothing, and has no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx, weight, index, *, max_norm, norm_type):
        ctx.kernels.check_rows(index, weight.shape[0])
        out = ctx.output_like(weight)
        if out is not weight:
            ctx.kernels.copy(weight, out=out)
        ctx.kernels.embedding_renorm(out, ctx.contiguous(index).reshape(index.size), max_norm, norm_type)
        return out
