"""Dropout from a ticket: the same ticket gives the same mask again, so nothing is kept but the ticket.

The mask is drawn in tiles, each from a counter of its own, so that tiles can be drawn on several cores, in any order.
"""

from __future__ import annotations

import numpy as np

from .threads import TILE as _TILE
from .threads import scratch as _scratch
from .threads import split as _split


def dropout(ticket, p, kept, dropped, x, out):
    """out = kept[0] * x + kept[1] where a uniform number is not below p, else ``dropped``.

    x and out are (cells, length), contiguous; one number is drawn a cell. out may be x.
    """
    seed, call = ticket
    scale, shift = kept
    cells, length = x.shape
    step = _TILE if length == 1 else max(min(_TILE // max(length, 1), cells), 1)

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * step, min((tile + 1) * step, cells))
            count = cut.stop - cut.start
            uniform, flag = _scratch((count, 1), np.float32, 0, 2), _scratch((count, 1), np.bool_, 1, 2)
            np.random.Generator(np.random.Philox(key=seed, counter=[0, tile, call, 1])).random(dtype=np.float32, out=uniform)
            np.less(uniform, p, out=flag)
            target = out[cut]
            np.multiply(x[cut], scale, out=target)
            if shift:
                np.add(target, shift, out=target)
            np.copyto(target, dropped, where=flag)

    _split(-(-cells // step), part, grain=max((1 << 17) // max(step * length, 1), 1))
