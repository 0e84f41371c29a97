"""Places in sorted lines, and counts of values between edges: passes of ufuncs over tiles, because NumPy's own allocate."""

import numpy as np

from ...errors import ArgumentError
from ..formula import formula
from .fast.threads import scratch

_TILE = 1 << 15  # places in a tile: a quarter of the scratch


def _search_sorted(sequence, values, right):
    lines = np.broadcast_to(sequence, (*values.shape[:-1], sequence.shape[-1])) if sequence.ndim == 1 else sequence
    found = np.empty(values.shape, np.int64)
    for i in np.ndindex(values.shape[:-1]):
        found[i] = np.searchsorted(lines[i], values[i], "right" if right else "left")
    return found


@formula(_search_sorted)
def search_sorted(sequence, values, right, out):
    """out = how many of a sorted line are before each value; equal ones count where ``right``.

    sequence is (..., n) with a line for each line of values, or one line for all; all are contiguous, of one dtype.
    """
    if not sequence.shape[-1]:
        out.fill(0)
        return
    for index in np.ndindex(sequence.shape[:-1]):
        key = (*index, ...) if sequence.ndim > 1 else (...,)
        _search(sequence[(*index, ...)], values[key].reshape(-1), right, out[key].reshape(-1))


def _search(line, values, right, out):
    """Halving, for a tile of values at once: a step forward wherever the last number of the step is still before the value."""
    before = np.less_equal if right else np.less
    n = line.size
    for i in range(0, values.size, _TILE):
        value = values[i : i + _TILE]
        place, probe, taken = [scratch(value.shape, t, k, 4) for k, t in enumerate((np.int64, np.int64, line.dtype))]
        flag, inside = scratch((2, value.size), np.bool_, 3, 4)
        place.fill(0)
        step = 1 << (n.bit_length() - 1)
        while step:
            np.add(place, step - 1, out=probe)
            np.take(line, probe, out=taken, mode="clip")  # other modes buffer the output
            before(taken, value, out=flag)
            np.not_equal(value, value, out=inside)
            np.logical_or(flag, inside, out=flag)  # nan goes behind all
            np.less(probe, n, out=inside)
            np.logical_and(flag, inside, out=flag)
            np.copyto(probe, flag)
            np.multiply(probe, step, out=probe)
            np.add(place, probe, out=place)
            step >>= 1
        np.copyto(out[i : i + _TILE], place, casting="unsafe")


def _histogram_bounds(x, low, high):
    if low == high and x.size:
        low, high = np.min(x), np.max(x)
    if low < high:
        return np.array([low, high])
    low = np.array(low, x.dtype)
    return np.array([min(low - 1, np.nextafter(low, -np.inf)), max(low + 1, np.nextafter(low, np.inf))])


@formula(_histogram_bounds)
def histogram_bounds(x, low, high, out):
    """out = (low, high), or the smallest and largest of x where these are equal; and a number to each side where all are equal.

    Raises:
        ArgumentError: a bound is not finite.
    """
    first, last = float(low), float(high)
    if first == last and x.size:
        first, last = float(np.minimum.reduce(x, axis=None)), float(np.maximum.reduce(x, axis=None))
    if not (np.isfinite(first) and np.isfinite(last)):
        raise ArgumentError(f"histc: range of [{first}, {last}] is not finite; give min and max")
    out[0], out[1] = (first - 1, last + 1) if first == last else (first, last)
    if first == last:  # a large number is its own neighbour
        np.minimum(out[0], np.nextafter(out.dtype.type(first), -np.inf), out=out[:1])
        np.maximum(out[1], np.nextafter(out.dtype.type(first), np.inf), out=out[1:])


def _histogram(x, bounds, out):
    inside = x[(x >= bounds[0]) & (x <= bounds[1])]
    place = (inside - bounds[0]) * out.size / (bounds[1] - bounds[0] or 1)
    return out + np.bincount(np.minimum(place.astype(int), out.size - 1), minlength=out.size)


@formula(_histogram)
def histogram(x, bounds, out):
    """out += the count of x, contiguous, in each of ``out.size`` equal intervals between the bounds; the last is closed.

    Between equal bounds all are in the first.
    """
    line, low, width = x.reshape(-1), bounds[0], bounds[1] - bounds[0] or bounds.dtype.type(1)
    for i in range(0, line.size, _TILE):
        part = line[i : i + _TILE]
        scaled, place, weight = [scratch(part.shape, t, k, 4) for k, t in enumerate((x.dtype, np.int64, out.dtype))]
        flag, other = scratch((2, part.size), np.bool_, 3, 4)
        np.greater_equal(part, low, out=flag)
        np.less_equal(part, bounds[1], out=other)
        np.logical_and(flag, other, out=flag)
        np.subtract(part, low, out=scaled)
        np.multiply(scaled, out.size, out=scaled)
        np.divide(scaled, width, out=scaled)
        np.logical_not(flag, out=other)
        np.copyto(scaled, 0, where=other)  # outside, or nan: counted as nothing
        np.copyto(place, scaled, casting="unsafe")
        np.minimum(place, out.size - 1, out=place)
        np.copyto(weight, flag)
        np.add.at(out, place, weight)
