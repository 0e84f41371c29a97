"""Rows of a table by index, and the sum of gradients into the rows that were taken."""

from __future__ import annotations

from bisect import bisect_right as _bisect

import numpy as np

from ...dtypes import is_half as _is_half
from .threads import scratch as _scratch

_STEP = 1 << 13  # indices at a time
_WIDE = 1 << 11  # numbers of a row from which it pays to take one row at a time
_FEW = 8  # rows that are not worth a round of their own


def check_rows(index, rows):
    """Refuse indices outside of ``range(rows)``.

    Raises:
        DimensionError: there is one.
    """
    from ...errors import DimensionError

    if index.size:
        low, high = np.minimum.reduce(index, axis=None), np.maximum.reduce(index, axis=None)
        if low < 0 or high >= rows:
            found = low if low < 0 else high
            raise DimensionError(f"index out of range in self: expected 0 to {rows - 1}, found {found}")


def _indices(index):
    """(start, stop, int64 indices) of pieces of the flat ``index``."""
    for start in range(0, index.size, _STEP):
        part = index[start : start + _STEP]
        if part.dtype != np.int64:
            wide = _scratch(part.shape, np.int64)
            np.copyto(wide, part)
            part = wide
        yield start, start + part.size, part


def embedding(weight, index, out):
    """out (n, d) = the rows of weight at index (n), all within bounds."""
    for start, stop, part in _indices(index):
        np.take(weight, part, axis=0, out=out[start:stop], mode="clip")  # other modes buffer the output


def embedding_backward_workspace(count, dtype):
    """Bytes of workspace that :func:`embedding_backward` of ``count`` indices wants: an order of them, but for float16 none."""
    return 8 * count if _is_half(dtype) else 0


def embedding_backward(gy, index, padding, counts, bags, parts, work, out):
    """out[index[i]] += gy[i], in order, but not for ``padding``; over its count where counts is a buffer.

    ``counts`` has a number a row of out, or is ``None``. Where ``bags`` are given, what is added is ``gy[bags[i]]``, or nothing
    for -1; times ``parts[i]`` where these are. Halves are summed in float32, one row of out after the other.
    """
    if counts is not None:
        counts.fill(0)
        for _, _, part in _indices(index):
            np.add.at(counts, part, 1)
    if _is_half(out.dtype):
        _add_half_rows(gy, index, padding, counts, bags, parts, work, out)
        return
    if counts is None and bags is None and parts is None and out.shape[1] < _WIDE and len(out) >= _FEW:
        _add_in_rounds(gy, index, padding, out)
        return
    rows = (row for start in range(0, index.size, _STEP) for row in index[start : start + _STEP].tolist())
    if counts is None and parts is None:
        _add_rows(rows, gy if bags is None else (gy[at] if at >= 0 else None for at in bags), padding, out)
        return
    for i, row in enumerate(rows):
        at = i if bags is None else bags[i]
        if row == padding or at < 0:
            continue
        target = out[row]
        scale = _scale(counts, row, parts, i)
        for j in range(0, target.size, _STEP):
            share = _scratch(target[j : j + _STEP].shape, out.dtype)
            np.multiply(gy[at, j : j + _STEP], scale, out=share)
            np.add(target[j : j + _STEP], share, out=target[j : j + _STEP])


def _add_in_rounds(gy, index, padding, out):
    """out[index[i]] += gy[i], in order: first one gradient of every row at once, then the next one of those that have more."""
    if padding is not None and 0 <= padding < len(out):
        spared = _scratch(out[padding].shape, out.dtype, 7, 8)
        np.copyto(spared, out[padding])
    else:
        spared = None
    for start, stop, part in _indices(index):
        values, (round_, at) = gy[start:stop], _rounds(part)
        first, last = 0, _bisect(round_, 0)
        while last - first >= _FEW:  # no round has more than the one before
            _add_round(values, part, at[first:last], out)
            first, last = last, _bisect(round_, round_[last]) if last < at.size else last
        rest, rows = at[first:].tolist(), part.tolist()
        _add_rows((rows[i] for i in rest), (values[i] for i in rest), None, out)
    if spared is not None:
        np.copyto(out[padding], spared)


