"""Dropout from a ticket: the same ticket gives the same mask, so only the ticket is kept.

The mask is drawn in tiles, each with its own counter, so that tiles can be drawn on several cores, in any order.
"""

from __future__ import annotations

import numpy as np

from ..formula import formula
from .fast.threads import scratch, split
from .fast.tiles import keep

_TILE = 1 << 15  # elements of one draw: part of what a ticket means


@formula(None, "it draws random numbers")
def dropout(ticket, p, kept, dropped, x, out):
    """out = kept[0] * x + kept[1] where a uniform number is not below p, else ``dropped``.

    x and out are (cells, length), contiguous; one number is drawn per cell. out may be x.
    """
    seed, call = ticket
    cells, length = x.shape
    step = min(max(_TILE // max(length, 1), 1), max(cells, 1))

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * step, min((tile + 1) * step, cells))
            shape = (cut.stop - cut.start, 1)
            uniform, flag = scratch(shape, np.float32, 0, 4), scratch(shape, np.bool_, 1, 4)
            np.random.Generator(np.random.Philox(key=seed, counter=[0, tile, call, 1])).random(dtype=np.float32, out=uniform)
            np.greater_equal(uniform, p, out=flag)
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
        keep(out, flag, scratch(out.shape, out.dtype, 2, 4), out)
        if dropped:
            np.add(out, dropped, out=out)
    else:
        np.logical_not(flag, out=flag)
        np.copyto(out, dropped, where=flag)
