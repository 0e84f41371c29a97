"""Indexing without NumPy's, which allocates: places in memory are computed in tiles of scratch, then read or written.

A place is a position in the memory of an array, counted in elements from its first element, so the array may be a view.
"""

from math import prod as _prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ...dtypes import is_half
from ..formula import formula
from .fast.threads import count_up, scratch
from .fast.tiles import blocks, boxes

_TILE = 1 << 16  # places in a tile: a quarter of the scratch
_ROW = 64  # elements of a line from which on a call for each line is faster than a place for each element


@formula(lambda x, index: x[index])
def take(x, index, out):
    """out = rows of x (axis 0) by int64 index, all within bounds; negative ones count from the end."""
    np.take(x, index, axis=0, out=out, mode="wrap")  # "raise" buffers the output


def _add_rows(rows, index, out):
    np.add.at(out, index.reshape(-1), rows.reshape(index.size, *out.shape[1:]))
    return out


@formula(_add_rows)
def add_rows(rows, index, out):
    """out[index[i]] += rows[i], in order; negative indices count from the end."""
    if out.flags.c_contiguous:
        out = out.reshape(len(out), _prod(out.shape[1:]))
    index_put(rows.reshape(index.size, *out.shape[1:]), (index.reshape(-1), *[slice(None)] * (out.ndim - 1)), True, None, out)


@formula(lambda x, key: x[tuple(key)])
def index_get(x, key, out):
    """out = x[key]; the key has an int64 array, whose negative entries count from the end, or a whole slice for each axis."""
    _selected(x, key).get(out)


def index_put_workspace(x, accumulate):
    """Bytes of workspace for ``index_put``: none here."""
    return 0


def _index_put(value, key, accumulate, out):
    if accumulate:
        np.add.at(out, tuple(key), value)
    else:
        out[tuple(key)] = value
    return out


@formula(_index_put)
def index_put(value, key, accumulate, work, out):
    """out[key] = value, or += with repeated entries adding up; the key as in :func:`index_get`."""
    places = _selected(out, key)
    (places.add if accumulate else places.put)(value)


def _places(axis, index):
    """Each place of ``index``, and the position along ``axis`` that it names."""
    for here in np.ndindex(index.shape):
        yield here, (*here[:axis], index[here], *here[axis + 1 :]) if index.ndim else ()


@formula(lambda x, axis, index: np.array([x[to] for _, to in _places(axis, index)], x.dtype).reshape(index.shape))
def gather(x, axis, index, out):
    """out = x at index along axis."""
    _along(x, axis, index).get(out)


def _scattered(source, axis, index, out, together):
    for here, to in _places(axis, index):
        out[to] = together(out[to], source[here] if np.ndim(source) else source)
    return out


@formula(lambda source, axis, index, out: _scattered(source, axis, index, out, lambda before, new: new))
def scatter(source, axis, index, out):
    """out at index along axis = source: a number, or an array of at least index's shape."""
    _along(out, axis, index).put(_part(source, index))


