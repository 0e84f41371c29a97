"""Rearrangements."""

from __future__ import annotations

import numpy as np


def triangle(x, diagonal, lower, out):
    """out = x on one side of a diagonal of the last two axes, 0 on the other."""
    rows, columns = out.shape[-2:]
    for i in range(rows):
        edge = min(max(i + diagonal + (1 if lower else 0), 0), columns)
        kept, zero = (slice(0, edge), slice(edge, None)) if lower else (slice(edge, None), slice(0, edge))
        if x is not out:
            np.copyto(out[..., i, kept], x[..., i, kept])
        out[..., i, zero] = 0
