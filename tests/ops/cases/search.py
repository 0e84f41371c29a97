"""Rows of looking up and counting."""

from __future__ import annotations

import torch

import tinygrad_mem as tm
from tests.case import OpCase
from tests.ops.cases.elementwise import normal

CASES = [
    OpCase(
        "bucketize",
        "SearchSorted",
        lambda x, v: tm.bucketize(x, v.sort().values),
        lambda x, v: torch.bucketize(x, v.sort().values),
        normal((30, 7), (20,)),
        grad=False,
    ),
    OpCase("histc", "Histogram", lambda x: x.histc(13), lambda x: x.histc(13), normal((30, 7)), grad=False),
]
