"""Dropout from a ticket: the same ticket gives the same mask, so only the ticket is kept.

The mask is drawn in tiles, each with its own counter, so that tiles can be drawn on several cores, in any order.
"""

from __future__ import annotations

import numpy as np

from ..formula import formula
from .fast.philox import uniform
from .fast.threads import scratch, split

_TILE = 1 << 15  # elements of one draw: part of what a ticket means


@formula(None, "it draws random numbers")
def dropout(ticket, p, kept, dropped, x, out):
    """out = kept[0] * x + kept[1] where a uniform number is not below p, else ``dropped``.

    x and out are (cells, length), contiguous; one number is drawn per cell. out may be x.
    """
    cells, length = x.shape
    step = min(max(_TILE // max(length, 1), 1), max(cells, 1))

    def part(first, last):
        for tile in range(first, last):
            cut = slice(tile * step, min((tile + 1) * step, cells))
            chance = scratch((cut.stop - cut.start, 1), np.float32, 0, 4)
            uniform(ticket, tile, 1, chance)
            _drop(x[cut], chance, np.float32(p), kept, dropped, out[cut])

    split(-(-cells // step), part, grain=max((1 << 17) // max(step * length, 1), 1))


def _drop(x, chance, p, kept, dropped, out):
    """One tile: by bits where each element has a number of its own, by ``where`` where long lines share one."""
    scale, shift = kept
    np.multiply(x, scale, out=out)
    if x.shape[1] == 1:
        shift = shift - dropped
    if shift:
        np.add(out, shift, out=out)
    if x.shape[1] == 1:
        _keep(chance, p, out)
        if dropped:
            np.add(out, dropped, out=out)
    else:
        flag = scratch(chance.shape, np.bool_, 1, 4)
        np.less(chance, p, out=flag)
        np.copyto(out, dropped, where=flag)


def _keep(chance, p, out):
    """out = 0 where chance < p, also for nan. chance becomes the mask: all bits are the sign of (just below p) - chance."""
    mask = chance.view(np.int32)
    np.subtract(np.nextafter(p, np.float32(-1)), chance, out=chance)
    np.right_shift(mask, 31, out=mask)
    whole = np.dtype(f"i{out.itemsize}")
    if whole != mask.dtype:
        wide = scratch(out.shape, whole, 2, 4)
        np.copyto(wide, mask, casting="unsafe")
        mask = wide
    bits = out.view(whole)
    np.bitwise_and(bits, mask, out=bits)
