"""Attention forward, tile by tile: each tile of queries walks over the keys, with a running maximum, sum and result.

Source: Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Rabe and Staats, *Self-attention does not
need O(n^2) memory*, 2021; Dao et al., *FlashAttention*, 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import blas, threads
from .attention_tiles import Sight, Space, add_up, drop, exponentials, grouped, largest

WORTH = 1 << 22  # multiplications that are worth a thread
_FAR = 1e8


def grain(jobs, tasks):
    """The number of tasks that are worth a thread."""
    job = max((job for job, *_ in jobs), key=lambda job: job.q.size, default=None)
    if job is None or not tasks:
        return 1
    total = sum(job.q.size * job.k.shape[2] for job, *_ in jobs)
    return max(WORTH * tasks // max(total, 1), 1)


def _rows(job, at, out, lse):
    """One tile of rows with all its visible columns: first without their maxima, which take a quarter of the time."""
    space, wide = Space(), job.wide
    sight = Sight(job, at, space)
    target = out[at.batch, at.head, at.group, at.rows]
    sums = _Sums(*[space.take((*sight.lead, 1), wide) for _ in range(4)])
    result = target if target.dtype == wide else space.take(target.shape, wide)
    more = space.take(target.shape, wide)
    _add_columns(sight, space, result, more, sums, plainly=True)
    if not _is_near(sums.total):
        _add_columns(sight, space, result, more, sums, plainly=False)
    _finish(space, result, sums.total, sums.top, target, lse[at.batch, at.head, at.group, at.rows, None])


class _Sums(NamedTuple):
    """For each row: the largest score so far, a new one, the sum of e**(score - largest), and a tile's part of it."""

    top: np.ndarray
    new: np.ndarray
    total: np.ndarray
    part: np.ndarray


def _is_near(total):
    """True if the sums of e**score are far from the ends of float32's range, times any values."""
    return np.minimum.reduce(total, axis=None) >= 1 / _FAR and np.maximum.reduce(total, axis=None) <= _FAR


def _add_columns(sight, space, result, more, sums, plainly):
    """result = the sum of e**(score - top) * value, where top is 0 if ``plainly``; fill ``sums``."""
    (top, new, total, part), job, at = sums, sight.job, sight.at
    for none in (result, total, top):
        none.fill(0)
    before = space.used
    for number, cut in enumerate(job.columns(at.rows)):
        space.used = before
        key, value = (space.cast(x[at.batch, at.head, cut], job.wide) for x in (job.k, job.v))
        scores = sight.scores(key, cut)
        if plainly:
            np.exp(scores, out=scores)
        elif number == 0:
            largest(scores, top)
            exponentials(scores, top)
        else:
            largest(scores, new)
            np.maximum(new, top, out=new)
            np.subtract(top, new, out=part)
            np.exp(part, out=part)  # rescale the sums so far to the new maximum
            np.multiply(total, part, out=total)
            np.multiply(result, part, out=result)
            np.copyto(top, new)
            exponentials(scores, top)
        add_up(scores, part if number else total)
        if number:
            np.add(total, part, out=total)
        if job.p:
            drop(scores, sight.kept(cut), job.p, scores)
        np.matmul(scores, value, out=more if number else result)
        if number:
            np.add(result, more, out=result)
    space.used = before


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
