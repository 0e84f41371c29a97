"""Rearrangements on a GPU."""

from __future__ import annotations

from math import prod as _prod

from .fused import Fused

_triangle = Fused(
    "X x, int64 columns, int64 rows, int64 diagonal, bool lower",
    "Z z",
    """
    const long long column = i % columns, row = (i / columns) % rows;
    const bool inside = lower ? column <= row + diagonal : column >= row + diagonal;
    z = inside ? Z(x) : Z(0);
    """,
    "tinygrad_mem_triangle",
)
_windows_backward = Fused(
    "raw X gy, int64 length, int64 count, int64 inner, int64 size, int64 step",
    "Z z",
    """
    const long long column = i % inner, place = i / inner % length, outer = i / inner / length;
    typename Wide<Z>::type total = 0;
    for (long long w = place < size ? 0 : (place - size) / step + 1; w < count && w * step <= place; ++w)
        total += gy[((outer * count + w) * inner + column) * size + place - w * step];
    z = total;
    """,
    "tinygrad_mem_windows_backward",
)


def triangle(x, diagonal, lower, out):
    _triangle(x, out.shape[-1], out.shape[-2], diagonal, lower, out)


def windows_backward(gy, axis, step, out):
    inner = _prod(out.shape[axis + 1 :])
    _windows_backward(gy, out.shape[axis], gy.shape[axis], inner, gy.shape[-1], step, out)
