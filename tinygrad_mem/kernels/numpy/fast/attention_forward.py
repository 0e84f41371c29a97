"""Attention forward, tile by tile: each tile of queries walks over the keys, with a running maximum, sum and result.

Source: Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not
need O(n^2) memory*, 2021; Dao et al., *FlashAttention*, 2022.
"""

from __future__ import annotations

import numpy as np

from . import blas, threads
from .attention_tiles import Sight, Space, add_up, drop, exponentials, grouped, largest

WORTH = 1 << 22  # multiplications that are worth a thread


def grain(jobs, tasks):
    """The number of tasks that are worth a thread."""
    job = max((job for job, *_ in jobs), key=lambda job: job.q.size, default=None)
    if job is None or not tasks:
        return 1
    total = sum(job.q.size * job.k.shape[2] for job, *_ in jobs)
    return max(WORTH * tasks // max(total, 1), 1)


def _rows(job, at, out, lse):
    """One tile of rows with all its visible columns: the result and the sums so far are rescaled to each new maximum."""
    space, wide = Space(), job.wide
    sight = Sight(job, at, space)
    target = out[at.batch, at.head, at.group, at.rows]
    top, new, total, part = (space.take((*sight.lead, 1), wide) for _ in range(4))
    result = target if target.dtype == wide else space.take(target.shape, wide)
    more = space.take(target.shape, wide)
    result.fill(0)
    total.fill(0)
    top.fill(np.finfo(wide).min)
    before = space.used
    for cut in job.columns(at.rows):
        space.used = before
        key, value = (space.cast(x[at.batch, at.head, cut], wide) for x in (job.k, job.v))
        scores = sight.scores(key, cut)
        largest(scores, new)
        np.maximum(new, top, out=new)
        np.subtract(top, new, out=part)
        np.exp(part, out=part)
        np.multiply(total, part, out=total)
        np.multiply(result, part, out=result)
        np.copyto(top, new)
        exponentials(scores, top)
        add_up(scores, part)
        np.add(total, part, out=total)
        if job.p:
            drop(scores, sight.kept(cut), job.p, scores)
        np.matmul(scores, value, out=more)
        np.add(result, more, out=result)
    space.used = before
    _finish(space, result, total, top, target, lse[at.batch, at.head, at.group, at.rows, None])


def _finish(space, result, total, top, target, lse):
    """target = result / total and lse = top + ln(total); a total of 0 counts as inf: 0, and inf."""
    if np.minimum.reduce(total, axis=None) == 0:
        none = space.take(total.shape, np.bool_)
        np.equal(total, 0, out=none)
        np.copyto(total, np.inf, where=none)
    np.divide(result, total, out=target, casting="unsafe")
    np.log(total, out=lse)
    np.add(lse, top, out=lse)


def forward(jobs):
    """Fill out and lse of each (job, out, lse), with the tiles of rows on several cores."""
    tasks = []
    for job, out, lse in jobs:
        heads = job.k.shape[1]
        outs, sums = grouped(out, heads), grouped(lse, heads)
        tasks += [(job, at, outs, sums) for block in job.blocks() for at in job.spots(*block)]

    with blas.single():
        threads.lanes(len(tasks), len(tasks) // grain(jobs, len(tasks)), lambda _, number: _rows(*tasks[number]))
