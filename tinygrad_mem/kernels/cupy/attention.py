"""Attention on the GPU: tiles of scores in a workspace of bounded size, products by cuBLAS. As in ``kernels/numpy``.

float16 operands are multiplied as float16 and accumulated in float32. Concatenated sequences are separated on the host, which
waits once for their cumulative lengths.
"""

# pyright: reportOptionalSubscript=false
from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...dtypes import arithmetic
from ..numpy.attention import _by_head
from ..numpy.attention import check_offsets as _check_offsets
from ..numpy.fast.attention_tiles import grouped
from ..numpy.fast.tiles import cuts
from .attention_tiles import MOST, Job, Space, launch, mask_of, plan, size_of, size_of_means, spots, steps
from .attention_tiles import columns as _columns
from .attention_tiles import dropout as _dropout
from .attention_tiles import sight as _sight
from .blas import gemm


def attention_workspace(q_shape, k_shape, v_shape, dtype, backward):
    """Bytes of workspace: at most 64 MiB, or more for the float16 means of very many rows."""
    sizes = (k_shape[1], q_shape[2], k_shape[2], q_shape[3], v_shape[3], dtype, backward)
    means = size_of_means(q_shape[1], q_shape[2]) if backward and dtype == np.float16 else 0
    tiles = size_of(plan(*sizes, max(MOST - means, MOST // 2)), q_shape[3], v_shape[3], dtype, backward)
    return -(-tiles // 256) * 256 + means  # the means come last, and must begin where a float32 may


def check_offsets(name, offsets, tokens, longest):
    _check_offsets(name, offsets, tokens, longest)


def attention(q, k, v, mask, scale, window, p, ticket, work, out, lse):
    heads = k.shape[1]
    queries, results, sums = (grouped(x, heads) for x in (q, out, lse))
    one = q.shape[1] * q.shape[2] * k.shape[2]
    for b in range(q.shape[0]):
        job = Job(queries[b], k[b], v[b], mask_of(mask, b, heads), scale, window, 0, p, ticket, b * one)
        _forward(job, work, results[b], sums[b])


def varlen_attention(q, k, v, cu_q, cu_k, scale, window, p, ticket, cap, work, out, lse):
    for rows, columns, offset, base in _sequences(cu_q, cu_k, q.shape[1]):
        heads = k.shape[1]
        query, result = (grouped(_by_head(x, rows), heads)[0] for x in (q, out))
        key, value = (_by_head(x, columns)[0] for x in (k, v))
        job = Job(query, key, value, None, scale, window, offset, p, ticket, base, cap)
        _forward(job, work, result, grouped(lse[None, :, rows], heads)[0])


def _sequences(cu_q, cu_k, heads):
    """The rows and columns of each sequence with rows, its offset, and the number of its first score."""
    base = 0
    for rows, columns in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        count, total = rows[1] - rows[0], columns[1] - columns[0]
        if count:
            yield slice(*rows), slice(*columns), total - count, base
        base += heads * count * total


def _forward(job, work, out, lse):
    """For each tile of rows, all visible columns."""
    heads, _, rows, depth = job.q.shape
    width, wide = job.v.shape[2], arithmetic(job.q.dtype)
    cut = plan(heads, rows, job.k.shape[1], depth, width, job.q.dtype, False, work.size)
    for spot in spots(job, cut):
        head, _, part = spot
        query, target, logs, space = job.q[spot], out[spot], lse[spot], Space(work)
        shape = query.shape[:2]
        tops, totals = space.take(shape, wide), space.take(shape, wide)
        sums = space.take((*shape, width), wide)
        before, columns = space.used, _columns(job, part, cut.columns)
        for number, seen in enumerate(columns):
            space.used = before
            tile = (*shape, seen.stop - seen.start)
            scores, weights = space.take(tile, wide), space.take(tile, job.q.dtype)
            gemm(query, job.k[head, seen].transpose(0, 2, 1), scores)
            first, where = np.int32(number == 0), (*spot, seen)
            state = (scores, weights, tops, totals, sums, width, first, *_sight(job, *where), *_dropout(job, *where))
            launch("attention_softmax", job.q, tile, *state)
            gemm(weights, job.v[head, seen], sums, beta=number > 0)
        if not columns:
            for none in (sums, totals, tops):
                none.fill(0)
        state = (tops, totals, sums, width, target, *steps(target), logs, *steps(logs))
        launch("attention_finish", job.q, (*shape, 1), *state)


# --- backward -------------------------------------------------------------------------------------------------------------


class _Grads(NamedTuple):
    """A job's result and sums, the gradient of the result, and the buffers for gradients; ``None`` if not needed."""

    gy: Any
    y: Any
    lse: Any
    inner: Any  # sum(gy * y) for each row, if it is computed from the softmax
    gq: Any
    gk: Any
    gv: Any
    gmask: Any


def attention_backward(gy, q, k, v, mask, y, lse, scale, window, p, ticket, work, gq, gk, gv, gmask):
    heads = k.shape[1]
    one = q.shape[1] * q.shape[2] * k.shape[2]
    queries, seeds, results, sums, goals = (grouped(x, heads) for x in (q, gy, y, lse, gq))
    for b in range(q.shape[0]):
        job = Job(queries[b], k[b], _at(v, b), mask_of(mask, b, heads), scale, window, 0, p, ticket, b * one)
        goal, to_mask = _at(goals, b), mask_of(gmask, b, heads)
        _backward(job, _Grads(seeds[b], _at(results, b), sums[b], None, goal, _at(gk, b), _at(gv, b), to_mask), work)


def varlen_attention_backward(gy, q, k, v, cu_q, cu_k, y, lse, scale, window, p, ticket, cap, work, gq, gk, gv):
    heads = k.shape[1]
    for g in (gq, gk, gv):
        if g is not None:
            g.fill(0)
    for rows, columns, offset, base in _sequences(cu_q, cu_k, q.shape[1]):
        query, seed, result, goal = (_at(grouped(_by_head(x, rows), heads), 0) for x in (q, gy, y, gq))
        key, value, to_key, to_value = (_at(_by_head(x, columns), 0) for x in (k, v, gk, gv))
        job = Job(query, key, value, None, scale, window, offset, p, ticket, base, cap)
        sums = grouped(lse[None, :, rows], heads)[0]
        _backward(job, _Grads(seed, result, sums, None, goal, to_key, to_value, None), work)


def _at(x, index):
    """``x[index]``; ``None`` stays."""
    return None if x is None else x[index]


def _backward(job, grads, work):
    """Half precision is accumulated in the workspace, in two passes: by rows and by columns."""
    heads, groups, rows, depth = job.q.shape
    total, width, dtype = job.k.shape[1], grads.gy.shape[3], job.q.dtype
    half = dtype == np.float16
    room = work.size - (size_of_means(heads * groups, rows) if half else 0)
    cut = plan(heads, rows, total, depth, width, dtype, True, room)
    for g in (grads.gk, grads.gv):
        if g is not None:
            g.fill(0)
    walks = [(grads, False)]
    if half:
        if grads.y is not None:
            grads = grads._replace(inner=Space(work[room:]).take((heads, groups, rows), arithmetic(dtype)))
            _fill_inner(job, grads, cut, work)
        walks = [(grads._replace(gk=None, gv=None), False), (grads._replace(gq=None, gmask=None), True)]
    for head in cuts(0, heads, cut.heads):
        for wanted, by_columns in walks:
            if any(g is not None for g in wanted[4:]):
                (_by_columns if by_columns else _by_rows)(job, wanted, cut, head, work)


def _by_rows(job, grads, cut, heads, work):
    """One pass over rows: it computes gq, and adds to gk and gv, which are in the wide dtype."""
    wide = arithmetic(job.q.dtype)
    for spot in spots(job, cut, heads):
        space = Space(work)
        inner = _inner(job, grads, spot, space)
        total = goal = _at(grads.gq, spot)
        if goal is not None and goal.dtype != wide:
            total = space.take(goal.shape, wide)
        columns = _columns(job, spot[2], cut.columns)
        if total is not None and not columns:
            total.fill(0)
        before = space.used
        for number, seen in enumerate(columns):
            space.used = before
            to_key, to_value = (_at(g, (heads, seen)) for g in (grads.gk, grads.gv))
            scaled = _tile(job, grads, (*spot, seen), inner, to_key, to_value, space)
            if total is not None:
                gemm(scaled, job.k[heads, seen], total, beta=number > 0)
        if total is not goal:
            cupy.copyto(goal, total, casting="unsafe")


def _by_columns(job, grads, cut, heads, work):
    """One pass over columns: it accumulates gk and gv in the wide dtype."""
    wide = arithmetic(job.q.dtype)
    for whole in cuts(0, job.k.shape[1], cut.columns):
        outer = Space(work)
        goals = [_at(g, (heads, whole)) for g in (grads.gk, grads.gv)]
        sums = [None if g is None else outer.take(g.shape, wide) for g in goals]
        for total in sums:
            if total is not None:
                total.fill(0)
        for spot in spots(job, cut, heads):
            for seen in _columns(job, spot[2], cut.columns):
                if seen.start == whole.start:
                    space = Space(work)
                    space.used = outer.used
                    inner = _inner(job, grads, spot, space)
                    to_key, to_value = (_at(t, (slice(None), slice(seen.stop - seen.start))) for t in sums)
                    _tile(job, grads, (*spot, seen), inner, to_key, to_value, space)
        for goal, total in zip(goals, sums, strict=True):
            if goal is not None:
                cupy.copyto(goal, total, casting="unsafe")


def _fill_inner(job, grads, cut, work):
    """grads.inner = sum(gy * y) for each row, computed from the softmax, before y was rounded. As on the CPU."""
    grads.inner.fill(0)
    for spot in spots(job, cut):
        inner, space = grads.inner[spot], Space(work)
        totals, columns = space.take(inner.shape, inner.dtype), _columns(job, spot[2], cut.columns)
        totals.fill(0)
        before = space.used
        for seen in columns:
            space.used = before
            where = (*spot, seen)
            softmax, slopes, _ = _softmax(job, grads, where, space)
            gemm(grads.gy[spot], job.v[spot[0], seen].transpose(0, 2, 1), slopes)
            last = np.int32(seen is columns[-1])
            state = (softmax, slopes, inner, *steps(inner), totals, last, *_dropout(job, *where))
            launch("attention_means", job.q, softmax.shape, *state)


def _inner(job, grads, spot, space):
    """The sums of gy * y of some rows; ``None`` if the scores' gradient is not needed."""
    if grads.y is None:
        return None
    if grads.inner is not None:
        return grads.inner[spot]
    gy, y = grads.gy[spot], grads.y[spot]
    found = space.take(gy.shape[:2], arithmetic(y.dtype))
    launch("attention_inner", job.q, (*gy.shape[:2], 1), gy, *steps(gy), y, *steps(y), y.shape[2], found)
    return found


def _softmax(job, grads, where, space):
    """The softmax of a tile, a buffer for the gradient of its scores, and its weights after dropout."""
    head, group, part, seen = where
    query, lse, wide = job.q[head, group, part], grads.lse[head, group, part], arithmetic(job.q.dtype)
    tile = (*query.shape[:2], seen.stop - seen.start)
    scores, slopes, weights = space.take(tile, wide), space.take(tile, wide), space.take(tile, job.q.dtype)
    gemm(query, job.k[head, seen].transpose(0, 2, 1), scores)
    sight, drop = _sight(job, *where), _dropout(job, *where)
    launch("attention_weights", job.q, tile, scores, weights, lse, *steps(lse), *sight, *drop)
    return scores, slopes, weights


def _tile(job, grads, where, inner, gk, gv, space):
    """Add a tile's part to gk and gv. Returns the gradient of its products q @ k.T."""
    head, group, part, seen = where
    query, gy = job.q[head, group, part], grads.gy[head, group, part]
    softmax, slopes, weights = _softmax(job, grads, where, space)
    if gv is not None:
        gemm(weights.transpose(0, 2, 1), gy, gv, beta=1)
    if inner is None:
        return None
    gemm(gy, job.v[head, seen].transpose(0, 2, 1), slopes)
    lse, how = grads.lse[head, group, part], (float(job.scale), float(job.cap or 0))
    state = (softmax, slopes, weights, inner, *steps(inner), *how, lse, *steps(lse), *_dropout(job, *where))
    launch("attention_slopes", job.q, slopes.shape, *state)
    if grads.gmask is not None:
        _add_to_mask(job, grads.gmask, slopes, where)
    if gk is not None:
        gemm(weights.transpose(0, 2, 1), query, gk, beta=1)
    return weights


def _add_to_mask(job, gmask, slopes, where):
    """gmask (head or 1, group or 1, row, column) += slopes."""
    head, group, part, seen = where
    found = gmask[:, group if gmask.shape[1] > 1 else 0][head if gmask.shape[0] > 1 else slice(0, 1), part, seen]
    step = found.strides[0] // found.itemsize if gmask.shape[0] > 1 else 0
    launch("attention_mask", job.q, slopes.shape, slopes, found, step, found.strides[1] // found.itemsize)
