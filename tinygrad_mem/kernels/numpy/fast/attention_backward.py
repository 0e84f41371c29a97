"""Attention backward, tile by tile: the scores of each tile are computed again, and with ``lse`` their softmax.

Source: Dao et al., *FlashAttention*, 2022, and *FlashAttention-2*, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import blas, threads
from .attention_forward import grain
from .attention_tiles import Job, Sight, Space, add_product, add_to_mask, drop, exponentials, flatness, mask_index
from .tiles import cuts


@dataclass(frozen=True)
class Gradients:
    """A job, the gradient of its result, and buffers for gradients, shaped as in the job; ``None`` if one is not needed."""

    job: Job
    gy: Any
    y: Any
    lse: Any
    inner: Any  # sum(gy * y) for each row, if it is computed from the softmax
    gq: Any
    gk: Any
    gv: Any
    gmask: Any


def _block(g, block):
    """The gradients of some batches and heads. Half precision is accumulated in scratch, in a second pass over columns."""
    if g.job.q.dtype == g.job.wide:
        _by_rows(g, block, g.gk, g.gv)
        return
    if g.inner is not None:
        _fill_inner(g, block)
    if g.gq is not None or g.gmask is not None:
        _by_rows(g, block, None, None)
    if g.gk is not None or g.gv is not None:
        _by_columns(g, block)


def _fill_inner(g, block):
    """g.inner = sum(gy * y) for each row, computed from the softmax, before y was rounded.

    Dividing by the sum of the softmax, which is 1 up to the rounding of lse, cancels this rounding.
    """
    job, wide = g.job, g.job.wide
    for at in job.spots(*block):
        space = Space()
        view = _RowTile(g, at, space)
        view.inner.fill(0)
        part, total = (space.take(view.sight.lead, wide) for _ in range(2))
        total.fill(0)
        before = space.used
        for cut in job.columns(at.rows):
            space.used = before
            key, value = (space.cast(x[at.batch, at.head, cut], wide) for x in (job.k, job.v))
            weights, slopes = view.softmax(key, value, cut)
            np.vecdot(weights, slopes, out=part)
            np.add(view.inner[..., 0], part, out=view.inner[..., 0])
            np.add.reduce(weights, axis=-1, out=part)
            np.add(total, part, out=total)
        np.maximum(total, np.finfo(wide).tiny, out=total)  # a row without visible columns
        np.divide(view.inner[..., 0], total, out=view.inner[..., 0])


def _by_rows(g, block, gk, gv):
    """One pass over rows: gq, and gk and gv. The last rows come first: they may see all columns, and need not be added."""
    job, wide = g.job, g.job.wide
    spots = list(job.spots(*block))[::-1]
    seen = sum(cut.stop - cut.start for cut in job.columns(spots[0].rows))
    for grad in (gk, gv):
        if grad is not None and seen < grad.shape[2]:
            grad[block].fill(0)
    for at in spots:
        space = Space()
        view = _RowTile(g, at, space)
        shape = view.sight.query.shape
        total, columns = None, job.columns(at.rows)
        if g.gq is not None:
            target = g.gq[at.batch, at.head, at.group, at.rows]
            total = target if target.dtype == wide else space.take(shape, wide)
            if not columns:
                total.fill(0)
        before = space.used
        for number, cut in enumerate(columns):
            space.used = before
            here = (at.batch, at.head, cut)
            key, value = (None if x is None else space.cast(x[here], wide) for x in (job.k, job.v))
            slopes = view.gradients(key, value, cut, _part(gk, here), _part(gv, here), at is spots[0])
            if g.gmask is not None:
                add_to_mask(slopes, g.gmask[mask_index(g.gmask, at, cut)])
            if total is not None:
                add_product(slopes, key, total, space, number == 0)
        if total is not None:
            np.multiply(total, job.scale, out=target, casting="unsafe")


def _by_columns(g, block):
    """One pass over columns: it accumulates gk and gv in the wide dtype."""
    job, wide = g.job, g.job.wide
    for whole in cuts(0, job.k.shape[2], job.plan.columns):
        outer = Space()
        here = (*block, whole)
        sums = [None if x is None else outer.take(x[here].shape, wide) for x in (g.gk, g.gv)]
        for total in sums:
            if total is not None:
                total.fill(0)
        for at in job.spots(*block):
            for cut in job.columns(at.rows):
                if cut.start == whole.start:
                    space = Space(outer.used)
                    view = _RowTile(g, at, space)
                    count = cut.stop - cut.start
                    seen = (at.batch, at.head, cut)
                    key, value = (None if x is None else space.cast(x[seen], wide) for x in (job.k, job.v))
                    front = (slice(None), slice(None), slice(count))
                    view.gradients(key, value, cut, *[_part(x, front) for x in sums], first=False)
        for total, grad in zip(sums, (g.gk, g.gv), strict=True):
            if total is not None:
                np.copyto(grad[here], total, casting="unsafe")


class _RowTile:
    """A tile of rows in backward: its queries, the gradient of its result, and the sums over its columns."""

    def __init__(self, g, at, space):
        job, wide = g.job, g.job.wide
        self.job, self.space = job, space
        self.sight = Sight(job, at, space)
        where = (at.batch, at.head, at.group, at.rows)
        self.gy = space.cast(g.gy[where], wide)
        self.lse = g.lse[where][..., None]
        self.inner: Any = None
        if g.inner is not None:
            self.inner = g.inner[where][..., None]
        elif g.y is not None:
            self.inner = space.take((*self.sight.lead, 1), wide)  # sum(gy * y) for each row
            before = space.used
            np.vecdot(self.gy, space.cast(g.y[where], wide), out=self.inner[..., 0])
            space.used = before

    def softmax(self, key, value, cut):
        """The softmax of a tile, and its gradient."""
        weights, spare = self.sight.scores(key, cut), self.sight.spare(cut)
        exponentials(weights, self.lse)
        kept = self.sight.kept(cut) if self.job.p else None  # it writes into spare
        np.matmul(self.gy, value.swapaxes(-1, -2), out=spare)
        if kept is not None:
            drop(spare, kept, self.job.p, spare)
        return weights, spare

    def gradients(self, key, value, cut, gk, gv, first):
        """Add to gk and gv, or write them ``first``. Returns the scores' gradient, ``None`` if only gv is needed."""
        sight, p = self.sight, self.job.p
        weights = sight.scores(key, cut)
        exponentials(weights, self.lse)
        spare = sight.spare(cut)
        kept = sight.kept(cut) if p else None
        if gv is not None:
            used = weights
            if kept is not None:
                used = spare
                drop(weights, kept, p, used)
            add_product(used.swapaxes(-1, -2), self.gy, gv, self.space, first)
        if self.inner is None:
            return None
        np.matmul(self.gy, value.swapaxes(-1, -2), out=spare)
        if kept is not None:
            drop(spare, kept, p, spare)
        np.subtract(spare, self.inner, out=spare)
        np.multiply(spare, weights, out=spare)
        if self.job.cap is not None:
            flatness(weights, self.lse, self.job.cap)
            np.multiply(spare, weights, out=spare)
        if gk is not None:
            add_product(spare.swapaxes(-1, -2), sight.query, gk, self.space, first)
        return spare


def _part(x, index):
    """``x[index]``; ``None`` stays."""
    return None if x is None else x[index]


def backward(all_gradients):
    """Fill the gradients of several jobs, with blocks of batches and heads on several cores."""
    tasks = [(g, block) for g in all_gradients for block in g.job.blocks()]
    shared = any(g.gmask is not None for g in all_gradients)  # several blocks add to one mask

    most = 1 if shared else len(tasks) // grain([(g.job,) for g in all_gradients], len(tasks))
    with blas.single():
        threads.lanes(len(tasks), most, lambda _, number: _block(*tasks[number]))
