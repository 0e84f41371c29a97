"""Sums, means and maxima of rows of a table, bag by bag. Only a few rows at a time are copied, never all of them."""

from itertools import pairwise, product

import numpy as np

from ...dtypes import arithmetic, is_half
from ...errors import ArgumentError
from ..formula import formula
from .fast import threads
from .fast.tiles import cuts
from .index import _add_inside

# --- the formulas


def _each_bag(index, offsets, bags, padding=None):
    """The positions in ``index`` that count in each bag. ``offsets``: where bags begin; without, all have the same length."""
    marks = [i * (len(index) // max(bags, 1)) for i in range(bags)] if offsets is None else offsets.tolist()
    for start, stop in pairwise([*marks, len(index)]):
        yield [i for i in range(start, stop) if index[i] != padding]


def _sum_or_mean(weight, index, offsets, shares, mean, padding, out):
    y = np.zeros(out.shape)
    for bag, inside in enumerate(_each_bag(index, offsets, len(out), padding)):
        for i in inside:
            y[bag] += weight[index[i]] * (1 if shares is None else shares[i]) / (len(inside) if mean else 1)
    return y


def _maximum(weight, index, offsets, padding, out):
    y, places = np.zeros(out.shape), np.full(out.shape, -1)
    for bag, inside in enumerate(_each_bag(index, offsets, len(out), padding)):
        if inside:
            rows = weight[index[inside]]
            y[bag], places[bag] = rows.max(0), index[inside][rows.argmax(0)]
    return {"out": y, "places": places}


def _parts_of_bags(index, offsets, count, shares, padding):
    bags, parts = np.full(len(index), -1), np.zeros(len(index)) if shares is None else shares
    counting = _each_bag(index, offsets, count, padding)
    for bag, (whole, inside) in enumerate(zip(_each_bag(index, offsets, count), counting, strict=True)):
        bags[whole] = bag
        if shares is None:
            parts[whole] = 1 / max(len(inside), 1)
    return {"bags": bags, "parts": parts}


def _rows_of_bags(gy, bags, parts):
    rows = np.where(bags[:, None] < 0, 0, gy[bags])
    return rows if parts is None else rows * parts[:, None]


def _to_shares(gy, weight, index, bags, padding):
    return np.array([0 if bag < 0 or i == padding else gy[bag] @ weight[i] for bag, i in zip(bags, index, strict=True)])


def _to_maxima(gy, places, out):
    for bag, column in np.argwhere(places >= 0):
        out[places[bag, column], column] += gy[bag, column]
    return out


# --- the fast ways

_TILE = 1 << 14  # elements of rows that are copied at a time
_STEP = 1 << 13  # elements of anything else at a time
_SLOTS = 8  # of scratch: indices, rows, rows in float32, one number a row, a sum, a total


def check_bags(offsets, count):
    """Refuse offsets that do not divide ``range(count)`` into bags.

    Raises:
        ArgumentError: they do not start at 0, fall, or point beyond the end.
    """
    marks = offsets.tolist()
    if marks and marks[0] != 0:
        raise ArgumentError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {marks[0]}"
        )
    if marks and marks[-1] > count:
        raise ArgumentError(f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of {marks[-1]}")
    for i in range(1, len(marks)):
        if marks[i] < marks[i - 1]:
            raise ArgumentError(f"offsets must not decrease, found {marks[i - 1]} and then {marks[i]} at position {i}")


def _bags(offsets, count, bags):
    """(bag, start, stop) of each bag; without offsets all are of one length."""
    each = count // max(bags, 1)
    marks = None if offsets is None else [*offsets.tolist(), count]
    for bag in range(bags):
        yield (bag, bag * each, bag * each + each) if marks is None else (bag, marks[bag], marks[bag + 1])


def _tiles(weight, index, start, stop):
    """(start, stop, columns, the indices as int64, their rows of weight, to write into) of pieces of index[start:stop]."""
    columns = min(weight.shape[1], _TILE)
    step = _TILE // max(columns, 1)
    for part, some in product(cuts(0, weight.shape[1], columns or 1), cuts(start, stop, step)):
        first, last = some.start, some.stop
        rows = threads.scratch((last - first,), np.int64, 0, _SLOTS)
        np.copyto(rows, index[first:last])
        tile = threads.scratch((last - first, part.stop - part.start), weight.dtype, 1, _SLOTS)
        if columns == weight.shape[1]:
            np.take(weight, rows, axis=0, out=tile, mode="clip")
        else:
            np.copyto(tile[0], weight[rows[0], part])
        if is_half(weight.dtype):
            half, tile = tile, threads.scratch(tile.shape, np.float32, 2, _SLOTS)
            np.copyto(tile, half)
        yield first, last, part, rows, tile


def _counted(index, padding):
    """The number of entries of index that are not ``padding``."""
    if padding is None:
        return index.size
    found = 0
    for i in range(0, index.size, _STEP):
        same = threads.scratch(index[i : i + _STEP].shape, np.bool_, 3, _SLOTS)
        np.equal(index[i : i + _STEP], padding, out=same)
        found += int(np.count_nonzero(same))
    return index.size - found


def _weigh(tile, shares):
    """tile[i] *= shares[i]."""
    own = threads.scratch(shares.shape, tile.dtype, 3, _SLOTS)
    np.copyto(own, shares)
    np.multiply(tile, own[:, None], out=tile)


def _clear(tile, rows, padding):
    """tile[i] = 0 where rows[i] is ``padding``."""
    if padding is not None:
        same = threads.scratch(rows.shape, np.bool_, 3, _SLOTS)
        np.equal(rows, padding, out=same)
        np.copyto(tile, 0, where=same[:, None])


@formula(_sum_or_mean)
def embedding_bag(weight, index, offsets, shares, mean, padding, out):
    """out[b] = the sum of shares[i] * weight[index[i]] over the i of bag b whose index is not ``padding``; or their mean.

    Bag b is ``offsets[b]`` to ``offsets[b + 1]``, or to the end; without offsets all bags are of one length. ``shares`` may be
    ``None``. Halves are summed in float32.
    """
    out.fill(0)
    most = (min(weight.shape[1], _TILE),)
    sums, totals = (threads.scratch(most, arithmetic(out.dtype), slot, _SLOTS) for slot in (4, 5))
    for bag, start, stop in _bags(offsets, index.size, len(out)):
        count = max(_counted(index[start:stop], padding), 1) if mean else 1
        for first, last, part, rows, tile in _tiles(weight, index, start, stop):
            if shares is not None:
                _weigh(tile, shares[first:last])
            _clear(tile, rows, padding)
            total = totals[: tile.shape[1]]
            if first == start:
                np.add.reduce(tile, axis=0, out=total)
            else:
                np.add.reduce(tile, axis=0, out=sums[: tile.shape[1]])
                np.add(total, sums[: tile.shape[1]], out=total)
            if last == stop:
                np.divide(total, count, out=total)
                np.copyto(out[bag, part], total, casting="unsafe")


@formula(_maximum)
def embedding_bag_max(weight, index, offsets, padding, out, places):
    """out[b] = the largest of weight[index[i]] over the i of bag b whose index is not ``padding``, and 0 of none.

    places[b] = the rows of weight in which they were found, the first of equal ones, or -1.
    """
    out.fill(0)
    places.fill(-1)
    for bag, start, stop in _bags(offsets, index.size, len(out)):
        empty = True
        for at in range(start, stop):
            row = int(index[at])
            if row == padding:
                continue
            for part in cuts(0, weight.shape[1], _STEP):
                values, best, place = weight[row, part], out[bag, part], places[bag, part]
                if empty:
                    np.copyto(best, values)
                    place.fill(row)
                    continue
                above = threads.scratch(values.shape, np.bool_, 3, _SLOTS)
                np.greater(values, best, out=above)
                np.copyto(best, values, where=above)
                np.copyto(place, row, where=above)
            empty = False


@formula(_parts_of_bags)
def bag_parts(index, offsets, count, shares, padding, bags, parts):
    """bags[i] = the bag of index[i] out of ``count``, or -1 for none; parts[i] = shares[i] or, without, 1 over the bag's size.

    Args:
        padding: an index that does not count in the size of a bag, or ``None``.
        parts: to be filled, or ``None``.
    """
    bags.fill(-1)
    for bag, start, stop in _bags(offsets, index.size, count):
        bags[start:stop].fill(bag)
        if parts is not None and shares is None:
            parts[start:stop].fill(1 / max(_counted(index[start:stop], padding), 1))
    if parts is not None and shares is not None:
        np.copyto(parts, shares)


@formula(_rows_of_bags)
def embedding_bag_rows(gy, bags, parts, out):
    """out[i] = gy[bags[i]] * parts[i]; 0 of no bag; ``parts`` may be ``None``."""
    for i, bag in enumerate(bags.tolist()):
        if bag < 0:
            out[i].fill(0)
        elif parts is None:
            np.copyto(out[i], gy[bag])
        else:
            np.multiply(gy[bag], out.dtype.type(parts[i]), out=out[i])


@formula(_to_shares)
def embedding_bag_shares_backward(gy, weight, index, bags, padding, out):
    """out[i] = gy[bags[i]] . weight[index[i]], and 0 of no bag and where index[i] is ``padding``."""
    out.fill(0)
    for first, last, part, rows, tile in _tiles(weight, index, 0, index.size):
        for i, bag in enumerate(bags[first:last].tolist()):
            if bag < 0 or rows[i] == padding:
                tile[i].fill(0)
                continue
            for j in range(0, tile.shape[1], _STEP):
                g = threads.scratch(tile[i, j : j + _STEP].shape, tile.dtype, 4, _SLOTS)
                np.copyto(g, gy[bag, part][j : j + _STEP])  # a product with half precision would allocate a cast
                np.multiply(tile[i, j : j + _STEP], g, out=tile[i, j : j + _STEP])
        sums = threads.scratch((last - first,), tile.dtype, 5, _SLOTS)
        np.add.reduce(tile, axis=1, out=sums)
        np.add(out[first:last], sums, out=out[first:last], casting="unsafe")


@formula(_to_maxima)
def embedding_bag_max_backward(gy, places, out):
    """out[places[b, k], k] += gy[b, k], in order, but not for -1. Halves are summed in float32, some rows of out at a time."""
    rows, width = out.shape
    half = is_half(out.dtype)
    step = max(_TILE // max(width, 1), 1) if half else max(rows, 1)
    columns = min(width, _TILE) if half else width
    for part in cuts(0, width, columns or 1):
        for row in range(0, rows, step):
            target = out[row : row + step, part]
            if not half:
                _add_largest(gy, places, row, target)
                continue
            total = threads.scratch(target.shape, np.float32, 0, 4)
            np.copyto(total, target)
            _add_largest(gy[:, part], places[:, part], row, total)
            np.copyto(target, total, casting="unsafe")


def _add_largest(gy, places, row, total):
    """total[places[b, k] - row, k] += gy[b, k] where that is one of its rows; total is contiguous."""
    flat, width = total.reshape(-1), total.shape[1]
    for bag in range(len(gy)):
        for part in cuts(0, width, _STEP):
            at = threads.scratch((part.stop - part.start,), np.int64, 1, 5)
            np.copyto(at, places[bag, part])
            np.subtract(at, row, out=at)
            np.multiply(at, width, out=at)
            np.add(at, threads.count_up(part.start, 1, at.size, 3, 5), out=at)
            _add_inside(gy[bag, part], at, flat)
