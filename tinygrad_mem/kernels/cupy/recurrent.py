"""The steps of recurrent layers over packed rows. As in ``kernels/numpy/recurrent.py``.

A step is one product of cuBLAS, which adds to the gates in place, and one fused kernel with one thread per unit.
"""

from __future__ import annotations

import cupy

from . import blas as _blas
from . import raw

_SOURCE = """
__device__ T sigmoid(T x) { return 1 / (1 + exp(-x)); }

#define UNIT const wide at = FIRST; \\
    if (at >= count * width) return; \\
    const wide row = at / width, k = at % width;
#define GATES T *p0 = a + row * stride + k, *p1 = p0 + width, *p2 = p1 + width, *p3 = p2 + width;

extern "C" __global__ void add_sum(const T* rows, wide stride, T* out, wide count, wide width) {
    const wide k = FIRST;
    if (k >= width) return;
    T sum = 0;
    for (wide i = 0; i < count; ++i) sum += rows[i * stride + k];
    out[k] += sum;
}

extern "C" __global__ void rnn(T* a, wide stride, T* h, wide count, wide width, wide relu) {
    UNIT
    T* p = a + row * stride + k;
    h[at] = *p = relu ? (*p <= 0 ? (T)0 : *p) : tanh(*p);
}

extern "C" __global__ void rnn_backward(T* a, wide stride, const T* gy, wide step, const T* dh, wide count, wide width,
                                        wide relu) {
    UNIT
    T* p = a + row * stride + k;
    const T d = dh[at] + (gy ? gy[row * step + k] : (T)0);
    *p = relu ? (*p <= 0 ? (T)0 : d) : d * (1 - *p * *p);
}

extern "C" __global__ void lstm(T* a, wide stride, T* h, T* c, Y* y, wide step, wide count, wide width) {
    UNIT
    GATES
    const T i = *p0 = sigmoid(*p0), f = *p1 = sigmoid(*p1), g = *p2 = tanh(*p2), o = *p3 = sigmoid(*p3);
    const T cell = c[at] = f * c[at] + i * g, out = o * tanh(cell);
    h[at] = out;
    if (y) y[row * step + k] = (Y)out;
}

extern "C" __global__ void cells(const T* a, wide stride, T* c, T* before, wide count, wide width) {
    UNIT
    const T *p0 = a + row * stride + k, *p1 = p0 + width, *p2 = p1 + width;
    before[at] = c[at];
    c[at] = *p1 * c[at] + *p0 * *p2;
}

extern "C" __global__ void lstm_backward(T* a, wide stride, const T* before, const T* gy, wide step, const T* dh, T* dc,
                                         wide count, wide width) {
    UNIT
    GATES
    const T i = *p0, f = *p1, g = *p2, o = *p3, last = before[at], t = tanh(f * last + i * g);
    const T d = dh[at] + (gy ? gy[row * step + k] : (T)0), e = dc[at] + d * o * (1 - t * t);
    *p0 = e * g * i * (1 - i);
    *p1 = e * last * f * (1 - f);
    *p2 = e * i * (1 - g * g);
    *p3 = d * t * o * (1 - o);
    dc[at] = e * f;
}

extern "C" __global__ void gru(T* a, wide stride, T* h, Y* y, wide step, wide count, wide width) {
    UNIT
    GATES
    const T r = *p1 = sigmoid(*p1), z = *p2 = sigmoid(*p2), n = *p0 = tanh(*p0 + r * *p3), out = n + z * (h[at] - n);
    h[at] = out;
    if (y) y[row * step + k] = (Y)out;
}

extern "C" __global__ void gru_backward(T* a, wide stride, const T* before, const T* gy, wide step, T* dh, wide count,
                                        wide width) {
    UNIT
    GATES
    const T n = *p0, r = *p1, z = *p2, m = *p3, d = dh[at] + (gy ? gy[row * step + k] : (T)0);
    const T e = d * (1 - z) * (1 - n * n);
    *p0 = e;
    *p1 = e * m * r * (1 - r);
    *p2 = d * (before[at] - n) * z * (1 - z);
    *p3 = e * r;
    dh[at] = d * z;
}
"""


