"""The steps of recurrent layers over packed rows: what cannot be one product for all time steps.

``sizes`` are the sequences alive at each step, never more than at the step before; the rows of step t follow those of step
t - 1, and sequence n is row n of its step. ``h`` and ``c`` (sequences, H) hold the state of every sequence: steps run in the
order of time, or against it (``reverse``), and each overwrites the first rows of the states. All arrays are float32 or float64.
Sequences are independent, so each of our threads takes some of them through all steps.
"""

from functools import lru_cache, partial

import numpy as np

from ..formula import formula
from .fast import blas, gate_steps, threads

# --- the formulas


def _steps(sizes, reverse):
    """The rows of each step, in the order of the steps; there are as many as sequences alive."""
    ends = np.cumsum(sizes)
    found = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return found[::-1] if reverse else found


def _alive(states, rows):
    """The states of the sequences that are alive in a step: the first ones."""
    return states[: rows.stop - rows.start]


def _logistic(x):
    return 1 / (1 + np.exp(-x))


def _before(y, sizes, reverse, h, out):
    for rows in _steps(sizes, reverse):
        state = _alive(h, rows)
        out[rows] = state
        state[:] = y[rows]
    return out


def _rnn(gates, weight, sizes, reverse, relu, h):
    for rows in _steps(sizes, reverse):
        state = _alive(h, rows)
        a = gates[rows] + state @ weight.T
        gates[rows] = state[:] = np.maximum(a, 0) if relu else np.tanh(a)
    return {"gates": gates, "h": h}


def _rnn_back(gates, weight, sizes, reverse, relu, gy, dh):
    for rows in _steps(sizes, not reverse):
        y, state = gates[rows], _alive(dh, rows)
        state += 0 if gy is None else gy[rows]
        gates[rows] = state * ((y > 0) if relu else 1 - y**2)
        state[:] = gates[rows] @ weight
    return {"gates": gates, "dh": dh}


def _lstm(gates, weight, sizes, reverse, h, c, y):
    for rows in _steps(sizes, reverse):
        state, cell = _alive(h, rows), _alive(c, rows)
        i, f, g, o = np.split(gates[rows] + state @ weight.T, 4, axis=1)
        i, f, g, o = _logistic(i), _logistic(f), np.tanh(g), _logistic(o)
        gates[rows] = np.hstack([i, f, g, o])
        cell[:] = f * cell + i * g
        state[:] = o * np.tanh(cell)
        if y is not None:
            y[rows] = state
    return {"gates": gates, "h": h, "c": c, "y": y}


def _lstm_cells(gates, sizes, reverse, c, out):
    for rows in _steps(sizes, reverse):
        i, f, g, _ = np.split(gates[rows], 4, axis=1)
        cell = _alive(c, rows)
        out[rows] = cell
        cell[:] = f * cell + i * g
    return out


def _lstm_back(gates, weight, sizes, reverse, before, gy, dh, dc):
    for rows in _steps(sizes, not reverse):
        i, f, g, o = np.split(gates[rows].copy(), 4, axis=1)
        state, slope, t = _alive(dh, rows), _alive(dc, rows), np.tanh(f * before[rows] + i * g)
        state += 0 if gy is None else gy[rows]
        slope += state * o * (1 - t**2)
        own = (slope * g * i * (1 - i), slope * before[rows] * f * (1 - f), slope * i * (1 - g**2), state * t * o * (1 - o))
        gates[rows] = np.hstack(own)
        slope *= f
        state[:] = gates[rows] @ weight
    return {"gates": gates, "dh": dh, "dc": dc}


def _gru(gates, weight, sizes, reverse, h, y):
    for rows in _steps(sizes, reverse):
        state = _alive(h, rows)
        gates[rows, h.shape[1] :] += state @ weight.T
        n, r, z, m = np.split(gates[rows].copy(), 4, axis=1)
        r, z = _logistic(r), _logistic(z)
        n = np.tanh(n + r * m)
        gates[rows] = np.hstack([n, r, z, m])
        state[:] = (1 - z) * n + z * state
        if y is not None:
            y[rows] = state
    return {"gates": gates, "h": h, "y": y}


def _gru_back(gates, weight, sizes, reverse, before, gy, dh):
    for rows in _steps(sizes, not reverse):
        n, r, z, m = np.split(gates[rows].copy(), 4, axis=1)
        state = _alive(dh, rows)
        state += 0 if gy is None else gy[rows]
        dn = state * (1 - z) * (1 - n**2)
        dr, dz = dn * m * r * (1 - r), state * (before[rows] - n) * z * (1 - z)
        gates[rows] = np.hstack([dn, dr, dz, dn * r])
        state[:] = state * z + gates[rows, dh.shape[1] :] @ weight
    return {"gates": gates, "dh": dh}


# --- the fast ways