@formula(lambda source, axis, index, out: _scattered(source, axis, index, out, np.add))
def scatter_add(source, axis, index, out):
    """out at index along axis += source; halves are summed in float32, line by line."""
    part = _part(source, index)
    if is_half(out.dtype) and index.ndim > 1 and index.size and out.shape[axis] <= _TILE:
        lead = index.shape[:axis] + index.shape[axis + 1 :]
        corner = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(index.shape))
        lines = [np.moveaxis(a, axis, -1) for a in (out[corner], index)]
        values = np.moveaxis(part, axis, -1) if isinstance(part, np.ndarray) else part
        for key in blocks(lead, max(_TILE // out.shape[axis], 1)):
            _add_to_lines(values[key] if isinstance(values, np.ndarray) else values, lines[1][key], lines[0][key])
        return
    _along(out, axis, index).add(part)


def _add_to_lines(source, index, out):
    """out (..., n) at index (..., k) += source, summed in float32; out fits a tile."""
    total = scratch(out.shape, np.float32, 3, 5)
    np.copyto(total, out)
    n, lines = out.shape[-1], _prod(out.shape[:-1])
    step = max((_TILE >> 1) // max(lines, 1), 1)
    for i in range(0, index.shape[-1], step):
        part = index[..., i : i + step]
        places, values = scratch(part.shape, np.int64, 0, 5), scratch(part.shape, np.float32, 2, 5)
        np.copyto(places, part)
        for axis in range(part.ndim - 1):
            _count(places, axis, 0, n * _prod(part.shape[axis + 1 : -1]), 5)
        np.copyto(values, source[..., i : i + step] if isinstance(source, np.ndarray) else source)
        np.add.at(total.reshape(-1), places.reshape(-1), values.reshape(-1))
    np.copyto(out, total, casting="unsafe")


@formula(lambda source, axis, index, reduce, out: _scattered(source, axis, index, out, _TOGETHER[reduce]))
def scatter_reduce(source, axis, index, reduce, out):
    """out at index along axis = itself and source together: their product ("prod"), the larger ("amax") or smaller ("amin")."""
    _along(out, axis, index).combine(_TOGETHER[reduce], _part(source, index))


_TOGETHER = {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}


def _part(source, index):
    return source[tuple(slice(0, n) for n in index.shape)] if isinstance(source, np.ndarray) else source


def _memory(x):
    """The memory of x from its lowest to its highest address as a vector, x's strides in elements, and the place of its first
    element, which is not 0 where an axis goes down, as in the gradient of a flip.
    """
    strides = [s // x.itemsize for s in x.strides]
    if x.flags.c_contiguous:
        return x.reshape(-1), strides, 0
    steps = [(n - 1) * s if x.size else 0 for n, s in zip(x.shape, strides, strict=True)]
    lowest = x[tuple(slice(None, None, -1 if step < 0 else 1) for step in steps)]
    count = 1 + sum(map(abs, steps)) if x.size else 0
    return as_strided(lowest, (count,), (x.itemsize,)), strides, -sum(step for step in steps if step < 0)


def _along(x, axis, index):
    """The places of x that index names along an axis; the other axes count up."""
    line, strides, first = _memory(x)
    step = strides[axis] if strides else 0
    return _Places(line, first, index.shape, [(index, step, 0)], [(a, s) for a, s in enumerate(strides) if a != axis])


def _selected(x, key):
    """The places of x[key]. If arrays in ``key`` are adjacent, their axes keep their position; else these come first."""
    line, strides, begin = _memory(x)
    arrays = [a for a, k in enumerate(key) if isinstance(k, np.ndarray)]
    rest = [a for a in range(x.ndim) if a not in arrays]
    common = np.broadcast_shapes(*[key[a].shape for a in arrays])
    first = arrays[0] if arrays[-1] - arrays[0] == len(arrays) - 1 else 0
    after = len(rest) - first
    sizes = [x.shape[a] for a in rest]
    targets = [*range(first), *range(first + len(common), len(rest) + len(common))]
    indices = [(key[a][(..., *[None] * after)], strides[a], x.shape[a]) for a in arrays]
    counts = [(target, strides[a]) for target, a in zip(targets, rest, strict=True)]
    return _Places(line, begin, (*sizes[:first], *common, *sizes[first:]), indices, counts)


class _Places:
    """The place of each element of an array of ``shape``: ``first``, and per axis an index or a position times its stride.

    Args:
        line: the memory in which the places are.
        first: the place of the element whose indices are all 0.
        shape: of what is read or written.
        indices: int64 arrays that broadcast to it, what a step of each is worth, and the size of the axis, from whose end
            negative entries count; 0 where there are none.
        counts: axes whose position counts, and what a step along each is worth.
    """

    def __init__(self, line, first, shape, indices, counts):
        self.line, self.first, self.shape, self.indices, self.counts, self.width = line, first, shape, indices, counts, 1
        lines = all(array.shape[-1:] == (1,) for array, _, _ in indices)
        if lines and (len(shape) - 1, 1) in counts and shape[-1] >= _ROW:  # of all that a place selects, a contiguous line
            self.width = shape[-1]
            self.counts = [c for c in counts if c[0] != len(shape) - 1]

    def get(self, out):
        """out = the elements at the places; out is contiguous."""
        for places, target in self.tiles(out):
            if self.width == 1:
                np.take(self.line, places, out=target, mode="clip")  # other modes buffer the output
                continue
            for place, row in self.rows(places, target):
                np.copyto(row, self.line[place : place + self.width])

    def put(self, value):
        """value goes to the places: a number, or an array of the shape."""
        for places, part in self.tiles(value):
            if self.width == 1:
                np.put(self.line, places, _plain(part, places.shape, self.line.dtype), mode="clip")
                continue
            for place, row in self.rows(places, part):
                np.copyto(self.line[place : place + self.width], row, casting="unsafe")

    def add(self, value):
        """Add value to the elements at the places, in order."""
        if is_half(self.line.dtype):
            self._add_halves(value)
        else:
            self.combine(np.add, value)

    def combine(self, ufunc, value):
        """Combine the elements at the places with value by ``ufunc``, in order."""
        for places, part in self.tiles(value):
            if self.width == 1:
                ufunc.at(self.line, places.reshape(-1), _plain(part, places.shape, self.line.dtype).reshape(-1))
                continue
            for place, row in self.rows(places, part):
                target = self.line[place : place + self.width]
                ufunc(target, row, out=target)

    def _add_halves(self, value):
        """:meth:`add` with sums in float32, for one window of the memory at a time."""
        for start in range(0, self.line.size, _TILE):
            window = self.line[start : start + _TILE]
            total = scratch(window.shape, np.float32, 3, 5)
            np.copyto(total, window)
            for places, part in self.tiles(value, slots=5):
                np.subtract(places, start, out=places)
                if self.width == 1:
                    _add_inside(part, places.reshape(-1), total)
                    continue
                for place, row in self.rows(places, part):
                    low, high = max(place, 0), min(place + self.width, total.size)
                    if low < high:
                        cut, added = total[low:high], scratch((high - low,), np.float32, 2, 5)
                        np.copyto(added, row[low - place : high - place] if isinstance(row, np.ndarray) else row)
                        np.add(cut, added, out=cut)
            np.copyto(window, total, casting="unsafe")

    def rows(self, places, part):
        """Each place with its line of a part."""
        flat = places.reshape(-1).tolist()
        if not isinstance(part, np.ndarray):
            return ((place, part) for place in flat)
        if part.ndim == 2:
            return zip(flat, part, strict=True)
        return ((place, part[at]) for place, at in zip(flat, np.ndindex(part.shape[:-1]), strict=True))

    def tiles(self, value, slots=4):
        """(places, their part of ``value``) that fit a tile; where whole lines are taken, a place is the first of a line."""
        lead = self.shape if self.width == 1 else self.shape[:-1]
        if 0 in self.shape:
            return
        for key, sizes in boxes(lead, _TILE if slots == 4 else _TILE >> 1):
            places = scratch(sizes, np.int64, 0, slots)
            places.fill(self.first)
            for array, stride, size in self.indices:
                self._add_index(places, array if self.width == 1 else array[..., 0], key, stride, size, slots)
            for axis, stride in self.counts:
                _count(places, axis, key[axis].start * stride, stride, slots)
            yield places, value[(*key, ...)] if isinstance(value, np.ndarray) else value

    def _add_index(self, places, array, key, stride, size, slots):
        """places += array * stride, the array broadcast, its negative entries counted from the end of ``size``."""
        key = key[len(key) - array.ndim :]
        part = array[tuple(k if n != 1 else slice(None) for k, n in zip(key, array.shape, strict=True))]
        own = scratch(part.shape, np.int64, 1, slots)
        if size and part.size and part.min() < 0:
            part = np.remainder(part, size, out=own)
        if stride != 1:
            part = np.multiply(part, stride, out=own)
        np.add(places, part, out=places)


def _count(places, axis, first, step, slots):
    """places += first, first + step, ... along an axis."""
    line = count_up(first, step, places.shape[axis], 1, slots)
    np.add(places, line[(..., *[None] * (places.ndim - axis - 1))], out=places)


def _add_inside(part, places, total):
    """total[places] += part, in order, for the places that are within total; for the others, 0 is added to some element.

    The places are overwritten; neither they nor total are in the slots 2 and 4 of 5 of the scratch.
    """
    values = scratch(places.shape, total.dtype, 2, 5)
    if isinstance(part, np.ndarray):
        np.copyto(values.reshape(part.shape), part)
    else:
        values.fill(part)
    outside = scratch(places.shape, np.bool_, 4, 5)
    np.greater_equal(places.view(np.uint64), total.size, out=outside)  # negative ones are large
    np.copyto(values, 0, where=outside)
    np.clip(places, 0, total.size - 1, out=places)
    np.add.at(total, places, values)


def _plain(part, shape, dtype):
    """A part of a value as a contiguous array of a dtype: the part itself, or a copy in scratch."""
    if isinstance(part, np.ndarray) and part.dtype == dtype and part.flags.c_contiguous:
        return part
    tile = scratch(shape, dtype, 2, 4)
    np.copyto(tile, part, casting="unsafe")
    return tile
