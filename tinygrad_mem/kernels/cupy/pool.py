"""Pooling on the GPU: forward has one thread per output, backward one per input, which gathers. There are no atomics.

``geometry`` is (kernel, stride, padding, dilation) as on the CPU; shapes get three spatial axes here.
"""

from __future__ import annotations

import numpy as np

from ..numpy.fast.conv_geometry import lift
from . import raw

_SOURCE = """
#define SIZES int id, int ih, int iw, int od, int oh, int ow
#define WINDOWS SIZES, int kd, int kh, int kw, int sd, int sh, int sw, int pd, int ph, int pw, int dd, int dh, int dw
#define PLACE(i, d, h, w, D, H, W) \\
    const int w = (int)(i % W), h = (int)(i / W % H), d = (int)(i / W / H % D); \\
    const wide plane = i / W / H / D; (void)plane;

extern "C" __global__ void max_pool(WINDOWS, const T* x, I* index, T* y, wide total) {
    EACH(i, total) {
        PLACE(i, od_, oh_, ow_, od, oh, ow)
        const T* p = x + plane * id * ih * iw;
        bool any = false;
        A best = 0;
        int which = 0, number = 0;
        for (int a = 0; a < kd; ++a) for (int b = 0; b < kh; ++b)
        for (int c = 0; c < kw; ++c, ++number) {
            const int d = od_ * sd - pd + a * dd, h = oh_ * sh - ph + b * dh, w = ow_ * sw - pw + c * dw;
            if (d < 0 || d >= id || h < 0 || h >= ih || w < 0 || w >= iw) continue;
            const A v = (A)p[((wide)d * ih + h) * iw + w];
            if (!any || v > best || v != v) { any = true; best = v; which = number; }
        }
        y[i] = (T)best;
        if (index) index[i] = (I)which;
    }
}

// the windows that see an input, in order: those whose offset to it is a multiple of the dilation inside the kernel
#define SEEN(o, at, k, s, p, d, n) for (int o = max(0, (at + p - (k - 1) * d + s - 1) / s * (at + p > (k - 1) * d)); \\
                                       o < n && o * s <= at + p; ++o) if ((at + p - o * s) % d == 0 && (at + p - o * s) / d < k)

extern "C" __global__ void max_pool_backward(WINDOWS, const T* g, const I* index, T* r, wide total) {
    EACH(i, total) {
        PLACE(i, d, h, w, id, ih, iw)
        A sum = 0;
        SEEN(a, d, kd, sd, pd, dd, od) SEEN(b, h, kh, sh, ph, dh, oh) SEEN(c, w, kw, sw, pw, dw, ow) {
            const wide at = ((plane * od + a) * oh + b) * ow + c;
            const int number = ((d + pd - a * sd) / dd * kh + (h + ph - b * sh) / dh) * kw + (w + pw - c * sw) / dw;
            if ((int)index[at] == number) sum += (A)g[at];
        }
        r[i] = (T)sum;
    }
}

extern "C" __global__ void pool_positions(WINDOWS, const I* index, wide* y, wide total) {
    EACH(i, total) {
        PLACE(i, a, b, c, od, oh, ow)
        const int number = (int)index[i];
        const wide d = a * sd - pd + number / kw / kh * dd, h = b * sh - ph + number / kw % kh * dh;
        y[i] = (d * ih + h) * iw + c * sw - pw + number % kw * dw;
    }
}

__device__ inline int span(int o, int k, int s, int p, int n, int include) {
    const int start = o * s - p;
    return include ? min(start + k, n + p) - start : min(start + k, n) - max(start, 0);
}
#define COUNT(a, b, c) (divisor ? divisor : \\
    (wide)span(a, kd, sd, pd, id, include) * span(b, kh, sh, ph, ih, include) * span(c, kw, sw, pw, iw, include))

extern "C" __global__ void avg_pool(WINDOWS, wide divisor, int include, const T* x, T* y, wide total) {
    EACH(i, total) {
        PLACE(i, a, b, c, od, oh, ow)
        const T* p = x + plane * id * ih * iw;
        A sum = 0;
        for (int d = max(a * sd - pd, 0); d < min(a * sd - pd + kd, id); ++d)
            for (int h = max(b * sh - ph, 0); h < min(b * sh - ph + kh, ih); ++h)
                for (int w = max(c * sw - pw, 0); w < min(c * sw - pw + kw, iw); ++w) sum += (A)p[((wide)d * ih + h) * iw + w];
        y[i] = (T)(sum / (A)COUNT(a, b, c));
    }
}

extern "C" __global__ void avg_pool_backward(WINDOWS, wide divisor, int include, const T* g, T* r, wide total) {
    EACH(i, total) {
        PLACE(i, d, h, w, id, ih, iw)
        A sum = 0;
        SEEN(a, d, kd, sd, pd, dd, od) SEEN(b, h, kh, sh, ph, dh, oh) SEEN(c, w, kw, sw, pw, dw, ow)
            sum += (A)g[((plane * od + a) * oh + b) * ow + c] / (A)COUNT(a, b, c);
        r[i] = (T)sum;
    }
}

#define LOW(o, n, m) ((int)((wide)(o) * (n) / (m)))
#define HIGH(o, n, m) ((int)(((wide)(o) + 1) * (n) + (m) - 1) / (m))
#define CELL(a, b, c) \\
    const int d0 = LOW(a, id, od), h0 = LOW(b, ih, oh), w0 = LOW(c, iw, ow); \\
    const int nd = HIGH(a, id, od) - d0, nh = HIGH(b, ih, oh) - h0, nw = HIGH(c, iw, ow) - w0;

// a warp an output
extern "C" __global__ void adaptive_avg_pool(SIZES, const T* x, T* y, wide total) {
    const wide i = FIRST / 32;
    if (i >= total) return;
    PLACE(i, a, b, c, od, oh, ow)
    CELL(a, b, c)
    const T* p = x + plane * id * ih * iw;
    const wide count = (wide)nd * nh * nw;
    A sum = 0;
    for (wide k = threadIdx.x % 32; k < count; k += 32)
        sum += (A)p[((d0 + k / nw / nh) * ih + h0 + k / nw % nh) * iw + w0 + k % nw];
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (threadIdx.x % 32 == 0) y[i] = (T)(sum / (A)count);
}

// the cells that see an input are neighbours: from the one before its own to the one after
#define CELLS(o, at, n, m) for (int o = max(0, LOW(at, m, n) - 1); o < m && LOW(o, n, m) <= at; ++o) if (HIGH(o, n, m) > at)

extern "C" __global__ void adaptive_avg_pool_backward(SIZES, const T* g, T* r, wide total) {
    EACH(i, total) {
        PLACE(i, d, h, w, id, ih, iw)
        A sum = 0;
        CELLS(a, d, id, od) CELLS(b, h, ih, oh) CELLS(c, w, iw, ow) {
            CELL(a, b, c)
            (void)d0; (void)h0; (void)w0;
            sum += (A)g[((plane * od + a) * oh + b) * ow + c] / (A)((wide)nd * nh * nw);
        }
        r[i] = (T)sum;
    }
}

// a warp an output: nan is the largest, then the value, then the first place
extern "C" __global__ void adaptive_max_pool(SIZES, const T* x, wide* index, T* y, wide total) {
    const wide i = FIRST / 32;
    if (i >= total) return;
    PLACE(i, a, b, c, od, oh, ow)
    CELL(a, b, c)
    const T* p = x + plane * id * ih * iw;
    const wide count = (wide)nd * nh * nw, none = 1LL << 62;
    wide best_at = none;
    A best = 0;
    for (wide k = threadIdx.x % 32; k < count; k += 32) {
        const wide at = ((d0 + k / nw / nh) * ih + h0 + k / nw % nh) * iw + w0 + k % nw;
        const A v = (A)p[at];
        if (best_at == none || v > best || (v != v && best == best)) { best = v; best_at = at; }
    }
    for (int m = 16; m; m >>= 1) {
        const A v = __shfl_xor_sync(0xffffffffu, best, m);
        const wide at = __shfl_xor_sync(0xffffffffu, best_at, m);
        if (at == none) continue;
        const bool larger = v > best || (v != v && best == best), equal = v == best || (v != v && best != best);
        if (best_at == none || larger || (equal && at < best_at)) { best = v; best_at = at; }
    }
    if (threadIdx.x % 32) return;
    y[i] = (T)best;
    index[i] = best_at;
}

// a thread a plane, in order; out is zero
extern "C" __global__ void unpool(const T* g, const wide* index, T* r, wide planes, wide outs, wide size) {
    EACH(plane, planes)
        for (wide o = 0; o < outs; ++o) {
            T* place = r + plane * size + index[plane * outs + o];
            *place = (T)((A)*place + (A)g[plane * outs + o]);
        }
}
"""


