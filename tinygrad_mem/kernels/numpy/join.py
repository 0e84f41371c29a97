"""Rearrangements."""

import numpy as np

from ..formula import formula
from .fast.threads import scratch
from .fast.windows import add_up


@formula(lambda x, diagonal, lower: np.tril(x, diagonal) if lower else np.triu(x, diagonal))
def triangle(x, diagonal, lower, out):
    """out = x on one side of a diagonal of the last two axes, 0 on the other."""
    rows, columns = out.shape[-2:]
    for i in range(rows):
        edge = min(max(i + diagonal + (1 if lower else 0), 0), columns)
        kept, zero = (slice(0, edge), slice(edge, None)) if lower else (slice(edge, None), slice(0, edge))
        if x is not out:
            np.copyto(out[..., i, kept], x[..., i, kept])
        out[..., i, zero] = 0


def _windows_backward(gy, axis, step, out):
    gx = np.moveaxis(np.zeros(out.shape), axis, 0)
    for window, part in enumerate(np.moveaxis(gy, axis, 0)):
        for offset in range(part.shape[-1]):
            gx[window * step + offset] += part[..., offset]
    return np.moveaxis(gx, 0, axis)


@formula(_windows_backward)
def windows_backward(gy, axis, step, out):
    """out = the gradients gy (a window's place along ``axis``, its entries last) of the windows that see each entry, added up.

    Halves are added in float32.
    """

    def add(total, cuts):
        start, stop = cuts[axis].start, cuts[axis].stop
        for offset in range(gy.shape[-1]):
            first = max(-((offset - start) // step), 0)  # rounded up
            last = min((stop - 1 - offset) // step, gy.shape[axis] - 1)
            if last < first:
                continue
            place = first * step + offset - start
            here = total[(slice(None),) * axis + (slice(place, place + (last - first) * step + 1, step),)]
            part = gy[(*cuts[:axis], slice(first, last + 1), *cuts[axis + 1 :], offset)]
            work = scratch(here.shape, total.dtype, 1, 4)
            np.copyto(work, part)
            np.add(here, work, out=here)

    add_up(add, out)
