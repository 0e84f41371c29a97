"""Rearrangements on a GPU."""

from __future__ import annotations

import cupy as _cupy

_triangle = _cupy.ElementwiseKernel(
    "X x, int64 columns, int64 rows, int64 diagonal, bool lower",
    "Z z",
    """
    const long long column = i % columns, row = (i / columns) % rows;
    const bool inside = lower ? column <= row + diagonal : column >= row + diagonal;
    z = inside ? Z(x) : Z(0);
    """,
    "tinygrad_mem_triangle",
)


def triangle(x, diagonal, lower, out):
    """out = x on one side of a diagonal of the last two axes, 0 on the other."""
    _triangle(x, out.shape[-1], out.shape[-2], diagonal, lower, out)
