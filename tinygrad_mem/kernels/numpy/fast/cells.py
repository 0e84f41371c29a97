"""The cells of adaptive pooling, which may overlap and differ in size by one."""

import numpy as np

from ....dtypes import is_floating
from .threads import scratch
from .tiles import cuts

PLACES = 1 << 16  # int64 positions in half of the scratch


def cells(size, out):
    """Adaptive pooling's windows along one axis: start and stop of each output."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def each_cell(inside, outside):
    """For each cell, and each chunk of planes that fits the scratch: the index of its entries, its own index, its size."""
    windows = [cells(size, n) for size, n in zip(inside.shape[1:], outside.shape[1:], strict=True)]
    for at in np.ndindex(outside.shape[1:]):
        bounds = [windows[axis][i] for axis, i in enumerate(at)]
        count = int(np.prod([stop - start for start, stop in bounds]))
        for planes in cuts(0, inside.shape[0], PLACES << 1):
            yield (planes, *[slice(*b) for b in bounds]), (planes, *at), count


def largest(rows, best, place):
    """The largest number of each row, and its first position."""
    np.maximum.reduce(rows, axis=1, out=best)
    found = scratch(place.shape, np.intp, 1, 2)
    np.argmax(rows, axis=1, out=found)
    np.copyto(place, found)


def largest_by_rows(cell, best, place):
    """The same of one cell, without a copy of the cell."""
    width, value = cell.shape[-1], scratch((1,), cell.dtype, 0, 4)
    best.fill(-np.inf if is_floating(cell.dtype) else np.iinfo(cell.dtype).min)
    place.fill(0)
    for number, at in enumerate(np.ndindex(cell.shape[:-1])):
        np.maximum.reduce(cell[at], out=value.reshape(()))
        if value[0] > best[0] or (value[0] != value[0] and best[0] == best[0]):
            best[0] = value[0]
            place[0] = number * width + int(np.argmax(cell[at]))


def unravel(place, inner, starts, sizes):
    """In place: convert a position in a cell of shape ``inner``, which begins at ``starts``, to a position in the plane."""
    rest, part = scratch(place.shape, np.int64, 0, 2), scratch(place.shape, np.int64, 1, 2)
    np.copyto(rest, place)
    place.fill(0)
    weight = 1
    for k, start, size in zip(reversed(inner), reversed(starts), reversed(sizes), strict=True):
        np.divmod(rest, k, out=(rest, part))
        np.add(part, start, out=part)
        np.multiply(part, weight, out=part)
        np.add(place, part, out=place)
        weight *= size