_SHARE = 1 << 24  # multiplications that pay for a thread of its own
_FORTH, _BACK = 1 << 22, 1 << 23  # of a step, for each thread that shares it: the way back is made of twice as many passes
_TILE = 1 << 16  # numbers of a step that go through all its passes at once
_SMALL, _LARGE = 1 << 13, 1 << 18  # numbers of a step between which a second thread's best use is other work
_PASS = 64  # multiplications of a product that take as long as one number's share of a step of cells
_SUM = 1 << 14  # columns that are added up at once
_ONES = {size: np.ones((1, 1 << 9), f"f{size}") for size in (4, 8)}


def _order(sizes, reverse, first, last):
    """(start, stop) rows of sequences ``first`` to ``last`` in each step, and how many these are, in the order of the steps."""
    spans, start = [], 0
    for size in sizes:
        if size > first:
            spans.append((start + first, start + min(size, last), min(size, last) - first))
        start += size
    return reversed(spans) if reverse else spans


@formula(None, "a worker")
def beside(numbers):
    """Run tasks beside steps of ``numbers`` numbers each: for :func:`hand_over` and :func:`finish`.

    One thread runs all steps while another runs the tasks, and then both run what is left: threads that share a step wait for
    the interpreter lock. If steps are large, all threads share each step and task. If steps are so small that Python takes most
    of their time, one thread does all: two would wait for the interpreter lock.
    """
    return threads.Beside() if _SMALL < numbers < _LARGE else None