def _order(sizes, reverse):
    """(start, stop) rows of each step, in the order of the steps."""
    spans, start = [], 0
    for size in sizes:
        spans.append((start, start + size))
        start += size
    return reversed(spans) if reverse else spans


def _part(x, start, stop):
    """Rows of ``x`` and the distance between two of them; ``None`` and 0 for ``None``."""
    return (None, 0) if x is None else (x[start:stop], x.strides[0] // x.itemsize)


def _step(name, gates, start, stop, state, *others, y=None, last=()):
    """Run a kernel on the gates' rows ``start`` to ``stop``, one thread per unit of the states, which are like ``state``.

    It gets the rows, ``others``, the count of rows, the width of a state, and ``last``.
    """
    count, width = stop - start, state.shape[1]
    types = {"T": raw.NAMES[state.dtype.char], "Y": raw.NAMES[(state if y is None else y).dtype.char]}
    arguments = (*_part(gates, start, stop), *others, count, width, *last)
    raw.launch(_SOURCE, name, types, count * width, *arguments, threads=256)


def beside(numbers):
    """Does nothing: steps and tasks are in one stream."""


def hand_over(later, tasks):
    """Run tasks, after the steps so far."""
    for task, rows in tasks:
        task(0, rows)


def finish(later):
    """Does nothing: later work waits in the stream."""


def add_product(a, b, out):
    _blas.gemm(a[None], b[None], out[None], beta=1)


def add_sum(rows, out):
    if len(out):
        kind = raw.NAMES[out.dtype.char]
        arguments = (*_part(rows, 0, len(rows)), out, len(rows), len(out))
        raw.launch(_SOURCE, "add_sum", {"T": kind, "Y": kind}, len(out), *arguments, threads=256)


def previous_states(y, sizes, reverse, h, out):
    for start, stop in _order(sizes, reverse):
        cupy.copyto(out[start:stop], h[: stop - start])
        cupy.copyto(h[: stop - start], y[start:stop])


def rnn(gates, weight, sizes, reverse, relu, h):
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop])
        _step("rnn", gates, start, stop, h, h, last=(int(relu),))


def rnn_backward(gates, weight, sizes, reverse, relu, gy, dh):
    for start, stop in _order(sizes, not reverse):
        _step("rnn_backward", gates, start, stop, dh, *_part(gy, start, stop), dh, last=(int(relu),))
        _blas.gemm(gates[None, start:stop], weight[None], dh[None, : stop - start])


def lstm(gates, weight, sizes, reverse, h, c, y):
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop])
        _step("lstm", gates, start, stop, h, h, c, *_part(y, start, stop), y=y)


def lstm_cells(gates, sizes, reverse, c, out):
    for start, stop in _order(sizes, reverse):
        _step("cells", gates, start, stop, c, c, out[start:stop])


def lstm_backward(gates, weight, sizes, reverse, before, y, gy, dh, dc):
    for start, stop in _order(sizes, not reverse):
        _step("lstm_backward", gates, start, stop, dh, before[start:stop], *_part(gy, start, stop), dh, dc)
        _blas.gemm(gates[None, start:stop], weight[None], dh[None, : stop - start])


def gru(gates, weight, sizes, reverse, h, y):
    width = h.shape[1]
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop, width:])
        _step("gru", gates, start, stop, h, h, *_part(y, start, stop), y=y)


def gru_backward(gates, weight, sizes, reverse, before, gy, dh):
    width = dh.shape[1]
    for start, stop in _order(sizes, not reverse):
        _step("gru_backward", gates, start, stop, dh, before[start:stop], *_part(gy, start, stop), dh)
        add_product(gates[start:stop, width:], weight, dh[: stop - start])
