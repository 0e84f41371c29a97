"""Indexing on a GPU. Places that several entries name are added to in order of the entries by one thread each: no atomics, so
the same run gives the same bits.
"""

from __future__ import annotations

from functools import cache as _cache

import cupy as _cupy

from .fused import Fused as _Fused

_take = _Fused(
    "raw X x, raw int64 index, int64 count, int64 width",
    "Z z",
    "const long long row = index[i / width]; z = Z(x[(row < 0 ? row + count : row) * width + i % width])",
    "tinygrad_mem_take",
)
_add_rows = _Fused(
    "raw X rows, raw int64 index, int64 count, int64 width, int64 size, Z before",
    "Z z",
    """
    const long long row = i / width, column = i % width;
    typename Wide<Z>::type total = before;
    for (long long k = 0; k < count; ++k) {
        if (index[k] == row || index[k] + size == row) total += rows[k * width + column];
    }
    z = total;
    """,
    "tinygrad_mem_add_rows",
)
_add_along = _Fused(
    "raw X source, raw int64 index, int64 count, int64 length",
    "Z z",
    """
    const long long line = i / length, place = i % length;
    typename Wide<Z>::type total = z;
    for (long long k = 0; k < count; ++k) {
        if (index[line * count + k] == place) total += source[line * count + k];
    }
    z = total;
    """,
    "tinygrad_mem_add_along",
)


def take(x, index, out):
    """out = rows of x (axis 0) by int64 index, all within bounds; negative ones count from the end."""
    if out.size:
        _take(x, index, len(x), out.size // max(index.size, 1), out)


def add_rows(rows, index, out):
    """out[index[i]] += rows[i], in order; negative indices count from the end."""
    if rows.size:
        _add_rows(rows, index, index.size, out.size // len(out), len(out), out, out)


def index_get(x, key, out):
    """out = x[key] with arrays in the key."""
    _cupy.copyto(out, x[key])


def index_put(value, key, accumulate, out):
    """out[key] = value, or += with repeated entries adding up."""
    if accumulate and out.dtype.char == "e":  # atomic sums of halves would stall: a float32 copy of out is summed into
        wide = out.astype("f")
        _cupy.add.at(wide, key, value)
        _cupy.copyto(out, wide, casting="unsafe")
    elif accumulate:
        _cupy.add.at(out, key, value)
    else:
        out[key] = value


def gather(x, axis, index, out):
    """out = x at index along axis."""
    cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
    _cupy.copyto(out, _cupy.take_along_axis(x[cut], index, axis))


def _along(index, axis):
    """The key that selects, for each entry of index, one element of an array."""
    shape = [1] * index.ndim
    grid = []
    for a, n in enumerate(index.shape):
        sizes = list(shape)
        sizes[a] = n
        grid.append(index if a == axis else _cupy.arange(n).reshape(sizes))
    return tuple(grid)


def scatter(source, axis, index, out):
    """out at index along axis = source: a number, or an array of at least index's shape."""
    out[_along(index, axis)] = source if not isinstance(source, _cupy.ndarray) else _part(source, index)


def scatter_add(source, axis, index, out):
    """out at index along axis += source; halves are summed in float32, by a thread a place that looks through its line."""
    if out.dtype.char == "e" and isinstance(source, _cupy.ndarray) and index.size:
        cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
        lines, places, values = (_cupy.moveaxis(a, axis, -1) for a in (out[cut], index, _part(source, index)))
        _add_along(values, places, index.shape[axis], out.shape[axis], lines)
        return
    _cupy.add.at(out, _along(index, axis), source if not isinstance(source, _cupy.ndarray) else _part(source, index))


_TOGETHER = {
    "prod": "there *= value",
    "amax": "if (value != value || value > there) there = value",
    "amin": "if (value != value || value < there) there = value",
}


@_cache
def _reduction(reduce, ndim):
    """A thread a line of index: entries of a line are taken in order, and no two lines meet."""
    code = f"""
    ptrdiff_t at[{ndim}], rest = i;
    for (int a = {ndim} - 1; a >= 0; --a) {{
        const ptrdiff_t n = a == axis ? 1 : index.shape()[a];
        at[a] = rest % n;
        rest /= n;
    }}
    for (ptrdiff_t k = 0; k < index.shape()[axis]; ++k) {{
        at[axis] = k;
        const T value = source[at];
        at[axis] = index[at];
        T& there = out[at];
        {_TOGETHER[reduce]};
    }}
    """
    return _Fused("raw T source, raw int64 index, int32 axis", "raw T out", code, f"tinygrad_mem_{reduce}_at")


def scatter_reduce(source, axis, index, reduce, out):
    """out at index along axis = itself and source together: their product ("prod"), the larger ("amax") or smaller ("amin")."""
    if index.size:
        _reduction(reduce, index.ndim)(_part(source, index), index, axis, out, size=index.size // index.shape[axis])


def _part(source, index):
    return source[tuple(slice(0, n) for n in index.shape)]
