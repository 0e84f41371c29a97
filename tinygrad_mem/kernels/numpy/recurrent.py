"""The steps of recurrent layers over packed rows: what cannot be one product for all time steps.

``sizes`` are the sequences alive at each step, never more than at the step before; the rows of step t follow those of step
t - 1, and sequence n is row n of its step. ``h`` and ``c`` (sequences, H) hold the state of every sequence: steps run in the
order of time, or against it (``reverse``), and each overwrites the first rows of the states. All arrays are float32 or float64.
Sequences are independent, so each of our threads takes some of them through all steps.
"""

from __future__ import annotations

from collections.abc import Callable as _Callable
from functools import partial as _partial

import numpy as np

from . import blas as _blas
from .threads import SCRATCH as _SCRATCH
from .threads import Beside as _Beside
from .threads import scratch as _scratch
from .threads import split as _split

_SHARE = 1 << 24  # multiplications that pay for a thread of its own
_TILE = 1 << 16  # numbers of a step that go through all its passes at once
_LARGE = 1 << 18  # numbers of a step that threads may share: on two cores it is no loss from here on, on more a gain
_SUM = 1 << 14  # columns that are added up at once
_TINY = {size: np.finfo(f"f{size}").tiny for size in (4, 8)}
_ONES = {size: np.ones((1, 1 << 9), f"f{size}") for size in (4, 8)}


def _order(sizes, reverse, first, last):
    """(start, stop) rows of sequences ``first`` to ``last`` in each step, and how many these are, in the order of the steps."""
    spans, start = [], 0
    for size in sizes:
        if size > first:
            spans.append((start + first, start + min(size, last), min(size, last) - first))
        start += size
    return reversed(spans) if reverse else spans


def beside(numbers):
    """Runs tasks beside steps of so many numbers each: for ``hand_over`` and ``finish``.

    Of small steps one thread takes all while another does the tasks, and then both what is left: threads that share a small
    step spend their time waiting for the interpreter, which each of them needs for each pass. Large steps have all threads, and
    so has each task, at once.
    """
    return _Beside() if numbers < _LARGE else None


