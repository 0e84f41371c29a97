"""Parts of the attention kernels: the tiles of a job, the scores of a tile, and its buffers.

A tile is some batches, some key heads with their query heads, some rows (queries) and some columns (keys). All buffers of a
tile are in the scratch of the running thread, so the memory of attention does not depend on the number of tokens. The tiles of
a job depend on its shapes only. So forward and backward, with any number of threads, have the same tiles and draw the same
dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ....dtypes import arithmetic, is_half
from . import philox
from .threads import SCRATCH, scratch
from .tiles import cuts

_TILE = 1 << 17  # scores of one tile in float32: 512 KiB, of which there are two
_ROWS, _COLUMNS = 128, 512  # at most
_FEW = 64  # rows up to which a tile is not split, although smaller tiles could skip columns
_REACH = _ROWS + _COLUMNS  # more than any distance of a row and a column in a tile
_STREAM = 2  # the part of Philox's counter for attention; dropout of activations uses 1
_ONES = {size: np.ones((_COLUMNS, 1), f"f{size}") for size in (4, 8)}
_STEP = {size: np.repeat(np.array([0, -np.inf], f"f{size}"), _REACH) for size in (4, 8)}
_LOWEST = {4: float(np.finfo(np.float32).min), 8: float(np.finfo(np.float64).min)}


class TileSizes(NamedTuple):
    """The size of a tile."""

    batches: int
    heads: int
    rows: int
    columns: int


@dataclass(frozen=True)
class Job:
    """One attention of dense arrays, by key head: q (batch, head, group, row, E), k and v (batch, head, column, E or Ev).

    Attributes:
        mask: the same five axes, each of full size or 1: bool (True: visible) or numbers to add to the scores; or ``None``.
        window: the number of visible columns before and after a row's own, ``None``: all. Row i is at column i + ``offset``.
        p: the probability of dropout; the masks come from ``ticket`` and ``first``, the number of the first tile.
        width: Ev; v may be ``None`` in backward.
        cap: scores become tanh(score / cap) * cap, unless it is ``None``; without a mask.
    """

    q: Any
    k: Any
    v: Any
    mask: Any
    scale: float
    window: tuple[int | None, int | None]
    offset: int
    p: float
    ticket: tuple[int, int]
    width: int
    cap: float | None = None
    first: int = 0

    @property
    def wide(self) -> np.dtype:
        """The dtype of the arithmetic: float32, or float64 for float64."""
        return arithmetic(self.q.dtype)

    @cached_property
    def plan(self) -> TileSizes:
        return plan(self.q.shape, self.k.shape[2], self.width, self.q.dtype, self.window[1] is not None)

    def tiles(self) -> int:
        """The number of tiles of the job, including skipped ones."""
        cut = self.plan
        counts = (*self.q.shape[:4], self.k.shape[2])
        sizes = (cut.batches, cut.heads, 1, cut.rows, cut.columns)
        return prod(-(-n // size) for n, size in zip(counts, sizes, strict=True))

    def number(self, at: Spot, columns: slice) -> int:
        """The number of a tile."""
        cut, (_, heads, groups, rows, _), total = self.plan, self.q.shape, self.k.shape[2]
        found = at.batch.start // cut.batches
        found = found * -(-heads // cut.heads) + at.head.start // cut.heads
        found = found * groups + at.group
        found = found * -(-rows // cut.rows) + at.rows.start // cut.rows
        return self.first + found * -(-total // cut.columns) + columns.start // cut.columns

    def blocks(self) -> list[tuple[slice, slice]]:
        """The batches and heads of each tile."""
        batches, heads = self.q.shape[:2]
        return [(b, h) for b in cuts(0, batches, self.plan.batches) for h in cuts(0, heads, self.plan.heads)]

    def spots(self, batch: slice, head: slice) -> Iterator[Spot]:
        """The rows of a block, tile by tile."""
        for group in range(self.q.shape[2]):
            for rows in cuts(0, self.q.shape[3], self.plan.rows):
                yield Spot(batch, head, group, rows)

    def columns(self, rows: slice) -> list[slice]:
        """The tiles of columns that are visible to some of these rows."""
        return visible(self.window, self.offset, rows, self.k.shape[2], self.plan.columns)


class Spot(NamedTuple):
    """The place of a tile's rows."""

    batch: slice
    head: slice
    group: int
    rows: slice