def _run(name, array, total, *arguments, index=None, threads=1):
    """Launch over ``total`` elements, ``threads`` threads each."""
    meanings = raw.types(array.dtype.char) | {"I": raw.NAMES["B" if index is None else index.dtype.char]}
    raw.launch(_SOURCE, name, meanings, total * threads, *arguments, threads=256)


def _sizes(inside, outside):
    return tuple(np.int32(n) for n in (*lift(inside, 1), *lift(outside, 1)))


def _windows(inside, outside, geometry):
    kernel, stride, padding, dilation = geometry
    lifted = (*lift(kernel, 1), *lift(stride, 1), *lift(padding, 0), *lift(dilation, 1))
    return _sizes(inside, outside) + tuple(np.int32(n) for n in lifted)


def max_pool(x, geometry, index, out):
    windows = _windows(x.shape[1:], out.shape[1:], geometry)
    _run("max_pool", x, out.size, *windows, x, index, out, out.size, index=index)


def max_pool_backward(gy, index, geometry, out):
    windows = _windows(out.shape[1:], gy.shape[1:], geometry)
    _run("max_pool_backward", gy, out.size, *windows, gy, index, out, out.size, index=index)


def pool_positions(index, sizes, geometry, out):
    windows = _windows(sizes, index.shape[1:], geometry)
    _run("pool_positions", out, out.size, *windows, index, out, out.size, index=index)