def _add_round(gy, index, at, out):
    """out[index[at]] += gy[at], where these rows are all different."""
    step = _STEP * 4 // max(out.shape[1], 1)
    for i in range(0, at.size, step):
        here = at[i : i + step]
        rows = _scratch(here.shape, np.int64, 4, 8)
        np.take(index, here, out=rows, mode="clip")
        total, more = (_scratch((here.size, out.shape[1]), out.dtype, k, 16) for k in (10, 12))
        np.take(out, rows, axis=0, out=total, mode="clip")
        np.take(gy, here, axis=0, out=more, mode="clip")
        np.add(total, more, out=total)
        out[rows] = total


def _rounds(index):
    """(round, position) of each of the indices, by rounds: how often its row was there before, and where it is."""
    count = index.size
    key, number, round_, at = (_scratch((count,), np.int64, k, 16) for k in (2, 3, 4, 5))
    _number(0, number)
    np.multiply(index, count, out=key)
    np.add(key, number, out=key)
    key.sort()  # rows, and where they are
    np.divmod(key, count, out=(round_, at))
    fresh = _scratch((count,), np.bool_, 6, 16)
    fresh[:1] = True
    np.not_equal(round_[1:], round_[:-1], out=fresh[1:])
    key.fill(0)
    np.copyto(key, number, where=fresh)
    np.maximum.accumulate(key, out=key)  # where the run of its row begins
    np.subtract(number, key, out=key)
    np.multiply(key, count, out=key)
    np.add(key, at, out=key)
    key.sort()
    np.divmod(key, count, out=(round_, at))
    return round_, at


def _number(first, out):
    """out = first, first + 1, and so on."""
    out.fill(1)
    out[:1] = first
    np.add.accumulate(out, out=out)


def _add_rows(rows, values, padding, out):
    """out[row] += its values, or nothing for ``None``: what the loop itself does is half of the time, so it does little."""
    add = np.add
    for row, value in zip(rows, values, strict=True):
        if row != padding and value is not None:
            target = out[row]
            add(target, value, target)


def _scale(counts, row, parts, i):
    """The factor of a row of a gradient, as a number."""
    part = 1.0 if parts is None else float(parts[i])
    return part if counts is None else part / float(counts[row])


def _add_half_rows(gy, index, padding, counts, bags, parts, work, out):
    """:func:`embedding_backward` of halves: work brings the indices of each row together, in their order."""
    order = work.view(np.int64)[: index.size]
    position = _scratch((_STEP,), np.int64, 1, 2)
    for start, stop, part in _indices(index):
        _number(start, position)
        np.multiply(part, index.size, out=order[start:stop])
        np.add(order[start:stop], position[: stop - start], out=order[start:stop])
    order.sort()
    for row, positions in _runs(order, index.size):
        if row == padding:
            continue
        for j in range(0, out.shape[1], _STEP):
            target = out[row, j : j + _STEP]
            total, share = (_scratch(target.shape, np.float32, k, 2) for k in (0, 1))
            np.copyto(total, target)
            for i in positions:
                at = i if bags is None else bags[i]
                if at < 0:
                    continue
                np.copyto(share, gy[at, j : j + _STEP])  # a sum with a half would cast it in memory of its own
                if counts is not None or parts is not None:
                    np.multiply(share, _scale(counts, row, parts, i), out=share)
                np.add(total, share, out=total)
            np.copyto(target, total, casting="unsafe")