def grouped(q: Any, heads: int) -> Any:
    """(batch, head, row, E) by key head: (batch, key head, group, row, E); ``None`` stays."""
    return None if q is None else q.reshape(q.shape[0], heads, q.shape[1] // max(heads, 1), *q.shape[2:])


def visible(window: tuple, offset: int, rows: slice, total: int, size: int) -> list[slice]:
    """Tiles of ``size`` of ``total`` columns that some of these rows see: ``window`` and ``offset`` as a job has them."""
    low, high = 0, total
    if window[0] is not None:
        low = min(max(rows.start + offset - window[0], 0), total)
    if window[1] is not None:
        high = min(max(rows.stop + offset + window[1], 0), total)
    return cuts(low // size * size, high, size)


@lru_cache
def plan(q_shape: tuple[int, ...], total: int, width: int, dtype: np.dtype, ahead: bool = False) -> TileSizes:
    """The largest tile that fits into the scratch of a thread: whole batches, else some heads, rows and columns.

    If rows do not see the columns ``ahead`` of them, there are at least two tiles of rows, so that the first can skip columns.
    """
    batches, heads, _, rows, depth = (max(n, 1) for n in q_shape)
    columns, rows, width = min(max(total, 1), _COLUMNS), min(rows, _ROWS), max(width, 1)
    if ahead:
        rows = min(rows, max(-(-total // 2), _FEW))
    most = _TILE * 4 // max(dtype.itemsize, 4)

    def fits(count: int) -> bool:
        return count * rows * columns <= most and needed(count, rows, columns, depth, width, dtype) <= SCRATCH

    while not fits(1):
        if columns > rows:
            columns = -(-columns // 2)
        else:
            rows = -(-rows // 2)
    count = next(n for n in range(min(heads * batches, 1 << 10), 0, -1) if fits(n))
    return TileSizes(max(count // heads, 1), min(count, heads), rows, columns)


def needed(count: int, rows: int, columns: int, depth: int, width: int, dtype: np.dtype) -> int:
    """Bytes of scratch for a tile of ``count`` matrices: two of scores, the queries, a product, statistics, flags.

    Half precision also needs casts of all inputs, and sums.
    """
    numbers = 2 * rows * columns + rows * depth + max(rows, columns) * max(depth, width) + 6 * rows
    if is_half(dtype):
        numbers += rows * (depth + 2 * width) + 2 * columns * (depth + width)
    return count * (max(dtype.itemsize, 4) * numbers + rows * columns) + 32 * 64


class Space:
    """The scratch of the running thread, given out in pieces."""

    def __init__(self, used: int = 0) -> None:
        self.buffer, self.used = scratch((SCRATCH,), np.uint8), used

    def take(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An uninitialised piece."""
        found = np.ndarray(shape, dtype, self.buffer, self.used)
        self.used += -(-found.nbytes // 64) * 64
        return found

    def cast(self, x: np.ndarray, wide: np.dtype) -> np.ndarray:
        """``x`` itself if it is in the wide dtype, else a copy in that dtype."""
        if x.dtype == wide:
            return x
        found = self.take(x.shape, wide)
        np.copyto(found, x)
        return found


class Sight:
    """The scores of one tile of rows, with one tile of columns after another."""

    def __init__(self, job: Job, at: Spot, space: Space) -> None:
        self.job, self.at, self.wide = job, at, job.wide
        q = job.q[at.batch, at.head, at.group, at.rows]
        columns = min(job.plan.columns, job.k.shape[2])
        self.lead = q.shape[:3]  # batches, heads, rows
        self.query = space.take(q.shape, self.wide)  # scaled
        np.multiply(q, job.scale, out=self.query, dtype=self.wide)
        shape = (*self.lead, columns)
        self._scores, self._flags = space.take(shape, self.wide), space.take(shape, np.bool_)
        self._work = space.take((prod(shape) + 4,), self.wide)  # the spare tile, and what few random numbers need more

    def scores(self, key: np.ndarray, columns: slice) -> np.ndarray:
        """query @ key.T, capped, plus the masks: -inf if a column is hidden from a row."""
        found, cap = self._part(self._scores, columns), self.job.cap
        np.matmul(self.query, key.swapaxes(-1, -2), out=found)
        if cap is not None:
            np.divide(found, cap, out=found)
            np.tanh(found, out=found)
            np.multiply(found, cap, out=found)
        mask = self._mask(columns)
        if mask is not None:
            np.add(found, mask, out=found)
        for bias in self._limits(columns):
            np.add(found, bias, out=found)
        return found

    def spare(self, columns: slice) -> np.ndarray:
        """A second, uninitialised tile of scores."""
        shape = (*self.lead, columns.stop - columns.start)
        return self._work[: prod(shape)].reshape(shape)

    def _part(self, buffer: np.ndarray, columns: slice) -> np.ndarray:
        """The beginning of a buffer, as a contiguous tile."""
        count = columns.stop - columns.start
        if count == buffer.shape[3]:
            return buffer
        shape = (*self.lead, count)
        return buffer.reshape(-1)[: prod(shape)].reshape(shape)

    def _mask(self, columns: slice) -> np.ndarray | None:
        """The mask to add to the scores; it broadcasts."""
        mask, at = self.job.mask, self.at
        if mask is None:
            return None
        part = mask[mask_index(mask, at, columns)]
        if part.dtype != np.bool_:
            return part
        bias = self.spare(columns).reshape(-1)[: part.size].reshape(part.shape)
        np.log(part, out=bias, dtype=self.wide)  # 0, or -inf
        return bias

    def _limits(self, columns: slice) -> list[np.ndarray]:
        """The mask of the window in this tile: 0 for visible columns, -inf for hidden ones."""
        (left, right), rows = self.job.window, self.at.rows
        shift = rows.start + self.job.offset - columns.start  # the column of a row, minus the row
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        found = []
        if right is not None and shape[1] - 1 > shift + right:
            found.append(self._diagonal(shape, shift + right, 1))
        if left is not None and shape[0] - 1 + shift - left > 0:
            found.append(self._diagonal(shape, shift - left, -1))
        return found

    def _diagonal(self, shape: tuple[int, int], shift: int, sign: int) -> np.ndarray:
        """(rows, columns): -inf where sign * (column - row - shift) > 0. A view of one step, which takes no memory."""
        step, size = _STEP[self.wide.itemsize], self.wide.itemsize
        first = _REACH - 1 - sign * min(max(shift, -_ROWS), _COLUMNS)
        return np.ndarray(shape, self.wide, step, first * size, (-sign * size, sign * size))

    def kept(self, columns: slice) -> np.ndarray:
        """The dropout mask of a tile (True: kept). Its random numbers are drawn in the spare tile."""
        flags = self._part(self._flags, columns)
        philox.below(self.job.ticket, self.job.number(self.at, columns), _STREAM, self.job.p, self._work, flags.reshape(-1))
        np.logical_not(flags, out=flags)
        return flags


def mask_index(mask: np.ndarray, at: Spot, columns: slice) -> tuple:
    """The index of a tile's part of a mask, whose axes of size 1 broadcast."""
    wanted = (at.batch, at.head, slice(at.group, at.group + 1), at.rows, columns)
    index = [slice(0, 1) if n == 1 else part for n, part in zip(mask.shape, wanted, strict=True)]
    return (index[0], index[1], 0 if mask.shape[2] == 1 else at.group, index[3], index[4])


def drop(x: np.ndarray, kept: np.ndarray, p: float, out: np.ndarray) -> None:
    """out = x / (1 - p) where kept, else 0."""
    np.multiply(x, kept, out=out)
    np.multiply(out, 0.0 if p == 1.0 else 1.0 / (1.0 - p), out=out)


def exponentials(scores: np.ndarray, shift: np.ndarray) -> None:
    """scores = e**(scores - shift), in place."""
    np.subtract(scores, shift, out=scores)
    np.exp(scores, out=scores)


def flatness(weights: np.ndarray, lse: np.ndarray, cap: float) -> None:
    """From the softmax, in place, the derivative of each capped score: 1 - tanh², with tanh = score / cap."""
    np.maximum(weights, np.finfo(weights.dtype).tiny, out=weights)  # of 0, whose gradient is 0, any number will do
    np.log(weights, out=weights)
    np.add(weights, lse, out=weights)  # the score
    np.divide(weights, cap, out=weights)
    np.clip(weights, -1, 1, out=weights)  # rows that see nothing have lse inf
    np.square(weights, out=weights)
    np.subtract(1, weights, out=weights)


def add_up(x: np.ndarray, out: np.ndarray) -> None:
    """out = the sum of each row, as a product with ones: several times faster than a reduction."""
    np.matmul(x, _ONES[x.itemsize][: x.shape[-1]], out=out)


def largest(scores: np.ndarray, out: np.ndarray) -> None:
    """out = the largest score of each row; a finite number if the row has no visible column."""
    np.maximum.reduce(scores, axis=-1, keepdims=True, out=out)
    np.maximum(out, _LOWEST[out.dtype.itemsize], out=out)


def add_product(a: Any, b: Any, total: np.ndarray, space: Space, first: bool) -> None:
    """total += a @ b, or total = a @ b the first time."""
    if first:
        np.matmul(a, b, out=total)
        return
    before = space.used
    product = space.take(total.shape, total.dtype)
    np.matmul(a, b, out=product)
    np.add(total, product, out=total)
    space.used = before


def add_to_mask(slopes: Any, gmask: np.ndarray) -> None:
    """gmask += slopes, summed over the batches and heads that share a mask."""
    for b in range(slopes.shape[0]):
        for h in range(slopes.shape[1]):
            target = gmask[b if gmask.shape[0] > 1 else 0, h if gmask.shape[1] > 1 else 0]
            np.add(target, slopes[b, h], out=target)
