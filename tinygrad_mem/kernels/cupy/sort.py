"""Orders along an axis, and elements at the places that an index array names.

CuPy sorts through Thrust, which takes workspace of its own from the pool: see ``kernels/uncounted.py``.
"""

from __future__ import annotations

from math import prod as _prod

import cupy as _cupy

from .fused import Fused as _Fused


def order_workspace(shape, axis, dtype):
    """Bytes that ``order`` wants from the op: none here."""
    return 0


def order(x, axis, start, stop, descending, work, out):
    """out = the indices of the elements of rank ``start`` to ``stop`` along ``axis``: nan is the largest, ties in order."""
    if out.size == 0:
        return
    lines, outs = _cupy.moveaxis(x, axis, -1), _cupy.moveaxis(out, axis, -1)
    if lines.dtype == bool:
        lines = lines.view("u1")
    if descending:  # the stable order of the mirrored line, mirrored
        found = _cupy.argsort(lines[..., ::-1], axis=-1)[..., ::-1]
        _mirror(found[..., start:stop], lines.shape[-1] - 1, outs)
    else:
        _copy(_cupy.argsort(lines, axis=-1)[..., start:stop], outs)


_mirror = _Fused("int64 x, int64 last", "int64 y", "y = last - x", "tinygrad_mem_mirror")
_copy = _Fused("int64 x", "int64 y", "y = x", "tinygrad_mem_copy_index")

_PLACE = "ptrdiff_t at = (i / (k * inner) * n + index) * inner + i % inner;"  # i counts the index, seen as (outer, k, inner)
_take = _Fused(
    "int64 index, raw T x, int64 n, int64 k, int64 inner", "T out", _PLACE + "out = x[at];", "tinygrad_mem_take_along"
)
_put = _Fused(
    "T value, int64 index, int64 n, int64 k, int64 inner", "raw T out", _PLACE + "out[at] = value;", "tinygrad_mem_put_along"
)
_add = _Fused(  # a thread a line: added in order, so that a run can be repeated
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


def _sizes(shape, index, axis):
    return shape[axis], index.shape[axis], _prod(shape[axis + 1 :])


def take_along(x, axis, index, out):
    """out = x at ``index`` along ``axis``; all contiguous, alike but for that axis, indices within bounds."""
    if index.size:
        _take(index, x, *_sizes(x.shape, index, axis), out)


def put_along(values, axis, index, out):
    """out at ``index`` along ``axis`` = values; all contiguous, no place twice."""
    if index.size:
        _put(values, index, *_sizes(out.shape, index, axis), out)


def add_along(values, axis, index, out):
    """out at ``index`` along ``axis`` += values; all contiguous. Halves that one place gets in a row are added in float32."""
    if index.size:
        _add(values, index, *_sizes(out.shape, index, axis), out, size=index.size // index.shape[axis])
