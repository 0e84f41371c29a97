"""Walking over (outer, class, inner) arrays in tiles of whole lines of classes.

Tiles live in scratch: two of eight slots for the lines, one each for what there is one of a line. Lines longer than a tile
are taken in pieces.
"""

from __future__ import annotations

import numpy as np

from .threads import GRAIN, scratch, split

TILE = 1 << 15  # elements of a tile of scores: 256 KiB of float64
LINES = 1 << 13  # lines of a tile, at most


def lines(shape, run):
    """``run(a, b)`` over slices of the outer and inner axes whose lines fit a tile, on several cores."""
    outer, classes, inner = shape
    if outer * classes * inner == 0:
        return
    line = max(classes, 1)

    def part(start, stop):
        width = max(min(inner, TILE // line, LINES), 1)
        height = max(min(TILE // (line * width), LINES // width), 1) if width == inner else 1
        for i in range(start, stop, height):
            for j in range(0, inner, width):
                run(slice(i, min(i + height, stop)), slice(j, min(j + width, inner)))

    def columns(start, stop):
        width = max(min(TILE // line, LINES), 1)
        for j in range(start, stop, width):
            run(slice(0, 1), slice(j, min(j + width, stop)))

    if outer == 1:
        split(inner, columns, grain=max(GRAIN // line, 1))
    else:
        split(outer, part, grain=max(GRAIN // (line * inner), 1))


def pieces(classes):
    """Slices of the class axis, each at most a tile long: one, unless there are very many classes."""
    return [slice(c, min(c + TILE, classes)) for c in range(0, classes, TILE)]


def stat(x, wide, slot):
    """A scratch array with one number a line of ``x``."""
    return scratch((x.shape[0], 1, x.shape[2]), wide, slot, 8)


def sum_lines(tile, total):
    """total += the sums of the lines of ``tile``; a block of classes at a time where NumPy would add one after the other."""
    step = tile.shape[1] if tile.shape[2] == 1 else 256
    for i in range(0, tile.shape[1], step):
        more = stat(tile, total.dtype, 5)
        np.add.reduce(tile[:, i : i + step], axis=1, keepdims=True, dtype=total.dtype, out=more)
        np.add(total, more, out=total)


def multiples(n, step):
    """0, step, 2 * step, ... in scratch."""
    out = scratch((n,), np.int64, 5, 8)
    out.fill(step)
    out[:1] = 0
    np.add.accumulate(out, out=out)
    return out
