"""Places of a pooling's windows in their planes: int64, counted along a plane."""

from __future__ import annotations

from math import prod

import numpy as np

from .threads import scratch
from .tiles import blocks

POINTS = 1 << 15  # windows at once whose places are computed: a quarter of the scratch in int64


def box_of(tile, shape):
    """An index of ``tiles.blocks`` as one slice an axis."""
    cuts = [slice(0, n) for n in shape]
    for axis, i in enumerate(() if tile == (...,) else tile):
        cuts[axis] = slice(i, i + 1) if isinstance(i, int) else slice(i.start, min(i.stop, shape[axis]))
    return cuts


def tiles_of(shape):
    """(planes, *windows) in tiles: index, shape, and where along each axis the windows begin."""
    for tile in blocks(shape, POINTS):
        box = box_of(tile, shape)
        yield tuple(box), tuple([cut.stop - cut.start for cut in box]), [cut.start for cut in box[1:]]


def _weights(sizes):
    """The distance of neighbours along each axis of a plane."""
    return [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def corners(sizes, geometry, starts, apart, out):
    """out (planes, *windows) = the place of each window's first offset, from ``starts`` on, in planes so far ``apart``."""
    _, stride, padding, _ = geometry
    out.fill(0)
    axes = [(1, 0, 0, apart), *zip(stride, padding, starts, _weights(sizes), strict=True)]
    for axis, (s, p, first, weight) in enumerate(axes):
        for i in range(0, out.shape[axis], POINTS):
            target = out[(slice(None),) * axis + (slice(i, i + POINTS),)]
            line = scratch((target.shape[axis],), np.int64, 3, 4)
            line.fill(s * weight)
            line[0] = ((i + first) * s - p) * weight
            np.add.accumulate(line, out=line)
            np.add(target, line.reshape((-1,) + (1,) * (out.ndim - 1 - axis)), out=target)


def offset_places(rest, sizes, geometry, first, out):
    """out = ``first``, the windows' corners, and how far the offsets of the numbers ``rest`` are from them; rest is used up."""
    kernel, _, _, dilation = geometry
    steps = [d * weight for d, weight in zip(dilation, _weights(sizes), strict=True)]
    np.multiply(rest, steps[-1], out=out)
    np.add(out, first, out=out)
    for axis in reversed(range(1, len(kernel))):  # a number's digits, the last first: one more of the next, k less of this
        np.floor_divide(rest, kernel[axis], out=rest)
        more = scratch(rest.shape, np.int64, 3, 4)
        np.multiply(rest, steps[axis - 1] - kernel[axis] * steps[axis], out=more)
        np.add(out, more, out=out)
