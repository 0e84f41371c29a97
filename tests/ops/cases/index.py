"""Indexing by tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.case import OpCase
from tests.ops.cases.elementwise import normal


def indexed(shape: tuple[int, ...], index: list, *more: tuple[int, ...]) -> Any:
    """Values, an int64 index, and more values."""
    return lambda rng: [rng.standard_normal(shape), np.array(index), *[rng.standard_normal(s) for s in more]]


def index_bytes(x: Any, index: Any, *rest: Any) -> int:
    return index.nbytes


def same(name: str, op: str, run: Any, inputs: Any, saved: Any = index_bytes) -> OpCase:
    """An expression that reads the same for both libraries."""
    return OpCase(name, op, run, run, inputs, saved)


def written(x: Any, value: Any) -> Any:
    y = x.clone()
    y[[0, 2]] = value
    return y


def filled(x: Any, i: Any) -> Any:
    """Two axes by indices from the end, one by one index."""
    y = x.clone()
    y[i, i.flip(0)] = 2.0
    return y.index_fill(1, i, 0.5)


def put(x: Any, i: Any, v: Any) -> Any:
    return x.index_put((i,), v, accumulate=True)


GATHER = [[0, 1, 2, 0, 1], [3, 3, 1, 0, 2]]

CASES = [
    same("take_rows", "Take", lambda x, i: x[i], indexed((6, 5), [0, 2, 2, 5])),
    same("take_rows_from_the_end", "Take", lambda x, i: x[i], indexed((6, 5), [0, -1, -6, 2, -1])),
    same("take_wide_rows_from_the_end", "Take", lambda x, i: x[i], indexed((6, 80), [0, -1, -6, 2, -1])),
    same("take_pairs_from_the_end", "Take", lambda x, i: x[i, i.flip(0)], indexed((6, 5, 3), [0, -1, -4, 2])),
    same("take_columns_from_the_end", "Take", lambda x, i: x[:, i], indexed((4, 6, 3), [[0, -1], [-6, 2]])),
    same("fill_from_the_end", "IndexPut", filled, indexed((6, 5), [0, -1, -4, 2]), lambda x, i, y: 2 * i.nbytes),
    same("add_from_the_end", "IndexPut", put, indexed((6, 5), [0, -1, -6, 2, -1], (5, 5))),
    same("add_wide_from_the_end", "IndexPut", put, indexed((6, 80), [0, -1, -6, 2, -1], (5, 80))),
    same("index_select", "Take", lambda x, i: x.index_select(1, i), indexed((4, 6), [0, 2, 2, 5])),
    OpCase(
        "take_pairs",
        "Take",
        lambda x: x[:, [0, 1], [2, 2]],
        lambda x: x[:, [0, 1], [2, 2]],
        normal((3, 4, 5)),
        lambda x, out: 16,
    ),
    OpCase("index_put", "IndexPut", written, written, normal((4, 5), (2, 5)), lambda x, v, out: 16),
    same(
        "index_add",
        "IndexPut",
        lambda x, i, v: x.index_add(0, i, v),
        indexed((6, 5), [0, 2, 2], (3, 5)),
    ),
    same("gather", "Gather", lambda x, i: x.gather(0, i), indexed((4, 5), GATHER)),
    same("scatter", "Scatter", lambda x, i, v: x.scatter(0, i, v), indexed((4, 5), [[0, 1, 2, 0, 1], [3, 3, 1, 1, 2]], (2, 5))),
    same("scatter_add", "Scatter", lambda x, i, v: x.scatter_add(0, i, v), indexed((4, 5), GATHER, (2, 5))),
    same("scatter_number", "Scatter", lambda x, i: x.scatter(0, i, 7.0), indexed((4, 5), GATHER)),
    *[
        same(
            f"scatter_{reduce}{'' if own else '_alone'}",
            "ScatterReduce",
            lambda x, i, v, reduce=reduce, own=own: x.scatter_reduce(0, i, v, reduce, include_self=own),
            indexed((4, 5), GATHER, (2, 5)),
            lambda x, i, v, y, reduce=reduce: {"sum": i.nbytes, "mean": i.nbytes, "prod": i.nbytes + x.nbytes + v.nbytes}.get(
                reduce, i.nbytes + 2 * x.nbytes + v.nbytes
            ),
        )
        for reduce in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
    ],
]
