"""Sorting along an axis, and sums at indices along an axis.

CuPy's sort copies the values and makes keys for several lines, and the memory that it gives to Thrust is not known in advance.
Here tiles are sorted in shared memory, then merged in pairs in the op's workspace. A line that fits into a tile needs none.
"""

from __future__ import annotations

from functools import cache
from math import prod as _prod

import cupy

from .c_names import NAMES
from .fused import Fused
from .order_source import SOURCE

_TILE = 1024  # values that a block sorts
_THREADS = 256


@cache
def _kernel(name, char, index):
    kind = "unsigned char" if char == "?" else NAMES[char]
    return cupy.RawKernel(SOURCE.format(T=kind, A="float" if char == "e" else kind, I=NAMES[index]), name)


def _index(n):
    """The dtype of a place within a line."""
    return cupy.dtype("i" if n < 2**31 - _TILE else "q")


def _runs(n):
    """The number of orders kept at a time: one for a line of two tiles; two for longer lines, before and after a merge."""
    return 0 if n <= _TILE else 1 if n <= 2 * _TILE else 2


def _workspace(shape, axis):
    """Bytes for the orders of lines that do not fit into a tile."""
    return _runs(shape[axis]) * _prod(shape) * _index(shape[axis]).itemsize


def order_workspace(x, axis):
    """Bytes of workspace for ``order``: those of :func:`_workspace`, and a copy of an array that is not contiguous."""
    return _workspace(x.shape, axis) + (0 if x.flags.c_contiguous else _copied(x))


def _copied(x):
    return -(-x.nbytes // 8) * 8


def order(x, axis, start, stop, descending, work, out):
    if out.size == 0:
        return
    n, inner = x.shape[axis], _prod(x.shape[axis + 1 :])
    if not x.flags.c_contiguous:
        copy = cupy.ndarray(x.shape, x.dtype, work.data)
        cupy.copyto(copy, x)
        x, work = copy, work[_copied(x) :]
    index, lines = _index(n), x.size // n
    runs = [cupy.ndarray((x.size,), index, work.data + i * x.size * index.itemsize) for i in range(_runs(n))]
    tile = min(_TILE, 1 << (n - 1).bit_length())
    tiles = -(-n // tile) * lines
    threads = min(max(tile // 2, 32), _THREADS)
    asked = start, stop, bool(descending)
    arguments = x, runs[0] if runs else 0, out, n, inner, *asked, cupy.int32(tile)
    _kernel("sort_tiles", x.dtype.char, index.char)((tiles,), (threads,), arguments)
    blocks = -(-x.size // _THREADS)
    while runs and tile < n:
        merged = 0 if 2 * tile >= n else runs[1]
        arguments = x, runs[0], merged, out, lines, n, inner, tile, *asked
        _kernel("merge_runs", x.dtype.char, index.char)((blocks,), (_THREADS,), arguments)
        runs.reverse()
        tile *= 2


_add = Fused(  # one thread per line: added in order, so that each run has the same result
    "raw T values, raw int64 index, int64 n, int64 k, int64 inner",
    "raw T out",
    """
    typedef typename Wide<T>::type W;
    ptrdiff_t outer = i / inner, column = i % inner;
    W total = 0;
    for (ptrdiff_t j = 0; j < k; ++j) {
        ptrdiff_t at = (outer * k + j) * inner + column;
        total += W(values[at]);
        if (j + 1 < k && index[at + inner] == index[at]) continue;
        T& there = out[(outer * n + index[at]) * inner + column];
        there = T(W(there) + total);
        total = 0;
    }
    """,
    "tinygrad_mem_add_along",
)


def add_along(values, axis, index, out):
    """out at ``index`` along ``axis`` += values; all contiguous. Halves that one place gets in a row are added in float32."""
    if index.size:
        sizes = out.shape[axis], index.shape[axis], _prod(out.shape[axis + 1 :])
        _add(values, index, *sizes, out, size=index.size // index.shape[axis])
