"""Dropout from a ticket: the same ticket gives the same mask again, so nothing is kept but the ticket.

The mask is drawn in tiles, each from a counter of its own, so that tiles can be drawn on several cores, in any order.
"""

from __future__ import annotations

import numpy as np

from .threads import TILE as _TILE
from .threads import scratch as _scratch
from .threads import split as _split


def dropout(ticket, p, x, out):
    """out = x / (1 - p) where a uniform number is not below p, else 0; both contiguous; out may be x."""
    seed, call = ticket
    flat, result = x.reshape(-1), out.reshape(-1)
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * _TILE, min((tile + 1) * _TILE, flat.size))
            count = cut.stop - cut.start
            uniform, flag = _scratch((count,), np.float32, 0, 2), _scratch((count,), np.bool_, 1, 2)
            np.random.Generator(np.random.Philox(key=seed, counter=[0, tile, call, 1])).random(dtype=np.float32, out=uniform)
            np.less(uniform, p, out=flag)
            np.multiply(flat[cut], scale, out=result[cut])
            np.copyto(result[cut], 0, where=flag)

    _split(-(-flat.size // _TILE), part, grain=2)