def _runs(order, count):
    """(row, its positions) of the sorted ``row * count + position``."""
    row, positions = -1, []
    for start in range(0, order.size, _STEP):
        for key in order[start : start + _STEP].tolist():
            here, position = divmod(key, count)
            if here != row:
                if positions:
                    yield row, positions
                row, positions = here, []
            positions.append(position)
    if positions:
        yield row, positions


def embedding_renorm(weight, index, max_norm, norm_type):
    """Shrink the rows of weight at index whose ``norm_type``-norm is above ``max_norm`` to that norm, in place."""
    for row in sorted(set(index.tolist())):
        values = weight[row]
        total = 0.0
        for j in range(0, values.size, _STEP):
            size = _scratch(values[j : j + _STEP].shape, np.float64)
            np.absolute(values[j : j + _STEP], out=size)
            if norm_type == np.inf:
                total = max(total, float(np.maximum.reduce(size)))
            else:
                np.power(size, norm_type, out=size)
                total += float(np.add.reduce(size))
        norm = total if norm_type == np.inf else total ** (1 / norm_type)
        if norm > max_norm:
            np.multiply(values, max_norm / (norm + 1e-7), out=values)


def clear_rows(index, row, out):
    """out[i] = 0 where index[i] is ``row``."""
    for i, found in enumerate(index.tolist()):
        if found == row:
            out[i].fill(0)


def sum_rows(index, values, first, out):
    """Of equal indices, the first gets the sum of their values in out; first[i] is index[i] there, else -1, and out[i] 0."""
    places: dict[int, int] = {}
    for i, row in enumerate(index.tolist()):
        at = places.setdefault(row, i)
        if at == i:
            first[i] = row
            np.copyto(out[i], values[i])
        else:
            first[i] = -1
            out[i].fill(0)
            np.add(out[at], values[i], out=out[at])


def _each_row(first, run, g, *tables):
    """``run(rows of tables, g, scratch)`` for each index that counts."""
    for i, row in enumerate(first.tolist()):
        for j in range(0, g.shape[1] if row >= 0 else 0, _STEP):
            part = slice(j, j + _STEP)
            run(*(table[row, part] for table in tables), g[i, part], _scratch(g[i, part].shape, g.dtype))


def sparse_sgd_step(p, first, g, lr, maximize):
    """p[first[i]] -= lr * g[i], where first[i] is not -1."""
    rate = -lr if maximize else lr

    def run(p, g, t):
        np.multiply(g, rate, out=t)
        np.subtract(p, t, out=p, casting="unsafe")

    _each_row(first, run, g, p)


def sparse_adam_step(p, first, g, m, v, step_size, beta1, beta2, eps, maximize):
    """m, v = running means of g and g**2, and p -= step_size * m / (sqrt(v) + eps), in the rows first[i] that are not -1."""

    def run(p, m, v, g, t):
        if maximize:
            np.negative(g, out=g)
        np.subtract(g, m, out=t)
        np.multiply(t, 1 - beta1, out=t)
        np.add(m, t, out=m)
        np.multiply(g, g, out=t)
        np.subtract(t, v, out=t)
        np.multiply(t, 1 - beta2, out=t)
        np.add(v, t, out=v)
        np.sqrt(v, out=t)
        np.add(t, eps, out=t)
        np.divide(m, t, out=t)
        np.multiply(t, step_size, out=t)
        np.subtract(p, t, out=p, casting="unsafe")

    _each_row(first, run, g, p, m, v)


def sparse_adagrad_step(p, first, g, total, rate, eps, maximize):
    """total += g**2, and p -= rate * g / (sqrt(total) + eps), in the rows first[i] that are not -1."""
    step = -rate if maximize else rate

    def run(p, total, g, t):
        np.multiply(g, g, out=t)
        np.add(total, t, out=total)
        np.sqrt(total, out=t)
        np.add(t, eps, out=t)
        np.divide(g, t, out=t)
        np.multiply(t, step, out=t)
        np.subtract(p, t, out=p, casting="unsafe")

    _each_row(first, run, g, p, total)
