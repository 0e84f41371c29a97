"""Orders along an axis, and elements at the places that an index array names.

Values of at most 32 bits are packed with their position into int64 keys, and the keys are sorted in place in a tile of
scratch: that is stable, needs no allocation, and uses NumPy's vectorised sort. 64-bit values are sorted so twice, by their
low half and then by their high half: what was in order stays in order among equals.
"""

import numpy as np

from ...dtypes import is_floating
from ..formula import formula
from .fast.halves import cast
from .fast.threads import count_up, scratch, split
from .fast.tiles import blocks, flags
from .index import scatter_add as _scatter_add

_TILE = 1 << 15  # keys in a tile: a quarter of the scratch


def order_workspace(x, axis):
    """Bytes of workspace for ``order``: the keys of a line longer than a tile; for 64 bits also the numbers and an order."""
    return (8 if x.itemsize <= 4 else 24) * x.shape[axis] if x.shape[axis] > _TILE else 0


def _order(x, axis, start, stop, descending):
    places = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
    places = np.flip(x.shape[axis] - 1 - places, axis) if descending else places
    return np.moveaxis(np.moveaxis(places, axis, -1)[..., start:stop], -1, axis)


@formula(_order)
def order(x, axis, start, stop, descending, work, out):
    """out = the indices of the elements of rank ``start`` to ``stop`` along ``axis``: nan is the largest, ties in order."""
    if out.size == 0:
        return
    lines, outs = np.moveaxis(x, axis, -1), np.moveaxis(out, axis, -1)
    one = _order_packed if x.dtype.itemsize <= 4 else _order_wide
    if lines.ndim == 1 or work is not None:
        for index in np.ndindex(lines.shape[:-1]):
            one(lines[index], start, stop, descending, work, outs[index])
        return

    def part(i, j):
        lead = (j - i, *lines.shape[1:-1])
        for index in blocks(lead, max(_TILE // lines.shape[-1], 1)):
            one(lines[i:j][index], start, stop, descending, work, outs[i:j][index])

    split(lines.shape[0], part, grain=max(_TILE // max(x.size // lines.shape[0], 1), 1))


def _order_wide(x, start, stop, descending, work, out):
    n = x.shape[-1]
    if work is None:
        numbers, keys, order = [scratch(x.shape, np.int64, slot, 4) for slot in range(3)]
    else:
        numbers, keys, order = work.view(np.int64)[: 3 * n].reshape(3, *x.shape)
    _as_integers(x, keys, numbers)
    if descending:
        np.invert(numbers, out=numbers)
    np.left_shift(numbers, 32, out=order)
    np.bitwise_xor(order, _LOWEST, out=order)  # the low half has no sign
    _number(order)
    order.sort(axis=-1)
    np.bitwise_and(order, _LOW, out=order)
    _take_lines(numbers, order, keys)
    np.bitwise_and(keys, ~_LOW, out=keys)
    _number(keys)
    found = _sorted_part(keys, start, stop)
    index, places = [buffer.reshape(-1)[: found.size].reshape(found.shape) for buffer in (numbers, keys)]
    np.bitwise_and(found, _LOW, out=index)  # the numbers are done with, and then the keys
    _take_lines(order, index, places)
    np.copyto(out, places)


_LOW, _LOWEST = 0xFFFFFFFF, np.iinfo(np.int64).min


def _as_integers(x, work, out):
    """out = int64 of the same order as x of 64 bits; work is a buffer of its size."""
    if is_floating(x.dtype):
        number = out.view(np.float64)
        np.copyto(number, x)
        _ordered(number, work)
    else:
        np.copyto(out, x)


def _ordered(number, work):
    """Floats as integers of the same size and order, in their place; work is a buffer of their size."""
    bits, flag = number.view(work.dtype), flags(work)
    np.add(number, 0.0, out=number)  # -0 becomes 0: they are equal
    np.isnan(number, out=flag)
    np.copyto(number, np.nan, where=flag)  # a nan with a sign bit too
    np.right_shift(bits, 8 * bits.itemsize - 1, out=work)
    np.bitwise_and(work, np.iinfo(bits.dtype).max, out=work)
    np.bitwise_xor(bits, work, out=bits)
    return bits


def _number(keys):
    """keys |= the position of each in its line."""
    for i in range(0, keys.shape[-1], _TILE):
        part = keys[..., i : i + _TILE]
        np.bitwise_or(part, count_up(i, 1, part.shape[-1], 3, 4), out=part)


def _take_lines(x, index, out):
    """out = x at index, line by line; index and out are contiguous."""
    first = None
    if x.ndim > 1:
        first = count_up(0, x.shape[-1], x.size // x.shape[-1], 3, 4).reshape(*x.shape[:-1], 1)
        np.add(index, first, out=index)
    np.take(x.reshape(-1), index, out=out, mode="clip")  # other modes buffer the output
    if first is not None:
        np.subtract(index, first, out=index)


def _sorted_part(keys, start, stop):
    """The keys of rank ``start`` to ``stop`` of each line, in order: a part of ``keys``, which are moved."""
    if (stop - start) * 4 <= keys.shape[-1]:
        keys.partition(stop - 1 if start == 0 else start if stop - start == 1 else (start, stop - 1), axis=-1)
        keys = keys[..., start:stop]
        keys.sort(axis=-1)
        return keys
    keys.sort(axis=-1)
    return keys[..., start:stop]


def _order_packed(x, start, stop, descending, work, out):
    n = x.shape[-1]
    keys = scratch(x.shape, np.int64, 0, 4) if work is None else work.view(np.int64)[:n].reshape(x.shape)
    for i in range(0, n, _TILE):
        _pack(x[..., i : i + _TILE], i, descending, keys[..., i : i + _TILE])
    np.bitwise_and(_sorted_part(keys, start, stop), _LOW, out=out)


def _pack(x, first, descending, keys):
    """keys = x as a 32-bit integer of the same order, then its position; ``first`` is the position of the first."""
    if is_floating(x.dtype):
        t = scratch(x.shape, np.float32, 1, 4)
        cast(x, t)
        np.copyto(keys, _ordered(t, scratch(x.shape, np.int32, 2, 4)))
    else:
        np.copyto(keys, x)
    if descending:
        np.invert(keys, out=keys)
    np.left_shift(keys, 32, out=keys)
    np.bitwise_or(keys, count_up(first, 1, x.shape[-1], 3, 4), out=keys)


@formula(lambda values, axis, index, out: _scatter_add.formula(values, axis, index, out))
def add_along(values, axis, index, out):
    """out at ``index`` along ``axis`` += values; places may repeat."""
    _scatter_add(values, axis, index, out)