def hand_over(later, tasks):
    """Have tasks done, after those handed over before: functions of (first row, last row), each with how many rows it writes.

    None reads what another of them or a later step writes. What makes a row is the same however it comes out, so that no result
    depends on timing.
    """

    def part(task, first, last):
        with _blas.single():
            task(first, last)

    if later is None:
        for task, rows in tasks:
            part(task, 0, rows)
        return
    halves = [(task, rows // 2 * half, rows if half else rows // 2) for task, rows in tasks for half in (0, 1)]
    later.hand_over([_partial(part, *half) for half in halves if half[1] < half[2]])


def finish(later):
    """Return when all tasks are done."""
    if later is not None:
        later.finish()


def _over(sequences, work, run: _Callable[[int, int], None]):
    """``run(first, last)`` over all sequences, of ``work`` multiplications each."""
    with _blas.single():
        _split(sequences, run, _SHARE // max(work, 1) + 1)


def _back_over(sequences, gates, work, run: _Callable[[int, int], None]):
    """As :func:`_over`, but small steps have one thread: on the way back they are made of twice as many passes."""
    _over(sequences, work if sequences * gates.shape[1] >= _LARGE else 0, run)


def _tiles(count, width):
    """Cuts of ``count`` rows of ``width`` numbers, small enough for a tile."""
    step = max(_TILE // max(width, 1), 1)
    return [slice(i, i + step) for i in range(0, count, step)]


def _add_product(a, b, out):
    """out += a @ b. BLAS is up to 15% faster if it need not add, and three times where there is one row: as with vectors."""
    if out.nbytes <= _SCRATCH:
        part = _scratch(out.shape, out.dtype)
        np.matmul(a, b, out=part)
        np.add(out, part, out=out)
    else:
        _blas.add_product(a, b, out)


def add_product(a, b, out):
    """out += a @ b, of matrices."""

    def part(start, stop):
        _blas.add_product(a[start:stop], b, out[start:stop])

    with _blas.single():
        _split(len(out), part, _SHARE // max(a.shape[1] * b.shape[1], 1) + 1)


def add_sum(rows, out):
    """out (columns) += the sum of the rows: as a product with ones, which is several times faster than a reduction."""
    ones = _ONES[rows.itemsize]
    with _blas.single():
        for i in range(0, len(rows), ones.size):
            for j in range(0, len(out), _SUM):
                part = rows[i : i + ones.size, j : j + _SUM]
                total = _scratch((1, part.shape[1]), out.dtype)
                np.matmul(ones[:, : len(part)], part, out=total)
                np.add(out[j : j + _SUM], total[0], out=out[j : j + _SUM])


def previous_states(y, sizes, reverse, h, out):
    """out (rows, H) = the state before each row's step, where y holds the states after it and h those before the first."""
    for start, stop, count in _order(sizes, reverse, 0, len(h)):
        np.copyto(out[start:stop], h[:count])
        np.copyto(h[:count], y[start:stop])


def _sigmoid(x):
    np.negative(x, out=x)
    np.exp(x, out=x)
    np.add(x, 1, out=x)
    np.divide(1, x, out=x)  # twice as fast as reciprocal


def rnn(gates, weight, sizes, reverse, relu, h):
    """gates = h = tanh(gates + h @ weight.T), or relu, at each step: of the input's share its output, in place."""
    act = (lambda a: np.maximum(a, 0, out=a)) if relu else (lambda a: np.tanh(a, out=a))

    def part(first, last):
        for start, stop, count in _order(sizes, reverse, first, last):
            a, state = gates[start:stop], h[first : first + count]
            _add_product(state, weight.T, a)
            act(a)
            np.copyto(state, a)

    _over(len(h), weight.size * len(sizes), part)


def rnn_backward(gates, weight, sizes, reverse, relu, gy, dh):
    """In place, gates: of the outputs the gradients of what tanh was given; dh: of the last state that of the first."""

    def part(first, last):
        for start, stop, count in _order(sizes, not reverse, first, last):
            a, state = gates[start:stop], dh[first : first + count]
            if gy is not None:
                np.add(state, gy[start:stop], out=state)
            for cut in _tiles(count, a.shape[1]):
                _rnn_gradient(a[cut], state[cut], relu)
            np.matmul(a, weight, out=state)

    _back_over(len(dh), gates, weight.size * len(sizes), part)


def _rnn_gradient(a, dh, relu):
    if relu:  # nan is no reason to keep a gradient back
        off = _scratch(a.shape, np.bool_)
        np.less_equal(a, 0, out=off)
        np.copyto(a, dh)
        np.copyto(a, 0, where=off)
        return
    np.multiply(a, a, out=a)
    np.subtract(1, a, out=a)
    np.multiply(a, dh, out=a)


def lstm(gates, weight, sizes, reverse, h, c, y):
    """gates (rows, 4 H), of the input's share: i, f, g, o; c = f * c + i * g; y = h = o * tanh(c). y may be ``None``."""
    width, direct = h.shape[1], None if y is None or y.dtype != h.dtype else y

    def part(first, last):
        states, latest = h[first:last], None
        for start, stop, count in _order(sizes, reverse, first, last):
            a, cell, state = gates[start:stop], c[first : first + count], _carried(states, latest, count)
            _add_product(state, weight.T, a)
            latest = states[:count] if direct is None else direct[start:stop]
            for cut in _tiles(count, 4 * width):
                _lstm_step(a[cut], latest[cut], cell[cut])
            if y is not None and direct is None:
                np.copyto(y[start:stop], latest)
        _carried(states, latest, 0)

    _over(len(h), weight.size * len(sizes), part)


def _carried(states, latest, count):
    """The first ``count`` states: the latest ones if these are so many, else ``states``, where the latest are put first."""
    if latest is not None:
        if len(latest) == count:
            return latest
        np.copyto(states[: len(latest)], latest)
    return states[:count]


def _parts(a, count):
    return a.reshape(len(a), count, a.shape[1] // count).transpose(1, 0, 2)


def _lstm_step(a, h, c):
    """Whole rows at once where that can be: short pieces of rows take ufuncs twice as long. tanh(x) is 2 sigmoid(2 x) - 1."""
    i, f, g, o = _parts(a, 4)
    np.multiply(g, 2, out=g)
    _sigmoid(a)
    np.multiply(g, 2, out=g)
    np.subtract(g, 1, out=g)
    t = _scratch(h.shape, h.dtype)
    np.multiply(c, f, out=c)
    np.multiply(i, g, out=t)
    np.add(c, t, out=c)
    np.tanh(c, out=t)
    np.multiply(o, t, out=h)


def lstm_backward(gates, weight, sizes, reverse, c, before, y, gy, dh, dc):
    """In place, gates: of i, f, g, o the gradients before their activations; dh, dc: of the last states those of the first.

    The cells are made again from c, those before the first step, into ``before`` (rows, H): before each row's step. c is
    overwritten. tanh(c) is y / o where y, the output, is given in the dtype of the arithmetic: in a quarter of the time.
    """
    width = dh.shape[1]

    def part(first, last):
        for start, stop, count in _order(sizes, reverse, first, last):
            i, f, g, _ = _parts(gates[start:stop], 4)
            cell, kept = c[first : first + count], before[start:stop]
            np.copyto(kept, cell)
            np.multiply(cell, f, out=cell)
            for cut in _tiles(count, width):
                t = _scratch(cell[cut].shape, cell.dtype)
                np.multiply(i[cut], g[cut], out=t)
                np.add(cell[cut], t, out=cell[cut])
        for start, stop, count in _order(sizes, not reverse, first, last):
            a, kept, state, cell = gates[start:stop], before[start:stop], dh[first : first + count], dc[first : first + count]
            after = c[first : first + count]  # the cells of the step, of sequences that end with it too
            if gy is not None:
                np.add(state, gy[start:stop], out=state)
            for cut in _tiles(count, 8 * width):  # four tiles at once, of float64 too
                _lstm_gradient(a[cut], kept[cut], after[cut], None if y is None else y[start:stop][cut], state[cut], cell[cut])
            if y is None:
                np.copyto(after, kept)
            np.matmul(a, weight, out=state)

    _back_over(len(dh), gates, 2 * weight.size * len(sizes), part)


def _lstm_gradient(a, before, after, y, dh, dc):
    i, f, g, o = _parts(a, 4)
    t, v = (_scratch(dh.shape, dh.dtype, k, 4) for k in (0, 1))
    slope, flow = (_scratch(a.shape, a.dtype, k, 4) for k in (2, 3))  # of the activations, and what comes to them
    to_i, to_f, to_g, to_o = _parts(flow, 4)
    if y is None:
        np.tanh(after, out=t)
    else:  # where o underflows it does not matter what this is: all that it goes into is multiplied by o
        np.maximum(o, _TINY[t.itemsize], out=t)
        np.divide(y, t, out=t)
    np.multiply(dh, t, out=to_o)
    np.multiply(t, t, out=t)
    np.subtract(1, t, out=t)
    np.multiply(dh, o, out=v)
    np.multiply(t, v, out=t)
    np.add(dc, t, out=dc)
    np.multiply(dc, g, out=to_i)
    np.multiply(dc, before, out=to_f)
    np.multiply(dc, i, out=to_g)
    np.multiply(dc, f, out=dc)
    np.subtract(1, a, out=slope)
    np.add(g, 1, out=g)
    np.multiply(slope, a, out=slope)  # i (1 - i), and so on; (1 + g) (1 - g)
    np.multiply(slope, flow, out=a)


def gru(gates, weight, sizes, reverse, h, y):
    """gates (rows, 4 H), of the input's share: n, r, z, m; n = tanh(n + r * m); y = h = (1 - z) * n + z * h.

    m is the state's share of the new state, to which the weight's product with h is added as it is to r and z.
    """
    width = h.shape[1]

    def part(first, last):
        for start, stop, count in _order(sizes, reverse, first, last):
            a, state = gates[start:stop], h[first : first + count]
            _add_product(state, weight.T, a[:, width:])
            for cut in _tiles(count, 4 * width):
                _gru_step(a[cut], state[cut])
            if y is not None:
                np.copyto(y[start:stop], state)

    _over(len(h), weight.size * len(sizes), part)


def _gru_step(a, h):
    n, r, z, m = _parts(a, 4)
    _sigmoid(a[:, h.shape[1] : 3 * h.shape[1]])
    t = _scratch(h.shape, h.dtype)
    np.multiply(r, m, out=t)
    np.add(n, t, out=n)
    np.tanh(n, out=n)
    np.subtract(h, n, out=h)
    np.multiply(h, z, out=h)
    np.add(h, n, out=h)


def gru_backward(gates, weight, sizes, reverse, before, gy, dh):
    """In place, gates: of n, r, z, m the gradients before their activations; dh: of the last state that of the first.

    ``before`` holds the state before each row's step.
    """
    width = dh.shape[1]

    def part(first, last):
        for start, stop, count in _order(sizes, not reverse, first, last):
            a, kept, state = gates[start:stop], before[start:stop], dh[first : first + count]
            if gy is not None:
                np.add(state, gy[start:stop], out=state)
            for cut in _tiles(count, 4 * width):
                _gru_gradient(a[cut], kept[cut], state[cut])
            _add_product(a[:, width:], weight, state)

    _back_over(len(dh), gates, weight.size * len(sizes), part)


def _gru_gradient(a, before, dh):
    n, r, z, m = _parts(a, 4)
    t, u = (_scratch(dh.shape, dh.dtype, k, 2) for k in range(2))
    np.subtract(before, n, out=t)
    np.multiply(t, dh, out=t)
    np.subtract(1, z, out=u)
    np.multiply(t, u, out=t)
    np.multiply(u, dh, out=u)
    np.multiply(dh, z, out=dh)  # the state's own way
    np.multiply(z, t, out=z)  # dh * (before - n) * z * (1 - z)
    np.multiply(n, n, out=n)
    np.subtract(1, n, out=n)
    np.multiply(n, u, out=n)  # dh * (1 - z) * (1 - n * n)
    np.multiply(n, m, out=t)
    np.multiply(n, r, out=m)
    np.subtract(1, r, out=u)
    np.multiply(r, u, out=r)
    np.multiply(r, t, out=r)  # dn * m * r * (1 - r)
