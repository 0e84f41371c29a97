"""Normalisation on the GPU: one block per line computes sums, into the caller's buffers; everything else is elementwise.

There are no atomics: the same input gives the same bits. Half precision is summed in float32.
"""

from __future__ import annotations

from math import prod as _prod

import cupy

from . import raw
from .fused import Fused

_THREADS = 256

_SOURCE = (
    f"{raw.BLOCKS}"
    + """
// a block a line (image, channel): first = sum of g, second = sum of g (x - mean); without g, g is x - mean
extern "C" __global__ void line_sums(const T* x, const T* g, const A* mean, A* first, A* second, wide channels, wide length) {
    const wide line = blockIdx.x;
    const A m = mean ? mean[line % channels] : (A)0;
    A s = 0, t = 0;
    for (wide i = threadIdx.x; i < length; i += blockDim.x) {
        const A v = (A)x[line * length + i] - m, w = g ? (A)g[line * length + i] : v;
        s += w;
        t += w * v;
    }
    s = block_sum(s);
    t = block_sum(t);
    if (threadIdx.x) return;
    if (first) first[line] = s;
    if (second) second[line] = t;
}

// out[r, c] = scale * sum over images of partial[r, image, c]
extern "C" __global__ void channel_sums(const A* partial, A* out, wide images, wide channels, wide rows, double scale) {
    const wide i = FIRST;
    if (i >= rows * channels) return;
    const A* p = partial + i / channels * images * channels + i % channels;
    A s = 0;
    for (wide n = 0; n < images; ++n) s += p[n * channels];
    out[i] = s * (A)scale;
}

// a block a (sample, group): its mean (unless null) and 1 / sqrt(variance + eps)
extern "C" __global__ void sample_statistics(const T* x, A* mean, A* rstd, wide size, double eps) {
    const wide row = blockIdx.x;
    x += row * size;
    A m = 0, s = 0;
    if (mean) {
        for (wide i = threadIdx.x; i < size; i += blockDim.x) m += (A)x[i];
        m = block_sum(m) / (A)size;
        if (threadIdx.x == 0) mean[row] = m;
    }
    for (wide i = threadIdx.x; i < size; i += blockDim.x) s += ((A)x[i] - m) * ((A)x[i] - m);
    s = block_sum(s);
    if (threadIdx.x == 0) rstd[row] = (A)1 / sqrt(s / (A)size + (A)eps);
}

// a block a (sample, group): the means of g w and of g w times the normalised x; w has element strides (w0, w1, w2)
extern "C" __global__ void sample_sums(const T* g, const T* x, const A* mean, const A* rstd, const W* w, wide w0, wide w1,
                                       wide w2, A* first, A* second, wide groups, wide size, wide length) {
    const wide row = blockIdx.x;
    const A m = mean ? mean[row] : (A)0, r = rstd[row];
    A s = 0, t = 0;
    for (wide i = threadIdx.x; i < size; i += blockDim.x) {
        A v = (A)g[row * size + i];
        if (w) v *= (A)w[row % groups * w0 + i / length * w1 + i % length * w2];
        s += v;
        t += v * ((A)x[row * size + i] - m) * r;
    }
    s = block_sum(s);
    t = block_sum(t);
    if (threadIdx.x) return;
    first[row] = s / (A)size;
    second[row] = t / (A)size;
}

// a block a parameter (group, k): its sums over samples and length
extern "C" __global__ void parameter_sums(const T* g, const T* x, const A* mean, const A* rstd, A* weight, A* bias,
                                          wide samples, wide groups, wide k, wide length) {
    const wide group = blockIdx.x / k;
    A s = 0, t = 0;
    for (wide i = threadIdx.x; i < samples * length; i += blockDim.x) {
        const wide row = i / length * groups + group, at = (row * k + blockIdx.x % k) * length + i % length;
        const A v = (A)g[at];
        s += v;
        t += v * ((A)x[at] - (mean ? mean[row] : (A)0)) * rstd[row];
    }
    s = block_sum(s);
    t = block_sum(t);
    if (threadIdx.x) return;
    if (weight) weight[blockIdx.x] = t;
    if (bias) bias[blockIdx.x] = s;
}

// a column of threads a parameter, where each element of a sample has its own: sums over samples
extern "C" __global__ void column_sums(const T* g, const T* x, const A* mean, const A* rstd, A* weight, A* bias,
                                       wide samples, wide size) {
    __shared__ A some[2][8][33];
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
    const wide at = (wide)blockIdx.x * 32 + lane;
    A s = 0, t = 0;
    if (at < size)
        for (wide row = part; row < samples; row += 8) {
            const A v = (A)g[row * size + at];
            s += v;
            t += v * ((A)x[row * size + at] - (mean ? mean[row] : (A)0)) * rstd[row];
        }
    some[0][part][lane] = s;
    some[1][part][lane] = t;
    __syncthreads();
    if (part || at >= size) return;
    s = t = 0;
    for (int p = 0; p < 8; ++p) {
        s += some[0][p][lane];
        t += some[1][p][lane];
    }
    if (weight) weight[at] = t;
    if (bias) bias[at] = s;
}
"""
)

