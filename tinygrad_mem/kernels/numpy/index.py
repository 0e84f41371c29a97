"""Indexing. What NumPy's advanced indexing allocates by itself is listed in kernels/uncounted.py."""

from __future__ import annotations

import numpy as np


def take(x, index, out):
    """out = rows of x (axis 0) by int64 index, all within bounds."""
    np.take(x, index, axis=0, out=out, mode="clip")  # other modes buffer the output


def add_rows(rows, index, out):
    """out[index[i]] += rows[i], in order."""
    flat = index.reshape(-1)
    values = rows.reshape(flat.size, *out.shape[1:])
    if out.ndim == 1:
        np.add.at(out, flat, values)
        return
    for i in range(flat.size):
        np.add(out[flat[i]], values[i], out=out[flat[i]])


def index_get(x, key, out):
    """out = x[key] with arrays in the key."""
    np.copyto(out, x[key])


def index_put(value, key, accumulate, out):
    """out[key] = value, or += with repeated entries adding up."""
    if accumulate:
        np.add.at(out, key, value)
    else:
        out[key] = value


def gather(x, axis, index, out):
    """out = x at index along axis."""
    cut = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
    np.copyto(out, np.take_along_axis(x[cut], index, axis))


def _along(index, axis):
    """The key that selects, for each entry of index, one element of an array."""
    grid = np.ogrid[tuple(slice(0, n) for n in index.shape)]
    return tuple(index if a == axis else g for a, g in enumerate(grid))


def scatter(source, axis, index, out):
    """out at index along axis = source: a number, or an array of at least index's shape."""
    out[_along(index, axis)] = source if not isinstance(source, np.ndarray) else _part(source, index)


def scatter_add(source, axis, index, out):
    """out at index along axis += source."""
    np.add.at(out, _along(index, axis), source if not isinstance(source, np.ndarray) else _part(source, index))


def _part(source, index):
    return source[tuple(slice(0, n) for n in index.shape)]
