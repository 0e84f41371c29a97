"""Loops over (outer, class, inner) arrays in tiles of whole lines of classes.

Tiles are in scratch: lines use two of eight slots, and statistics with one number per line use one slot each. Lines longer than
a tile are processed in pieces.
"""

from itertools import product

import numpy as np

from .blas import single
from .folds import ONES, RUN
from .threads import lanes, scratch
from .tiles import cuts

TILE = 1 << 16  # elements of a tile of scores: 512 KiB of float64
LINES = 1 << 13  # lines of a tile, at most
GRAIN = 1 << 17  # elements that are worth a core: exponentials take as long as ten sums
TOGETHER = 128  # adjacent lines in a tile, or fewer if there are fewer


def lines(shape, run, itemsize=8):
    """``run(a, b)`` over slices of the outer and inner axes whose lines fit a tile, on several cores.

    A tile has 512 KiB, of numbers of ``itemsize`` bytes. If lines are long, a tile has pieces of several adjacent lines,
    because adjacent numbers are read from memory together.
    """
    outer, classes, inner = shape
    if outer * classes * inner == 0:
        return
    tile = 8 * TILE // itemsize
    width = min(inner, max(tile // classes, TOGETHER), LINES)
    height = max(min(tile // (classes * width), LINES // width), 1) if width == inner else 1
    tasks = list(product(cuts(0, outer, height), cuts(0, inner, width)))
    with single():  # lines are summed by matrix product, whose threads would occupy our cores
        lanes(len(tasks), outer * classes * inner // GRAIN, lambda _, number: run(*tasks[number]))


def pieces(part):
    """Slices of the class axis of some lines, at most a tile each: one slice, unless there are very many classes."""
    _, classes, inner = part.shape
    step = max(TILE // inner, 1) if part.shape[0] == 1 else classes  # of several lines, all fit
    return cuts(0, classes, max(step, 1))


def stat(x, wide, slot):
    """A scratch array with one number for each line of ``x``."""
    return scratch((x.shape[0], 1, x.shape[2]), wide, slot, 8)


def sum_lines(tile, total):
    """total += the sums of the lines of ``tile``, of runs; by matrix product if no cast is needed."""
    ones = ONES.get(tile.dtype) if tile.dtype.itemsize <= total.dtype.itemsize else None
    step = RUN if ones is not None else tile.shape[1] if tile.shape[2] == 1 else 256
    more = stat(tile, total.dtype if ones is None else tile.dtype, 5)
    for i in range(0, tile.shape[1], step):
        run = tile[:, i : i + step]
        if ones is None:
            np.add.reduce(run, axis=1, keepdims=True, dtype=total.dtype, out=more)
        elif tile.shape[2] == 1:
            np.matmul(run[:, :, 0], ones[: run.shape[1]], out=more[:, 0, 0])
        else:
            np.matmul(ones[: run.shape[1]], run, out=more[:, 0])
        np.add(total, more, out=total)


def sum_powers(x, shift, total):
    """total = the sums of e**(x - shift) of each line."""
    total.fill(0)
    for piece in pieces(x):
        tile = scratch(x[:, piece].shape, total.dtype, 0, 8)
        np.subtract(x[:, piece], shift, out=tile, dtype=total.dtype)
        np.exp(tile, out=tile)
        sum_lines(tile, total)


def statistics(x, wide):
    """The largest of each line, and the sum of e**(x - largest), in scratch slots 2 and 3."""
    top, total = stat(x, wide, 2), stat(x, wide, 3)
    np.maximum.reduce(x, axis=1, keepdims=True, out=top)
    sum_powers(x, top, total)
    return top, total
