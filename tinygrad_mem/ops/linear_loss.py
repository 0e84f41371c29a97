"""A linear layer and the cross-entropy of its scores, of which one tile is in memory at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import arithmetic
from .base import Op
from .cross_entropy import reduced


class LinearCrossEntropy(Op):
    """:class:`CrossEntropy` of ``x @ weight.T + bias``, of which a tile of ``rows`` by ``classes`` is in memory at a time.
    With ``cap``, of ``tanh(score / cap) * cap``: in backward, of the tile's tanh too.

    Saves x, weight, bias if given, target, class_weight if given, lse (``target.size * max(4, x.itemsize)`` bytes), and norm
    (``max(4, x.itemsize)`` bytes) if ``reduction == "mean"``. Backward makes each tile of scores again: one matrix product
    more, and nothing of the weight's size is kept from forward to backward. (To compute the gradients in forward costs no
    product and keeps them; it knows no loss scale, without which float16 gradients vanish, and no losses one by one.)

    Source: Wijmans et al., *Cut your losses in large-vocabulary language models*, 2024.
    """

    saves = ("x", "weight", "bias", "target", "class_weight", "lse", "norm")

    @staticmethod
    def forward(ctx, x, weight, bias, target, class_weight, *, ignore, smoothing, reduction, rows, classes, cap):
        wide, goal = arithmetic(x.dtype), target.reshape(-1, 1)
        every = weight.shape[0]
        ctx.kernels.check_target(goal, every, ignore)
        ctx.options, ctx.tile, ctx.cap = (ignore, smoothing), (rows, classes), cap
        lse, losses = ctx.empty(goal.shape, wide), ctx.zeros(goal.shape, wide)
        ctx.kernels.fill(-np.inf, out=lse)
        weights = ctx.cast(class_weight, wide)
        for part, r, c, _, _ in _score_tiles(ctx, x, weight, bias, wide):
            _bound(ctx, part, part)
            scores = part.reshape(*part.shape, 1)
            ctx.kernels.fold_scores(scores, c.start, goal[r], weights, ignore, smoothing, every, lse[r], losses[r])
        ctx.kernels.finish_scores(goal, weights, ignore, smoothing, every, lse, losses)
        norm = None
        if reduction == "mean":
            norm = ctx.empty((), wide)
            ctx.kernels.target_weight(goal, weights, ignore, smoothing, out=norm)
        ctx.save(x=x, weight=weight, target=target, lse=lse, bias=bias, class_weight=class_weight, norm=norm)
        return reduced(ctx, losses, x.dtype, target.shape, reduction, norm)

    @staticmethod
    def backward(ctx, gy):
        saved = {name: ctx.take(name) for name in tuple(ctx.saved)}
        x, weight, bias, lse = saved["x"], saved["weight"], saved.get("bias"), saved["lse"]
        goal, wide, every = saved["target"].reshape(-1, 1), lse.dtype, weight.shape[0]
        weights = ctx.cast(saved.get("class_weight"), wide)
        seed: Any = ctx.cast(gy if gy.ndim == 0 else ctx.contiguous(gy).reshape(-1, 1), wide)
        gx = ctx.zeros(x.shape, wide) if ctx.needs[0] else None
        gw = ctx.empty(weight.shape, weight.dtype) if ctx.needs[1] else None
        gb = ctx.empty((1, every), wide) if ctx.needs[2] else None
        total = ctx.empty((1, min(ctx.tile[1], every)), wide) if gb is not None else None
        half = gw is not None and gw.dtype != wide
        sums = ctx.empty((min(ctx.tile[1], every), x.shape[1]), wide) if half else None  # of gw, for the classes of a tile
        bent = None if ctx.cap is None else ctx.empty((min(ctx.tile[0], len(x)) * min(ctx.tile[1], every),), wide)
        for part, r, c, lines, columns in _score_tiles(ctx, x, weight, bias, wide):
            tanh = None if bent is None else bent[: part.size].reshape(part.shape)
            _bound(ctx, part, tanh)
            scores, own = part.reshape(*part.shape, 1), seed if seed.ndim == 0 else seed[r]
            options = (lse[r], goal[r], weights, *ctx.options, saved.get("norm"))
            ctx.kernels.cross_entropy_backward(own, scores, *options, out=scores, first=c.start, classes=every)
            if tanh is not None:
                ctx.kernels.tanh_backward(part, tanh, out=part)
            if gx is not None:
                ctx.kernels.add_matmul(part, columns, out=gx[r])
            if gw is not None:
                into = gw[c] if sums is None else sums[: part.shape[1]]
                if r.start == 0:
                    ctx.kernels.fill(0, out=into)
                ctx.kernels.add_matmul(part.T, lines, out=into)
                if sums is not None and r.stop == len(x):
                    ctx.kernels.copy(into, out=gw[c])
            if gb is not None and total is not None:
                ctx.kernels.sum(part, (0,), out=gb[:, c] if r.start == 0 else total[:, : part.shape[1]])
                if r.start:
                    ctx.kernels.add(gb[:, c], total[:, : part.shape[1]], out=gb[:, c])
        for sum_of_lines in (gw, gb) if not len(x) else ():
            if sum_of_lines is not None:
                ctx.kernels.fill(0, out=sum_of_lines)
        return gx, gw, None if gb is None else gb.reshape(every), None, None


def _bound(ctx, scores, tanh):
    """scores = tanh(scores / cap) * cap, if there is a cap; and the tanh, unless it is the same buffer."""
    if ctx.cap is not None:
        ctx.kernels.multiply(scores, 1 / ctx.cap, out=scores)
        ctx.kernels.tanh(scores, out=tanh)
        ctx.kernels.multiply(tanh, ctx.cap, out=scores)


def _score_tiles(ctx, x, weight, bias, wide):
    """(scores, which lines, which classes, the lines' inputs, the classes' weights) tile by tile, in the wide dtype.

    All tiles share their buffers; the lines of the first classes come first.
    """
    n, every = len(x), len(weight)
    rows, classes = min(ctx.tile[0], n), min(ctx.tile[1], every)
    buffer = ctx.empty((rows * classes,), wide)
    some_lines, some_columns = (
        None if a.dtype == wide else ctx.empty((k, a.shape[1]), wide) for a, k in ((x, rows), (weight, classes))
    )
    for j in range(0, every, max(classes, 1)):
        c = slice(j, min(j + classes, every))
        columns = _read(ctx, weight[c], some_columns)
        for i in range(0, n, max(rows, 1)):
            r = slice(i, min(i + rows, n))
            lines = _read(ctx, x[r], some_lines)
            part = buffer[: (r.stop - i) * (c.stop - j)].reshape(r.stop - i, c.stop - j)
            ctx.kernels.matmul(lines, columns.T, None, out=part)
            if bias is not None:
                ctx.kernels.add(part, bias[c], out=part)
            yield part, r, c, lines, columns


def _read(ctx, x, buffer):
    """``x`` where it need not be cast, contiguous; else what the buffer has of it."""
    if buffer is None:
        return ctx.contiguous(x)
    ctx.kernels.copy(x, out=buffer[: len(x)])
    return buffer[: len(x)]