_move = Fused(
    "A now, float64 factor, float64 share",
    "R running",
    "running = (R)((double)running * (1 - share) + (double)now * factor * share)",
    "tinygrad_mem_move",
)
_root = Fused("A v, float64 eps", "A r", "r = (A)1 / sqrt(v + (A)eps)", "tinygrad_mem_reciprocal_root")
_line = Fused("A mean, A rstd, W w, B b", "A a, A c", "a = rstd * (A)w; c = (A)b - mean * a", "tinygrad_mem_norm_line")
_affine = Fused("T x, A a, A b", "T y", "y = (T)((A)x * a + b)", "tinygrad_mem_affine")
_scaled = Fused("T g, A a", "T r", "r = (T)((A)g * a)", "tinygrad_mem_scaled")
_plane = Fused(
    "A mean, A rstd, W w, A s, A t, float64 count",
    "A a, A b, A c",
    "a = rstd * (A)w; b = -a * rstd * t / (A)count; c = -a * s / (A)count - b * mean",
    "tinygrad_mem_norm_plane",
)
_mixed = Fused("T g, T x, A a, A b, A c", "T r", "r = (T)((A)g * a + ((A)x * b + c))", "tinygrad_mem_norm_mixed")
_apply = Fused("T x, M m, A r, W w, B b", "T y", "y = (T)(((A)x - (A)m) * r * (A)w + (A)b)", "tinygrad_mem_norm_apply")
_sample_backward = Fused(
    "T g, T x, M m, A r, W w, F first, A second",
    "T y",
    "y = (T)(((A)g * (A)w - (A)first - ((A)x - (A)m) * r * second) * r)",
    "tinygrad_mem_norm_sample_backward",
)


def _run(name, x, blocks, *arguments, over=_THREADS, weight=None):
    """Launch a kernel with a block for each sum. If it is over fewer elements than a block has threads, it has fewer warps."""
    meanings = raw.types(x.dtype.char) | {"W": raw.NAMES[(x if weight is None else weight).dtype.char]}
    threads = min(_THREADS, max(-(-over // 32) * 32, 32))
    raw.launch(_SOURCE, name, meanings, blocks * threads, *arguments, threads=threads)


def batch_statistics(x, eps, momentum, running_mean, running_var, partial, mean, rstd):
    n, channels, length = x.shape
    count, blocks = max(n * length, 1), -(-channels // _THREADS)
    _run("line_sums", x, n * channels, x, None, None, partial[0], None, channels, length, over=length)
    _run("channel_sums", x, blocks, partial[0], mean, n, channels, 1, 1.0 / count)
    _run("line_sums", x, n * channels, x, None, mean, None, partial[1], channels, length, over=length)
    _run("channel_sums", x, blocks, partial[1], rstd, n, channels, 1, 1.0 / count)
    if running_mean is not None:
        _move(mean, 1.0, momentum, running_mean)
        _move(rstd, count / max(count - 1, 1), momentum, running_var)
    _root(rstd, eps, rstd)


def given_statistics(running_mean, running_var, eps, mean, rstd):
    cupy.copyto(mean, running_mean)
    cupy.copyto(rstd, running_var)
    _root(rstd, eps, rstd)


def batch_norm(x, mean, rstd, weight, bias, work, out):
    a, b = work[0], work[1]
    _line(mean, rstd, 1.0 if weight is None else weight, 0.0 if bias is None else bias, a, b)
    _affine(x, a[:, None], b[:, None], out)


def batch_norm_backward(gy, x, mean, rstd, weight, training, partial, work, sums, out):
    n, channels, length = x.shape
    _run("line_sums", x, n * channels, x, gy, mean, partial[0], partial[1], channels, length, over=length)
    _run("channel_sums", x, -(-2 * channels // _THREADS), partial, sums, n, channels, 2, 1.0)
    products = sums[1]
    cupy.multiply(products, rstd, out=products)
    if out is None:
        return
    a, b, c = work[0], work[1], work[2]
    _plane(mean, rstd, 1.0 if weight is None else weight, sums[0], sums[1], max(n * length, 1), a, b, c)
    if training:
        _mixed(gy, x, a[:, None], b[:, None], c[:, None], out)
    else:
        _scaled(gy, a[:, None], out)


def sample_norm(x, weight, bias, eps, centre, mean, rstd, out):
    n, groups, k, length = x.shape
    _run("sample_statistics", x, n * groups, x, mean, rstd, k * length, float(eps), over=k * length)
    w, b = 1.0 if weight is None else weight, 0.0 if bias is None else bias
    _apply(x, mean[..., None, None] if centre else 0.0, rstd[..., None, None], w, b, out)


def sample_norm_backward(gy, x, mean, rstd, weight, stat, grad_weight, grad_bias, out):
    n, groups, k, length = x.shape
    target = grad_weight if grad_weight is not None else grad_bias
    if target is not None:
        if target.size == groups * k and target.shape[3] == 1:
            sums = (gy, x, mean, rstd, grad_weight, grad_bias, n, groups, k, length)
            _run("parameter_sums", x, groups * k, *sums, over=n * length)
        else:
            size = _prod(x.shape[1:])
            _run("column_sums", x, -(-size // 32), gy, x, mean, rstd, grad_weight, grad_bias, n, size)
    if out is None:
        return
    strides, step = [], 1
    for size in reversed(() if weight is None else weight.shape):
        strides.append(step if size > 1 else 0)
        step *= size
    w0, w1, w2 = reversed(strides) if weight is not None else (0, 0, 0)
    args = (gy, x, mean, rstd, weight, w0, w1, w2, stat[0], stat[1], groups, k * length, length)
    _run("sample_sums", x, n * groups, *args, over=_prod(x.shape[2:]), weight=weight)
    m, r = 0.0 if mean is None else mean[..., None, None], rstd[..., None, None]
    first = 0.0 if mean is None else stat[0][..., None, None]
    _sample_backward(gy, x, m, r, 1.0 if weight is None else weight, first, stat[1][..., None, None], out)
