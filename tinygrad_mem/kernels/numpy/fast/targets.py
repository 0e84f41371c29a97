"""Positions of targets in a tile of lines of classes, and their weights."""

from itertools import product

import numpy as np

from .lines import LINES
from .threads import count_up, scratch
from .tiles import cuts


def positions(target, piece, ignore, classes):
    """Flat positions of the targets in a contiguous tile of ``piece``, and a mask of those outside of it (ignored, or
    elsewhere).

    Positions of the latter are valid, and must not be used.
    """
    at = scratch(target.shape, np.int64, 4, 8)
    out = scratch(target.shape, np.bool_, 6, 8)
    np.equal(target, ignore, out=out)
    if piece.stop - piece.start < classes:
        more = scratch((2, *target.shape), np.bool_, 6, 8)[1]
        np.less(target, piece.start, out=more)
        np.logical_or(out, more, out=out)
        np.greater_equal(target, piece.stop, out=more)
        np.logical_or(out, more, out=out)
    np.subtract(target, piece.start, out=at, casting="unsafe")
    np.copyto(at, 0, where=out)
    rows, width = target.shape
    if width != 1:
        np.multiply(at, width, out=at)
        np.add(at, count_up(0, 1, width, 5, 8), out=at)
    np.add(at, count_up(0, (piece.stop - piece.start) * width, rows, 5, 8)[:, None], out=at)
    return at, out


def weights(weight, target, ignore, wide, slot):
    """The class weight of every target, 0 where ignored."""
    at = scratch(target.shape, np.int64, 4, 8)
    skip = scratch(target.shape, np.bool_, 6, 8)
    out = scratch(target.shape, wide, slot, 8)
    np.equal(target, ignore, out=skip)
    if weight is None:
        out.fill(1)
    else:
        np.copyto(at, target, casting="unsafe")
        np.copyto(at, 0, where=skip)
        np.take(weight, at, out=out, mode="clip")
    np.copyto(out, 0, where=skip)
    return out


def total_weight(weight, classes):
    """The sum of the weights of all classes."""
    return classes if weight is None else float(np.add.reduce(weight, dtype=np.float64))


def patches(shape):
    """Slices of the axes of targets with at most LINES of them, contiguous in a contiguous array."""
    outer, inner = shape
    width = max(min(inner, LINES), 1)
    height = LINES // width if width == inner else 1
    return product(cuts(0, outer, height), cuts(0, inner, width))


def subtract_at(flat, at, missing, amount):
    """flat[at] -= amount where not missing; the positions of a tile are all different."""
    found = scratch(at.shape, flat.dtype, 5, 8)
    np.take(flat, at, out=found, mode="clip")
    np.logical_not(missing, out=missing)
    np.subtract(found, amount, out=found, where=missing)
    np.put(flat, at, found, mode="clip")
