"""Resampling (planes, *sizes) to other sizes, axis after axis: an output is a sum of a few inputs of its line, its taps.

``places`` and ``weights`` hold, one axis after the other, the taps of each output: first all first taps, then all second ones.
``taps`` is their number for each axis, 0 for one that stays as it is. ``plain``: all weights are 1.
"""

from math import prod as _prod

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast import threads

# --- the formulas


def _resampled(x, places, weights, taps, plain, out):
    start = 0
    for axis, count in enumerate(taps, 1):
        size = out.shape[axis]
        index, weight = (table[start : start + count * size].reshape(count, size) for table in (places, weights))
        start += count * size
        if count:
            along = (-1, *[1] * (x.ndim - 1 - axis))
            parts = [np.take(x, index[k], axis) * (1 if plain else weight[k].reshape(along)) for k in range(count)]
            x = np.add.reduce(parts)
    return x


# --- the fast ways

_CHUNK = 1 << 17  # elements of the planes that are resampled together


def _plan(sizes, outs, taps, dtype, plain):
    """Planes of a chunk, the dtype of its sums, and the shapes of a plane on the way, from ``sizes`` to ``outs``."""
    wide = dtype if plain else arithmetic(dtype)
    steps = [sizes]
    for axis, count in enumerate(taps):
        if count:
            steps.append((*steps[-1][:axis], outs[axis], *steps[-1][axis + 1 :]))
    return max(_CHUNK // max(max(map(_prod, steps)), 1), 1), wide, steps


def _between(planes, dtype, wide, steps):
    """Shapes of the results between input and output of a chunk; for half precision, of float32 copies of both as well."""
    return [(planes, *s) for s in (steps[1:-1] if dtype == wide else steps)]


def resize_workspace(shape, outs, taps, plain, dtype):
    """Bytes of workspace of :func:`resize`: the results between two axes, for one chunk of planes per thread."""
    planes, wide, steps = _plan(shape[1:], outs, taps, dtype, plain)
    planes = min(planes, shape[0])
    chunks = -(-shape[0] // max(planes, 1))
    return min(threads.threads(), chunks) * wide.itemsize * sum(map(_prod, _between(planes, dtype, wide, steps)))


@formula(_resampled)
def resize(x, places, weights, taps, plain, work, out):
    """out = x resampled; both are contiguous, and work is of ``resize_workspace`` bytes, or ``None``."""
    planes, wide, steps = _plan(x.shape[1:], out.shape[1:], taps, x.dtype, plain)
    if out.size == 0:
        return
    planes = min(planes, len(x))
    shapes = _between(planes, x.dtype, wide, steps)
    space = out.reshape(-1) if work is None else work.view(wide)  # without a workspace there are no buffers
    share = sum(map(_prod, shapes))

    def run(lane, chunk):
        part, target = x[chunk * planes : (chunk + 1) * planes], out[chunk * planes : (chunk + 1) * planes]
        buffers, at = [], lane * share
        for shape in shapes:
            size = len(part) * _prod(shape[1:])
            buffers.append(space[at : at + size].reshape(len(part), *shape[1:]))
            at += size
        if x.dtype == wide:
            _chain([part, *buffers, target], places, weights, taps, plain)
        else:
            np.copyto(buffers[0], part)
            _chain(buffers, places, weights, taps, plain)
            np.copyto(target, buffers[-1], casting="unsafe")

    chunks = -(-len(x) // planes)
    threads.lanes(chunks, chunks, run)


def _chain(arrays, places, weights, taps, plain):
    """Each array from the one before it, along one axis."""
    start, step = 0, 0
    for axis, count in enumerate(taps, start=1):
        if not count:
            continue
        source, target = arrays[step], arrays[step + 1]
        step += 1
        size = target.shape[axis]
        table = slice(start, start + count * size)
        start += count * size
        lead, inner = _prod(source.shape[:axis]), _prod(source.shape[axis + 1 :])
        index, weight = places[table].reshape(count, size), weights[table].reshape(count, size)
        _along(
            source.reshape(lead, source.shape[axis], inner), index, None if plain else weight, target.reshape(lead, size, inner)
        )


def _along(x, index, weight, out):
    """out (lead, m, inner) = the sum over k of weight[k] * x[:, index[k]]."""
    line = x.shape[2]
    lines = threads.SCRATCH // 2 // x.itemsize // line  # of the output, through scratch
    if not lines:
        _by_line(x, index, weight, out)
        return
    width = min(lines, out.shape[1])
    height = max(lines // width, 1)
    for i in range(0, len(x), height):
        part = x[i : i + height]
        for j in range(0, out.shape[1], width):
            target = out[i : i + height, j : j + width]
            tile = threads.scratch(target.shape, x.dtype, 0, 2)
            for k in range(len(index)):
                np.take(part, index[k, j : j + width], axis=1, out=tile, mode="clip")  # other modes buffer the output
                if weight is None:
                    np.copyto(target, tile)
                    continue
                share = weight[k, j : j + width, None]
                np.multiply(tile, share, out=tile if k else target)
                if k:
                    np.add(target, tile, out=target)


def _by_line(x, index, weight, out):
    """:func:`_along` for lines that are longer than the scratch."""
    step = threads.SCRATCH // 2 // x.itemsize
    for i in range(len(x)):
        for j in range(out.shape[1]):
            for at in range(0, x.shape[2], step):
                target = out[i, j, at : at + step]
                for k in range(len(index)):
                    part = x[i, index[k, j], at : at + step]
                    if weight is None:
                        np.copyto(target, part)
                        continue
                    tile = threads.scratch(part.shape, x.dtype, 0, 2)
                    np.multiply(part, weight[k, j], out=tile if k else target)
                    if k:
                        np.add(target, tile, out=target)
