"""Products of groups of rows, each group with a matrix of its own: the loop that every device shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ShapeError


def each_group(matmul: Callable[..., None], x: Any, y: Any, ends: list[int], work: Any, out: Any) -> None:
    """The rows of group i: ``out[rows] = x[rows] @ y[i]``; where ``out`` has the groups, ``out[i] = x[rows].T @ y[rows]``.

    Group i ends before row ``ends[i]``. Rows beyond the last group are 0.

    Raises:
        ShapeError: the ends are not in order, or beyond the rows.
    """
    start, rows = 0, len(x)
    if ends != sorted(ends) or (ends and not 0 <= ends[0] <= ends[-1] <= rows):
        raise ShapeError(f"grouped_mm: offs must not decrease, from 0 to the {rows} rows of mat_a, found {ends}")
    for i, end in enumerate(ends):
        if out.ndim == 2:
            matmul(x[start:end], y[i], work, out=out[start:end])
        else:
            matmul(x[start:end].T, y[start:end], work, out=out[i])
        start = end
    if out.ndim == 2:
        out[start:].fill(0)