def avg_pool(x, geometry, count_include_pad, divisor, out):
    windows = _windows(x.shape[1:], out.shape[1:], geometry)
    _run("avg_pool", x, out.size, *windows, divisor or 0, np.int32(count_include_pad), x, out, out.size)


def avg_pool_backward(gy, geometry, count_include_pad, divisor, work, out):
    windows = _windows(out.shape[1:], gy.shape[1:], geometry)
    _run("avg_pool_backward", gy, out.size, *windows, divisor or 0, np.int32(count_include_pad), gy, out, out.size)


def adaptive_avg_pool(x, out):
    _run("adaptive_avg_pool", x, out.size, *_sizes(x.shape[1:], out.shape[1:]), x, out, out.size, threads=32)


def adaptive_avg_pool_backward(gy, out):
    _run("adaptive_avg_pool_backward", gy, out.size, *_sizes(out.shape[1:], gy.shape[1:]), gy, out, out.size)


def adaptive_max_pool(x, index, out):
    _run("adaptive_max_pool", x, out.size, *_sizes(x.shape[1:], out.shape[1:]), x, index, out, out.size, threads=32)


def unpool(gy, index, out):
    out.fill(0)
    planes = out.shape[0]
    if gy.size:
        _run("unpool", gy, planes, gy, index, out, planes, gy.size // planes, out.size // planes)
