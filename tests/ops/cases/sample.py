"""Values of images at places between their pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.case import OpCase
from tinygrad_mem.nn import functional as F


def _row(name: str, sizes: tuple[int, ...], **options: Any) -> OpCase:
    """Two images of three channels, and places within them and beyond, away from where pixels meet."""

    def inputs(rng: np.random.Generator) -> list[np.ndarray]:
        places = rng.uniform(-1.4, 1.4, (2, *[3] * len(sizes), len(sizes)))
        return [rng.standard_normal((2, 3, *sizes)), places]

    run, reference = [lambda x, g, f=f: f(x, g, **options) for f in (F.grid_sample, torch.nn.functional.grid_sample)]
    return OpCase(
        name, "GridSample", run, reference, inputs, lambda x, grid, out: x.nbytes + grid.nbytes, tolerance=(1e-4, 1e-5)
    )


CASES = [
    _row("grid_sample", (4, 5), align_corners=False),
    _row("grid_sample_border", (4, 5), padding_mode="border", align_corners=True),
    _row("grid_sample_reflection", (4, 5), padding_mode="reflection", align_corners=False),
    _row("grid_sample_bicubic", (4, 5), mode="bicubic", align_corners=False),
    _row("grid_sample_nearest", (4, 5), mode="nearest", align_corners=False),
    _row("grid_sample_depth", (3, 4, 5), align_corners=False),
]
