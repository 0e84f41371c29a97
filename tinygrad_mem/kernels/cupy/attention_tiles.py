"""Parts of attention on the GPU: tiles of scores, their workspace, and the arguments of its kernels."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import cupy
import numpy as np

from ...dtypes import arithmetic
from ..numpy.fast.attention_tiles import visible
from ..numpy.fast.tiles import cuts
from . import raw
from .attention_source import SOURCE

MOST = 64 << 20  # bytes of workspace, at most
_SIDE = 1024  # rows and columns of a tile, at most
_THREADS = 128
_GAPS = 8 * 256  # most bytes of padding between arrays in the workspace


class TileSizes(NamedTuple):
    """A tile: heads, rows, columns."""

    heads: int
    rows: int
    columns: int


def size_of(cut, depth, width, dtype, backward):
    """The bytes of the workspace: tiles of scores, sums, statistics."""
    wide, lines = arithmetic(dtype).itemsize, cut.heads * cut.rows
    scores = lines * cut.columns
    total = scores * (wide * (1 + backward) + dtype.itemsize) + 2 * lines * wide
    if not backward:
        total += lines * width * wide
    elif dtype == np.float16:
        total += cut.heads * (cut.rows * depth + cut.columns * (depth + width)) * wide
    return total + _GAPS


def plan(heads, rows, columns, depth, width, dtype, backward, room=MOST):
    """The largest tile within ``room`` bytes. Shorter sequences use the workspace of the longest."""
    rows, columns = min(max(rows, 1), _SIDE), min(max(columns, 1), _SIDE)
    while size_of(TileSizes(1, rows, columns), depth, width, dtype, backward) > room and rows * columns > 1:
        rows, columns = -(-rows // 2), -(-columns // 2)
    one = size_of(TileSizes(1, rows, columns), depth, width, dtype, backward)
    return TileSizes(max(min(max(heads, 1), (room - _GAPS) // (one - _GAPS)), 1), rows, columns)


def size_of_means(heads, rows):
    """Bytes of sum(gy * y) of each row of a batch, which half precision keeps: a float32 each."""
    return -(-4 * heads * rows // 256) * 256


class Space:
    """The workspace, given out in pieces."""

    def __init__(self, work):
        self.work, self.used = work, 0

    def take(self, shape, dtype):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found = self.work[self.used : self.used + count].view(dtype).reshape(shape)
        self.used += -(-count // 256) * 256
        return found


class Job(NamedTuple):
    """One batch of one attention: q, y, gy (head, group, row, E), k and v (head, column, E), mask (head or 1, group or 1, row
    or 1, column or 1); row i is at column i + ``offset``; ``base`` is the number of its first score, for dropout; ``cap``
    bounds the scores, unless it is ``None``."""

    q: Any
    k: Any
    v: Any
    mask: Any
    scale: float
    window: tuple
    offset: int
    p: float
    ticket: tuple
    base: int
    cap: float | None = None


def launch(name, x, shape, *arguments):
    """Run a kernel with a warp for each row of a tile of ``shape``."""
    heads, rows, columns = map(int, shape)
    lines = rows * columns / 32 if name == "attention_mask" else heads * rows
    meanings = raw.types(x.dtype.char) | {"LANES": 32}
    raw.launch(SOURCE, name, meanings, int(lines + 1) * 32, *arguments, heads, rows, columns, threads=_THREADS)


def steps(a):
    """Strides in elements, without that of the last axis, which is contiguous."""
    return tuple(s // a.itemsize for s in a.strides[:-1])


def mask_of(mask, batch, heads):
    """The mask of one batch by key head."""
    if mask is None:
        return None
    mask = mask[batch if mask.shape[0] > 1 else 0]
    return mask[None] if mask.shape[0] == 1 else mask.reshape(heads, -1, *mask.shape[1:])


def sight(job, head, group, rows, columns):
    """The arguments that say which columns the rows of a tile see."""
    left, right = (-1 if n is None else int(n) for n in job.window)
    tail = (float(job.scale), float(job.cap or 0), rows.start + job.offset, columns.start, left, right)
    if job.mask is None:
        return (None, np.int32(0), 0, 0, 0, *tail)
    full = (head.stop - head.start, rows.stop - rows.start, columns.stop - columns.start)
    wanted = (head, slice(group, group + 1), rows, columns)
    index = [slice(0, 1) if n == 1 else part for n, part in zip(job.mask.shape, wanted, strict=True)]
    part = cupy.broadcast_to(job.mask[tuple(index)][:, 0], full)
    kind = np.int32(1 if part.dtype == np.bool_ else 2)
    return (part, kind, *(s // part.itemsize for s in part.strides), *tail)


def dropout(job, head, group, rows, columns):
    """The arguments of dropout of a tile."""
    _, groups, total_rows, _ = job.q.shape
    total = job.k.shape[1]
    one = total_rows * total
    base = job.base + (head.start * groups + group) * one + rows.start * total + columns.start
    seed, call = job.ticket
    return (float(job.p), np.uint64(seed), np.uint64(call), base, groups * one, total)


def columns(job, rows, size):
    """The tiles of columns that some of these rows see."""
    return visible(job.window, job.offset, rows, job.k.shape[1], size)


def spots(job, cut, heads=None):
    """(heads, group, rows) of each tile of rows; only those of ``heads``, if given."""
    _, groups, rows, _ = job.q.shape
    return product([heads] if heads else cuts(0, job.q.shape[0], cut.heads), range(groups), cuts(0, rows, cut.rows))
