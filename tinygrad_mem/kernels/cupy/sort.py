"""Sorting along an axis, and sums at indices along an axis.

CuPy's sort copies the values and makes keys for several lines, and the memory that it gives to Thrust is not known in advance.
Here tiles are sorted in shared memory, then merged in pairs in the op's workspace. A line that fits into a tile needs none.
"""

from __future__ import annotations

from math import prod as _prod

import cupy

from . import raw
from .fused import Fused

_TILE = 1024  # values that a block sorts
_THREADS = 256


_SOURCE = """
// where element j of a line stands, of lines of this length along an axis with ``inner`` elements after it
__device__ inline wide place(wide line, wide j, wide length, wide inner) {
    return (line / inner * length + j) * inner + line % inner;
}

__device__ inline bool below(A a, A b) { return a < b || (b != b && a == a); }  // nan is the largest

// whether value a at i comes before value b at j: of equal values the first; what is behind the end comes last
__device__ inline bool comes(A a, I i, A b, I j, wide n, bool descending) {
    if (i < n && j < n) {
        if (descending ? below(b, a) : below(a, b)) return true;
        if (descending ? below(a, b) : below(b, a)) return false;
    }
    return i < j;
}

// a block sorts a tile of a line, by bitonic merges; without ``runs`` a tile is the line, and the ranks asked for go to out
extern "C" __global__ void sort_tiles(
    const T* x, I* runs, wide* out, wide n, wide inner, wide start, wide stop, bool descending, int tile
) {
    __shared__ A value[1024];
    __shared__ I at[1024];
    const wide tiles = (n + tile - 1) / tile, line = blockIdx.x / tiles, first = blockIdx.x % tiles * tile;
    for (int j = threadIdx.x; j < tile; j += blockDim.x) {
        at[j] = (I)(first + j);
        value[j] = first + j < n ? (A)x[place(line, first + j, n, inner)] : (A)0;
    }
    for (int size = 2; size <= tile; size *= 2) {
        for (int step = size / 2; step; step /= 2) {
            __syncthreads();
            for (int t = threadIdx.x; t < tile / 2; t += blockDim.x) {
                const int i = 2 * t - t % step, j = i + step;
                if (comes(value[j], at[j], value[i], at[i], n, descending) == !(i & size)) {
                    const A v = value[i];
                    const I a = at[i];
                    value[i] = value[j], at[i] = at[j];
                    value[j] = v, at[j] = a;
                }
            }
        }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < tile && first + j < n; j += blockDim.x) {
        if (runs) runs[line * n + first + j] = at[j];
        else if (j >= start && j < stop) out[place(line, j - start, stop - start, inner)] = at[j];
    }
}

// a thread an element: its place in two merged runs is its own and how many of the other run come before it
extern "C" __global__ void merge_runs(
    const T* x, const I* runs, I* merged, wide* out, wide lines, wide n, wide inner, wide width, wide start, wide stop,
    bool descending
) {
    const wide i = FIRST;
    if (i >= lines * n) return;
    const wide line = i / n, p = i % n, both = p / (2 * width) * 2 * width, middle = both + width;
    const bool left = p < middle;
    const wide first = left ? (middle < n ? middle : n) : both, end = left ? (middle + width < n ? middle + width : n) : middle;
    const I* row = runs + line * n;
    const I mine = row[p];
    const A value = (A)x[place(line, mine, n, inner)];
    wide low = first, high = end;
    while (low < high) {
        const wide j = low + (high - low) / 2;
        const I other = row[j];
        if (comes((A)x[place(line, other, n, inner)], other, value, mine, n, descending)) low = j + 1; else high = j;
    }
    const wide rank = both + (p - (left ? both : middle)) + (low - first);
    if (merged) merged[line * n + rank] = mine;
    else if (rank >= start && rank < stop) out[place(line, rank - start, stop - start, inner)] = mine;
}
"""


def _run(name, x, index, blocks, threads, *arguments):
    meanings = raw.types("B" if x.dtype.char == "?" else x.dtype.char) | {"I": raw.NAMES[index.char]}
    raw.launch(_SOURCE, name, meanings, blocks * threads, x, *arguments, threads=threads)


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
    _run("sort_tiles", x, index, tiles, threads, runs[0] if runs else None, out, n, inner, *asked, cupy.int32(tile))
    blocks = -(-x.size // _THREADS)
    while runs and tile < n:
        merged = None if 2 * tile >= n else runs[1]
        _run("merge_runs", x, index, blocks, _THREADS, runs[0], merged, out, lines, n, inner, tile, *asked)
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
