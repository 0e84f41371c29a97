"""Attention in tiles: the scores of all tokens with all others are never in memory at once, neither forward nor backward.

Forward walks over the columns (keys) of each tile of rows (queries) and keeps the running maximum, the running sum of
e**(score - maximum) and the running result; what remains of the scores is ``lse``, the logarithm of the sum, one number a row.
Backward computes each tile's scores again, and with ``lse`` their softmax. Half precision is computed in float32.

Source: Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not
need O(n^2) memory*, 2021; Dao et al., *FlashAttention*, 2022, and *FlashAttention-2*, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass as _dataclass
from itertools import pairwise as _pairwise
from math import prod as _prod
from typing import Any as _Any

import numpy as np

from ...dtypes import is_half as _is_half
from ...errors import ArgumentError as _ArgumentError
from ...errors import ShapeError as _ShapeError
from .attention_tiles import Job as _Job
from .attention_tiles import Sight as _Sight
from .attention_tiles import Space as _Space
from .attention_tiles import add_product as _add_product
from .attention_tiles import add_to_mask as _add_to_mask
from .attention_tiles import add_up as _add_up
from .attention_tiles import cuts as _cuts
from .attention_tiles import drop as _drop
from .attention_tiles import exponentials as _exponentials
from .attention_tiles import largest as _largest
from .attention_tiles import mask_index as _mask_index
from .blas import single as _single
from .threads import lanes as _lanes

_WORTH = 1 << 22  # multiplications that pay for a thread of their own


def attention_workspace(q_shape, k_shape, v_shape, dtype, backward):
    """Bytes of workspace: tiles lie in the scratch of the threads, but backward of float16 has a float32 number a row."""
    return 4 * _prod(q_shape[:3]) if backward and _is_half(dtype) else 0


def check_offsets(name, offsets, tokens, longest):
    """Refuse what does not say where sequences begin: from 0 to the number of tokens, never back, none beyond the longest."""
    found = offsets.tolist()
    if not found or found[0] != 0 or found[-1] != tokens:
        raise _ShapeError(
            f"varlen_attn: {name} begins with 0 and ends with the number of tokens, {tokens}; found {_short(found)}"
        )
    lengths = [b - a for a, b in _pairwise(found)]
    if min(lengths, default=0) < 0:
        raise _ArgumentError(
            f"varlen_attn: {name} must not decrease: sequence n lasts from {name}[n] to {name}[n + 1]; found {_short(found)}"
        )
    if max(lengths, default=0) > longest:
        raise _ArgumentError(
            f"varlen_attn: the longest sequence of {name} has {max(lengths)} tokens, more than max_{name[-1]}={longest}"
        )


def _short(values):
    return f"{values[:4]} ... {values[-2:]}" if len(values) > 8 else str(values)


def _grouped(q, heads):
    """(batch, head, row, E) by key head: (batch, key head, group, row, E); ``None`` stays."""
    return None if q is None else q.reshape(q.shape[0], heads, q.shape[1] // max(heads, 1), *q.shape[2:])


def _mask_view(mask, heads):
    """(batch or 1, head or 1, row or 1, column or 1) by key head."""
    return mask[:, None] if mask is not None and mask.shape[1] == 1 else _grouped(mask, heads)


def _job(q, k, v, mask, width, scale, window, offset, p, ticket, first=0):
    heads = k.shape[1]
    return _Job(_grouped(q, heads), k, v, _mask_view(mask, heads), scale, window, offset, p, ticket, width, first)


def _lengths(jobs_of, cu_q, cu_k):
    """The results of ``jobs_of(rows, columns, number of the first tile)`` of each sequence with rows: tuples, job first."""
    first = 0
    for rows, columns in zip(_pairwise(cu_q.tolist()), _pairwise(cu_k.tolist()), strict=True):
        if rows[1] > rows[0]:
            made = jobs_of(slice(*rows), slice(*columns), first)
            first += made[0].tiles()
            yield made


def attention(q, k, v, mask, scale, window, p, ticket, work, out, lse):
    """out = softmax(q @ k.T * scale + mask) @ v; lse = the logarithms of the softmax's sums, inf where a row sees nothing.

    q (batch, head, row, E); k, v (batch, key head, column, E or Ev): key heads divide heads; mask (batch or 1, head or 1, row
    or 1, column or 1). Row i sees columns i - window[0] to i + window[1], ``None`` for all. p and ticket: dropout.
    """
    _forward([(_job(q, k, v, mask, v.shape[3], scale, window, 0, p, ticket), out, lse)])


def varlen_attention(q, k, v, cu_q, cu_k, scale, window, p, ticket, work, out, lse):
    """:func:`attention` of sequences one behind the other: q, k, v, out (token, head, E), lse (head, token); rows cu_q[n] to
    cu_q[n + 1] see columns cu_k[n] to cu_k[n + 1], the last row of a sequence being at its last column."""

    def job(rows, columns, first):
        made = _sequence(q, k, v, v.shape[2], rows, columns, scale, window, p, ticket, first)
        return made, _by_head(out, rows), lse[None, :, rows]

    _forward(list(_lengths(job, cu_q, cu_k)))


def _sequence(q, k, v, width, rows, columns, *how):
    """The job of one sequence; its last row is at its last column."""
    scale, window, p, ticket, first = how
    offset = (columns.stop - columns.start) - (rows.stop - rows.start)
    parts = (_by_head(q, rows), _by_head(k, columns), _by_head(v, columns))
    return _job(*parts, None, width, scale, window, offset, p, ticket, first)


def _by_head(x, tokens):
    """(token, head, E) as (1, head, token, E), of these tokens; ``None`` stays."""
    return None if x is None else x[tokens].transpose(1, 0, 2)[None]


def _part(x, index):
    """``x[index]``; ``None`` stays."""
    return None if x is None else x[index]


def _forward(jobs):
    tasks = []
    for job, out, lse in jobs:
        heads = job.k.shape[1]
        grouped, sums = _grouped(out, heads), _grouped(lse, heads)
        tasks += [(job, at, grouped, sums) for block in job.blocks() for at in job.spots(*block)]

    with _single():
        _lanes(len(tasks), len(tasks) // _grain(jobs, len(tasks)), lambda _, number: _rows(*tasks[number]))


def _grain(jobs, tasks):
    """The number of tasks that pay for a thread."""
    job = max((job for job, *_ in jobs), key=lambda job: job.q.size, default=None)
    if job is None or not tasks:
        return 1
    total = sum(job.q.size * job.k.shape[2] for job, *_ in jobs)
    return max(_WORTH * tasks // max(total, 1), 1)


def _rows(job, at, out, lse):
    """One tile of rows against all columns that they see."""
    space, wide = _Space(), job.wide
    sight = _Sight(job, at, space)
    target = out[at.batch, at.head, at.group, at.rows]
    top, new, total, part = (space.take((*sight.lead, 1), wide) for _ in range(4))
    result = target if target.dtype == wide else space.take(target.shape, wide)
    columns = job.columns(at.rows)
    more = space.take(target.shape, wide)
    before, calm = space.used, sight.calm(columns)
    for number, cut in enumerate(columns):
        space.used = before
        key, value = (space.cast(x[at.batch, at.head, cut], wide) for x in (job.k, job.v))
        scores = sight.scores(key, cut)
        if calm:
            np.exp(scores, out=scores)
        elif number == 0:
            _largest(scores, top)
            _exponentials(scores, top)
        else:
            _largest(scores, new)
            np.maximum(new, top, out=new)
            np.subtract(top, new, out=part)
            np.exp(part, out=part)  # what has been summed counts so much less
            np.multiply(total, part, out=total)
            np.multiply(result, part, out=result)
            top, new = new, top
            _exponentials(scores, top)
        _add_up(scores, part if number else total)
        if number:
            np.add(total, part, out=total)
        if job.p:
            _drop(scores, sight.kept(cut), job.p, scores)
        np.matmul(scores, value, out=more if number else result)
        if number:
            np.add(result, more, out=result)
    if not columns:
        for none in (result, total, top):
            none.fill(0)
    _finish(space, result, total, None if calm else top, target, lse[at.batch, at.head, at.group, at.rows, None])


def _finish(space, result, total, top, target, lse):
    """target = result / total and lse = top + ln(total), where top is 0 if ``None``; a total of 0 counts as inf: 0, and inf."""
    if np.minimum.reduce(total, axis=None) == 0:
        none = space.take(total.shape, np.bool_)
        np.equal(total, 0, out=none)
        np.copyto(total, np.inf, where=none)
    np.divide(result, total, out=target, casting="unsafe")
    np.log(total, out=lse)
    if top is not None:
        np.add(lse, top, out=lse)


# --- backward -------------------------------------------------------------------------------------------------------------


def attention_backward(gy, q, k, v, mask, y, lse, scale, window, p, ticket, work, gq, gk, gv, gmask):
    """gq, gk, gv = the gradients; gmask += the mask's (batch or 1, head or 1, row, column), in the wide dtype.

    Those that are ``None`` are not wanted; v and y may be ``None`` where only gv is.
    """
    job, heads = _job(q, k, v, mask, gy.shape[3], scale, window, 0, p, ticket), k.shape[1]
    sums = _sums(work, y, lse)
    gy, y, lse, gq, sums = (_grouped(g, heads) for g in (gy, y, lse, gq, sums))
    _backward([_Gradients(job, gy, y, lse, sums, gq, gk, gv, _mask_view(gmask, heads))])


def varlen_attention_backward(gy, q, k, v, cu_q, cu_k, y, lse, scale, window, p, ticket, work, gq, gk, gv):
    """:func:`attention_backward` of sequences one behind the other; what is in no sequence gets 0."""
    for g in (gq, gk, gv):
        if g is not None:
            g.fill(0)
    heads, inner = k.shape[1], _sums(work, y, lse)

    def job(rows, columns, first):
        made = _sequence(q, k, v, gy.shape[2], rows, columns, scale, window, p, ticket, first)
        grad, result, goal = (_grouped(_by_head(x, rows), heads) for x in (gy, y, gq))
        sums, own = (_grouped(None if x is None else x[None, :, rows], heads) for x in (lse, inner))
        return made, _Gradients(made, grad, result, sums, own, goal, _by_head(gk, columns), _by_head(gv, columns), None)

    _backward([gradients for _, gradients in _lengths(job, cu_q, cu_k)])


def _sums(work, y, lse):
    """A place for sum(gy * y) of each row in half precision: of a rounded y it would be as far off as the gradient is."""
    return None if y is None or y.dtype == lse.dtype else work.view(lse.dtype)[: lse.size].reshape(lse.shape)


@_dataclass(frozen=True)
class _Gradients:
    """A job, the gradient of its result, and where gradients go: arrays as in the job, ``None`` where none is wanted."""

    job: _Job
    gy: _Any
    y: _Any
    lse: _Any
    inner: _Any  # sum(gy * y), row by row, where it is made of the softmax
    gq: _Any
    gk: _Any
    gv: _Any
    gmask: _Any


def _backward(all_gradients):
    tasks = [(g, block) for g in all_gradients for block in g.job.blocks()]
    shared = any(g.gmask is not None for g in all_gradients)  # several blocks add to one mask

    most = 1 if shared else len(tasks) // _grain([(g.job,) for g in all_gradients], len(tasks))
    with _single():
        _lanes(len(tasks), most, lambda _, number: _block(*tasks[number]))


def _block(g, block):
    """The gradients of some batches and heads. Half precision is added up in scratch: columns have a walk of their own."""
    for grad in (g.gk, g.gv):
        if grad is not None:
            grad[block].fill(0)
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
    """g.inner = the means of the softmax's gradient, weighted by it: sum(gy * y) before y was rounded.

    Over the sum of these very weights, which lse makes 1 but for its own rounding, so that what they are off by cancels.
    """
    job, wide = g.job, g.job.wide
    for at in job.spots(*block):
        space = _Space()
        view = _View(g, at, space)
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
        np.maximum(total, np.finfo(wide).tiny, out=total)  # a row that sees nothing
        np.divide(view.inner[..., 0], total, out=view.inner[..., 0])


def _by_rows(g, block, gk, gv):
    """Rows by rows: gq is finished row by row, gk and gv are added to."""
    job, wide = g.job, g.job.wide
    only = job.q.shape[2] == 1 and job.q.shape[3] <= job.plan.rows  # no other rows add to the same columns
    for at in job.spots(*block):
        space = _Space()
        view = _View(g, at, space)
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
            slopes = view.gradients(key, value, cut, _part(gk, here), _part(gv, here), only)
            if g.gmask is not None:
                _add_to_mask(slopes, g.gmask[_mask_index(g.gmask, at, cut)])
            if total is not None:
                _add_product(slopes, key, total, space, number == 0)
        if total is not None:
            np.multiply(total, job.scale, out=target, casting="unsafe")


def _by_columns(g, block):
    """Columns by columns: gk and gv, added up in the wide dtype."""
    job, wide = g.job, g.job.wide
    for whole in _cuts(job.k.shape[2], job.plan.columns):
        outer = _Space()
        here = (*block, whole)
        sums = [None if x is None else outer.take(x[here].shape, wide) for x in (g.gk, g.gv)]
        for total in sums:
            if total is not None:
                total.fill(0)
        for at in job.spots(*block):
            for cut in job.columns(at.rows):
                if cut.start == whole.start:
                    space = _Space(outer.used)
                    view = _View(g, at, space)
                    count = cut.stop - cut.start
                    seen = (at.batch, at.head, cut)
                    key, value = (None if x is None else space.cast(x[seen], wide) for x in (job.k, job.v))
                    front = (slice(None), slice(None), slice(count))
                    view.gradients(key, value, cut, *[_part(x, front) for x in sums], only=False)
        for total, grad in zip(sums, (g.gk, g.gv), strict=True):
            if total is not None:
                np.copyto(grad[here], total, casting="unsafe")


class _View:
    """A tile of rows in backward: its queries, the gradient of its result, and the sums over its columns."""

    def __init__(self, g, at, space):
        job, wide = g.job, g.job.wide
        self.job, self.space = job, space
        self.sight = _Sight(job, at, space)
        where = (at.batch, at.head, at.group, at.rows)
        self.gy = space.cast(g.gy[where], wide)
        self.lse = g.lse[where][..., None]
        self.inner: _Any = None
        if g.inner is not None:
            self.inner = g.inner[where][..., None]
        elif g.y is not None:
            self.inner = space.take((*self.sight.lead, 1), wide)  # of the softmax's gradient: sum(gy * y), row by row
            before = space.used
            np.vecdot(self.gy, space.cast(g.y[where], wide), out=self.inner[..., 0])
            space.used = before

    def softmax(self, key, value, cut):
        """The softmax of a tile, and its gradient."""
        weights, spare = self.sight.scores(key, cut), self.sight.spare(cut)
        _exponentials(weights, self.lse)
        np.matmul(self.gy, value.swapaxes(-1, -2), out=spare)
        if self.job.p:
            _drop(spare, self.sight.kept(cut), self.job.p, spare)
        return weights, spare

    def gradients(self, key, value, cut, gk, gv, only):
        """Add to gk and gv, or write them if no other rows do; the scores' gradient, ``None`` where only gv is wanted."""
        sight, p = self.sight, self.job.p
        weights = sight.scores(key, cut)
        _exponentials(weights, self.lse)
        spare = sight.spare(cut)
        kept = sight.kept(cut) if p else None
        if gv is not None:
            used = weights
            if kept is not None:
                used = spare
                _drop(weights, kept, p, used)
            _add_product(used.swapaxes(-1, -2), self.gy, gv, self.space, only)
        if self.inner is None:
            return None
        np.matmul(self.gy, value.swapaxes(-1, -2), out=spare)
        if kept is not None:
            _drop(spare, kept, p, spare)
        np.subtract(spare, self.inner, out=spare)
        np.multiply(spare, weights, out=spare)
        if gk is not None:
            _add_product(spare.swapaxes(-1, -2), sight.query, gk, self.space, only)
        return spare
