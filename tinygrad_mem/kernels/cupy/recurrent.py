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


def _run(name, count, width, arguments, kind, out=None):
    """Run a kernel with one thread per unit of ``count`` rows."""
    raw.launch(_SOURCE, name, {"T": raw.NAMES[kind], "Y": raw.NAMES[out or kind]}, count * width, *arguments, threads=256)


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
        _run("add_sum", 1, len(out), (*_part(rows, 0, len(rows)), out, len(rows), len(out)), out.dtype.char)


def previous_states(y, sizes, reverse, h, out):
    for start, stop in _order(sizes, reverse):
        cupy.copyto(out[start:stop], h[: stop - start])
        cupy.copyto(h[: stop - start], y[start:stop])


def rnn(gates, weight, sizes, reverse, relu, h):
    width, kind = h.shape[1], h.dtype.char
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop])
        _run("rnn", stop - start, width, (*_part(gates, start, stop), h, stop - start, width, int(relu)), kind)


def rnn_backward(gates, weight, sizes, reverse, relu, gy, dh):
    width, kind = dh.shape[1], dh.dtype.char
    for start, stop in _order(sizes, not reverse):
        parts = (*_part(gates, start, stop), *_part(gy, start, stop))
        _run("rnn_backward", stop - start, width, (*parts, dh, stop - start, width, int(relu)), kind)
        _blas.gemm(gates[None, start:stop], weight[None], dh[None, : stop - start])


def lstm(gates, weight, sizes, reverse, h, c, y):
    width, kind = h.shape[1], h.dtype.char
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop])
        parts = (*_part(gates, start, stop), h, c, *_part(y, start, stop))
        _run("lstm", stop - start, width, (*parts, stop - start, width), kind, None if y is None else y.dtype.char)


def lstm_cells(gates, sizes, reverse, c, out):
    width, kind = c.shape[1], c.dtype.char
    for start, stop in _order(sizes, reverse):
        parts = (*_part(gates, start, stop), c, out[start:stop])
        _run("cells", stop - start, width, (*parts, stop - start, width), kind)


def lstm_backward(gates, weight, sizes, reverse, before, y, gy, dh, dc):
    width, kind = dh.shape[1], dh.dtype.char
    for start, stop in _order(sizes, not reverse):
        parts = (*_part(gates, start, stop), before[start:stop], *_part(gy, start, stop), dh, dc)
        _run("lstm_backward", stop - start, width, (*parts, stop - start, width), kind)
        _blas.gemm(gates[None, start:stop], weight[None], dh[None, : stop - start])


def gru(gates, weight, sizes, reverse, h, y):
    width, kind = h.shape[1], h.dtype.char
    for start, stop in _order(sizes, reverse):
        add_product(h[: stop - start], weight.T, gates[start:stop, width:])
        parts = (*_part(gates, start, stop), h, *_part(y, start, stop))
        _run("gru", stop - start, width, (*parts, stop - start, width), kind, None if y is None else y.dtype.char)


def gru_backward(gates, weight, sizes, reverse, before, gy, dh):
    width, kind = dh.shape[1], dh.dtype.char
    for start, stop in _order(sizes, not reverse):
        parts = (*_part(gates, start, stop), before[start:stop], *_part(gy, start, stop), dh)
        _run("gru_backward", stop - start, width, (*parts, stop - start, width), kind)
        add_product(gates[start:stop, width:], weight, dh[: stop - start])
