"""Dropout from a ticket: the same ticket gives the same mask again, so nothing is kept but the ticket.

The mask is drawn in tiles, each from a counter of its own, so that tiles can be drawn on several cores, in any order.
"""

from __future__ import annotations

import numpy as np

from .threads import scratch as _scratch
from .threads import split as _split
from .tiles import keep as _keep

_TILE = 1 << 15  # entries of one draw: part of what a ticket means


def dropout(ticket, p, x, out):
    """out = x / (1 - p) where a uniform number is not below p, else 0; both contiguous; out may be x."""
    seed, call = ticket
    flat, result = x.reshape(-1), out.reshape(-1)
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * _TILE, min((tile + 1) * _TILE, flat.size))
            count = cut.stop - cut.start
            uniform, flag, work = (
                _scratch((count,), kind, slot, 4) for slot, kind in enumerate((np.float32, np.bool_, out.dtype))
            )
            np.random.Generator(np.random.Philox(key=seed, counter=[0, tile, call, 1])).random(dtype=np.float32, out=uniform)
            np.greater_equal(uniform, p, out=flag)
            np.multiply(flat[cut], scale, out=result[cut])
            _keep(result[cut], flag, work, result[cut])

    _split(-(-flat.size // _TILE), part, grain=2)
