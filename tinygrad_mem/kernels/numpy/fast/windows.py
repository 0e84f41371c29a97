"""Sliding windows over planes: the slices that belong to each offset, and the positions of windows in a plane."""

from math import prod

import numpy as np

from ....dtypes import arithmetic
from .threads import GRAIN, scratch, split
from .tiles import boxes, keep

_TILE = 1 << 16  # elements of a tile of sums: it and three others fill the scratch
POINTS = 1 << 15  # windows whose positions are computed at once: a quarter of the scratch in int64


def overlaps(inside, outside, kernel, stride, low, dilation):
    """(number, offset, windows, pixels) of each offset in the kernel: slices of windows and of the pixels they see there."""
    for number, offset in enumerate(np.ndindex(*kernel)):
        windows, pixels = [], []
        for o, size, count, s, p, d in zip(offset, inside, outside, stride, low, dilation, strict=True):
            shift = o * d - p  # the pixel of window 0
            first, last = max(-(shift // s), 0), min((size - 1 - shift) // s, count - 1)
            if last < first:
                break
            windows.append(slice(first, last + 1))
            pixels.append(slice(first * s + shift, last * s + shift + 1, s))
        else:
            yield number, offset, windows, pixels


def tiles_of(shape):
    """(planes, *windows) in tiles: index, shape, and where along each axis the windows begin."""
    for box, sizes in boxes(shape, POINTS):
        yield box, sizes, [cut.start for cut in box[1:]]


def _weights(sizes):
    """The distance of neighbours along each axis of a plane."""
    return [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def corners(sizes, geometry, starts, apart, out):
    """out (planes, *windows) = the place of each window's first offset; ``starts``: of windows; ``apart``: step of planes."""
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
    """out = the places of the offsets numbered ``rest``, in windows whose corners are at ``first``. rest is overwritten."""
    kernel, _, _, dilation = geometry
    steps = [d * weight for d, weight in zip(dilation, _weights(sizes), strict=True)]
    np.multiply(rest, steps[-1], out=out)
    np.add(out, first, out=out)
    for axis in reversed(range(1, len(kernel))):  # a number's digits, the last first: one more of the next, k less of this
        np.floor_divide(rest, kernel[axis], out=rest)
        more = scratch(rest.shape, np.int64, 3, 4)
        np.multiply(rest, steps[axis - 1] - kernel[axis] * steps[axis], out=more)
        np.add(out, more, out=out)


def add_up(add, out):
    """out = the sums that ``add(total, box)`` adds to a tile of zeros, which is the part ``box`` of out.

    Sums of halves are in float32, and rounded once. The tile is in slot 0 of 4 of the scratch.
    """

    def part(first, last):
        for (planes, *sides), sizes in boxes((last - first, *out.shape[1:]), _TILE):
            box = slice(first + planes.start, first + planes.stop), *sides
            total = scratch(sizes, arithmetic(out.dtype), 0, 4)
            total.fill(0)
            add(total, box)
            np.copyto(out[box], total, casting="unsafe")

    split(out.shape[0], part, grain=max(GRAIN // 4 // max(prod(out.shape[1:]), 1), 1))


def sum_halves(pick, outs, geometry, index, out):
    """out = the gradients of the windows that see each entry, summed in float32; with an index, of those that name it.

    ``pick(number, windows)`` gives what windows add to the entry at the offset ``number``. Tiles of out are made from all
    windows that reach into them.
    """
    met = list(overlaps(out.shape[1:], outs, *geometry))

    def add(total, box):
        for number, _, windows, pixels in met:
            cuts = [cut for axis in zip(pixels, windows, box[1:], strict=True) if (cut := _pixels_inside(*axis))]
            if len(cuts) < len(box) - 1:
                continue
            here, there = total[:, *[c[0] for c in cuts]], (box[0], *[c[1] for c in cuts])
            work = scratch(here.shape, np.float32, 1, 4)
            np.copyto(work, pick(number, there))
            if index is not None:
                flag = scratch(here.shape, np.bool_, 2, 4)
                np.equal(index[there], number, out=flag)
                keep(work, flag, scratch(here.shape, np.float32, 3, 4), work)
            np.add(here, work, out=here)

    add_up(add, out)


def _pixels_inside(pixels, windows, bounds):
    """The pixels of one axis within bounds, counted from there, and their windows; ``None`` if there are none."""
    step = pixels.step
    first = max(-((pixels.start - bounds.start) // step), 0)  # rounded up
    last = min((bounds.stop - 1 - pixels.start) // step, windows.stop - windows.start - 1)
    if last < first:
        return None
    start = pixels.start + first * step - bounds.start
    return slice(start, start + (last - first) * step + 1, step), slice(windows.start + first, windows.start + last + 1)


def windows_inside(windows, pixels, bounds):
    """The windows of one axis within bounds, counted from there, and their pixels; ``None`` if there are none."""
    first, last = max(windows.start, bounds.start), min(windows.stop, bounds.stop)
    if last <= first:
        return None
    start, step = pixels.start + (first - windows.start) * pixels.step, pixels.step
    return slice(first - bounds.start, last - bounds.start), slice(start, start + (last - first - 1) * step + 1, step)
