"""Dropout from a ticket: the same ticket gives the same mask, so only the ticket is kept.

The mask is drawn in tiles, each with its own counter, so that tiles can be drawn on several cores, in any order.
"""

import numpy as np

from ..formula import formula
from .fast.philox import below
from .fast.threads import scratch, split
from .fast.tiles import drop

_TILE = 1 << 15  # elements of one draw: part of what a ticket means


@formula(None, "it draws random numbers")
def dropout(ticket, p, kept, dropped, x, out):
    """out = kept[0] * x + kept[1] with probability 1 - p, else ``dropped``.

    x and out are (cells, length), contiguous; one number is drawn per cell. out may be x.
    """
    cells, length = x.shape
    step = min(max(_TILE // max(length, 1), 1), max(cells, 1))

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * step, min((tile + 1) * step, cells))
            flag = scratch((cut.stop - cut.start, 1), np.bool_, 1, 4)
            below(ticket, tile, 1, p, scratch((_TILE,), np.float32, 0, 4), flag[:, 0])
            _drop(x[cut], flag, kept, dropped, out[cut])

    split(-(-cells // step), part, grain=max((1 << 17) // max(step * length, 1), 1))


def _drop(x, flag, kept, dropped, out):
    """One tile: by bits where each element has a flag of its own, by ``where`` where long lines share one."""
    scale, shift = kept
    np.multiply(x, scale, out=out)
    if x.shape[1] == 1:
        shift = shift - dropped
    if shift:
        np.add(out, shift, out=out)
    if x.shape[1] == 1:
        drop(out, flag, scratch(out.shape, out.dtype, 2, 4), out)
        if dropped:
            np.add(out, dropped, out=out)
    else:
        np.copyto(out, dropped, where=flag)
