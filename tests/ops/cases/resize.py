"""Resampling."""

from __future__ import annotations

from typing import Any

import torch

from tests.case import OpCase
from tests.ops.cases.elementwise import normal
from tinygrad_mem.nn import functional as F


def _row(name: str, shape: tuple[int, ...], taps: int, **options: Any) -> OpCase:
    """``taps`` of all axes: of each input, how many outputs it went to at most; saved are a place and a weight for each."""

    run, reference = [lambda x, f=f: f(x, **options) for f in (F.interpolate, torch.nn.functional.interpolate)]
    return OpCase(name, "Resize", run, reference, normal(shape), lambda x, out: taps * (8 + 8))


CASES = [
    _row("interpolate_nearest", (2, 3, 4, 5), 2 * (4 + 5), scale_factor=2.0),
    _row("interpolate_linear", (2, 3, 4), 4 * 4, scale_factor=2.0, mode="linear"),
    _row("interpolate_bilinear", (2, 3, 4, 5), 4 * (4 + 5), scale_factor=2.0, mode="bilinear"),
    _row("interpolate_one_axis", (2, 3, 4, 5), 4 * 4, size=(8, 5), mode="bilinear"),
    _row("interpolate_antialias", (2, 3, 8, 5), 2 * 8, size=(4, 5), mode="bilinear", antialias=True),
    _row("interpolate_trilinear", (1, 2, 3, 3, 3), 4 * (3 + 3 + 3), scale_factor=2.0, mode="trilinear"),
]