@formula(None, "work for a worker")
def hand_over(later, tasks):
    """Run tasks after those handed over before: functions of (first row, last row), each with the number of rows it writes.

    No task reads what another of them or a later step writes. A row is computed in the same way by each thread, so no result
    depends on timing.
    """

    def part(task, first, last):
        with blas.single():
            task(first, last)

    if later is None:
        for task, rows in tasks:
            part(task, 0, rows)
        return
    halves = [(task, rows // 2 * half, rows if half else rows // 2) for task, rows in tasks for half in (0, 1)]
    later.hand_over([partial(part, *half) for half in halves if half[1] < half[2]])


@formula(None, "the end of a worker's work")
def finish(later):
    """Return when all tasks are done."""
    if later is not None:
        later.finish()


def _over(states, sizes, reverse, work, least, step):
    """``step(rows, alive)`` for each step: its rows, and the sequences whose they are. Threads share the sequences.

    A sequence takes ``work`` multiplications a step; a thread has ``least`` a step.
    """

    def part(first, last):
        for start, stop, count in _order(sizes, reverse, first, last):
            step(slice(start, stop), slice(first, first + count))

    with blas.single():
        threads.split(len(states), part, -(-max(_SHARE // max(len(sizes), 1), least) // max(work, 1)))


@lru_cache(256)
def _tiles(count, width):
    """Cuts of ``count`` rows of ``width`` numbers, small enough for a tile."""
    step = max(_TILE // max(width, 1), 1)
    return tuple([slice(i, i + step) for i in range(0, count, step)])


def _add_product(a, b, out, product):
    """out += a @ b. BLAS is up to 15% faster if it need not add, and three times where there is one row: as with vectors."""
    if out.nbytes > threads.SCRATCH // 2:
        blas.add_product(a, b, out)
        return
    part = threads.scratch(out.shape, out.dtype, 1, 2)
    product(a, b, out=part)
    np.add(out, part, out=out)


@formula(lambda a, b, out: out + a @ b)
def add_product(a, b, out):
    """out += a @ b, of matrices."""

    def part(start, stop):
        blas.add_product(a[start:stop], b, out[start:stop])

    with blas.single():
        threads.split(len(out), part, _SHARE // max(a.shape[1] * b.shape[1], 1) + 1)


@formula(lambda rows, out: out + rows.sum(0))
def add_sum(rows, out):
    """out (columns) += the sum of the rows: as a product with ones, which is several times faster than a reduction."""
    ones = _ONES[rows.itemsize]
    with blas.single():
        for i in range(0, len(rows), ones.size):
            for j in range(0, len(out), _SUM):
                part = rows[i : i + ones.size, j : j + _SUM]
                total = threads.scratch((1, part.shape[1]), out.dtype)
                np.matmul(ones[:, : len(part)], part, out=total)
                np.add(out[j : j + _SUM], total[0], out=out[j : j + _SUM])


@formula(_before)
def previous_states(y, sizes, reverse, h, out):
    """out (rows, H) = the state before each row's step, where y holds the states after it and h those before the first."""
    for start, stop, count in _order(sizes, reverse, 0, len(h)):
        np.copyto(out[start:stop], h[:count])
        np.copyto(h[:count], y[start:stop])


@formula(_rnn)
def rnn(gates, weight, sizes, reverse, relu, h):
    """gates = h = tanh(gates + h @ weight.T), or relu, at each step. In place: gates holds the input's share before."""
    act = (lambda a: np.maximum(a, 0, out=a)) if relu else (lambda a: np.tanh(a, out=a))
    product = blas.few_rows(len(h), weight.T)

    def step(rows, alive):
        a, state = gates[rows], h[alive]
        _add_product(state, weight.T, a, product)
        act(a)
        np.copyto(state, a)

    _over(h, sizes, reverse, weight.size, _FORTH, step)


@formula(_rnn_back)
def rnn_backward(gates, weight, sizes, reverse, relu, gy, dh):
    """In place: gates, from outputs to gradients before tanh or relu; dh, from the last state's gradient to the first's."""
    product = blas.few_rows(len(dh), weight)

    def step(rows, alive):
        a, state = gates[rows], dh[alive]
        if gy is not None:
            np.add(state, gy[rows], out=state)
        for cut in _tiles(*a.shape):
            gate_steps.rnn_gradient(a[cut], state[cut], relu)
        product(a, weight, out=state)

    _over(dh, sizes, not reverse, weight.size, _BACK, step)


@formula(_lstm)
def lstm(gates, weight, sizes, reverse, h, c, y):
    """gates (rows, 4 H), of the input's share: i, f, g, o; c = f * c + i * g; y = h = o * tanh(c). y may be ``None``."""
    product = blas.few_rows(len(h), weight.T)

    def step(rows, alive):
        a, state, cell = gates[rows], h[alive], c[alive]
        _add_product(state, weight.T, a, product)
        for cut in _tiles(*a.shape):
            gate_steps.lstm_step(a[cut], state[cut], cell[cut])
        if y is not None:
            np.copyto(y[rows], state)

    _over(h, sizes, reverse, weight.size, _FORTH, step)


@formula(_lstm_cells)
def lstm_cells(gates, sizes, reverse, c, out):
    """out (rows, H) = the cell before each row's step, made again from i, f, g, o; c holds those before the first step.

    c is overwritten.
    """
    width = c.shape[1]
    i, f, g, _ = gate_steps.parts(gates, 4)
    threads.split(len(out), lambda a, b: np.multiply(i[a:b], g[a:b], out=out[a:b]), threads.GRAIN // width + 1)

    def step(rows, alive):
        forgets, kept, cell = f[rows], out[rows], c[alive]
        for cut in _tiles(*cell.shape):
            gate_steps.lstm_cell(forgets[cut], kept[cut], cell[cut])

    _over(c, sizes, reverse, _PASS * width, _FORTH, step)


@formula(_lstm_back)
def lstm_backward(gates, weight, sizes, reverse, before, y, gy, dh, dc):
    """In place: gates, from i, f, g, o to their gradients before the activations; dh, dc, from the last states to the first.

    ``before`` holds the cell before each row's step. tanh(c) is y / o where y, the output, is given in the dtype of the
    arithmetic: in a quarter of the time.
    """
    product = blas.few_rows(len(dh), weight)

    def step(rows, alive):
        a, kept, state, cell = gates[rows], before[rows], dh[alive], dc[alive]
        if gy is not None:
            np.add(state, gy[rows], out=state)
        for cut in _tiles(len(a), 2 * a.shape[1]):  # four tiles at once, of float64 too
            output = None if y is None else y[rows][cut]
            gate_steps.lstm_gradient(a[cut], kept[cut], output, state[cut], cell[cut])
        product(a, weight, out=state)

    _over(dh, sizes, not reverse, weight.size, _BACK, step)


@formula(_gru)
def gru(gates, weight, sizes, reverse, h, y):
    """gates (rows, 4 H), of the input's share: n, r, z, m; n = tanh(n + r * m); y = h = (1 - z) * n + z * h.

    m is the state's share of the new state, to which the weight's product with h is added as it is to r and z.
    """
    width, product = h.shape[1], blas.few_rows(len(h), weight.T)

    def step(rows, alive):
        a, state = gates[rows], h[alive]
        _add_product(state, weight.T, a[:, width:], product)
        for cut in _tiles(*a.shape):
            gate_steps.gru_step(a[cut], state[cut])
        if y is not None:
            np.copyto(y[rows], state)

    _over(h, sizes, reverse, weight.size, _FORTH, step)


@formula(_gru_back)
def gru_backward(gates, weight, sizes, reverse, before, gy, dh):
    """In place: gates, from n, r, z, m to their gradients before the activations; dh, from the last state's to the first's.

    ``before`` holds the state before each row's step.
    """
    width, product = dh.shape[1], blas.few_rows(len(dh), weight)

    def step(rows, alive):
        a, kept, state = gates[rows], before[rows], dh[alive]
        if gy is not None:
            np.add(state, gy[rows], out=state)
        for cut in _tiles(*a.shape):
            gate_steps.gru_gradient(a[cut], kept[cut], state[cut])
        _add_product(a[:, width:], weight, state, product)

    _over(dh, sizes, not reverse, weight.size, _BACK, step)
