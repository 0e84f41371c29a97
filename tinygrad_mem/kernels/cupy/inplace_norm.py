"""Batch norm and leaky ReLU whose backward computes the input from the output. As in ``kernels/numpy/inplace_norm.py``."""

from __future__ import annotations

import cupy

from . import raw
from .fused import Fused
from .norm import _scaled

_SOURCE = (
    f"{raw.BLOCKS}"
    + """
// a block a channel: first = sum of g, second = sum of g z, of z = y before the activation
extern "C" __global__ void inverted_sums(const T* g, const T* y, double slope, A* first, A* second, wide n, wide channels,
                                         wide length) {
    A s = 0, t = 0;
    for (wide i = threadIdx.x; i < n * length; i += blockDim.x) {
        const wide at = (i / length * channels + blockIdx.x) * length + i % length;
        const A v = (A)y[at], w = (A)g[at];
        s += w;
        t += w * (v > 0 ? v : v / (A)slope);
    }
    s = block_sum(s);
    t = block_sum(t);
    if (threadIdx.x) return;
    first[blockIdx.x] = s;
    second[blockIdx.x] = t;
}
"""
)

_share = Fused("A s, B b, A w", "A t", "t = (t - s * (A)b) / w", "tinygrad_mem_inplace_norm_share")
_plane = Fused(
    "A rstd, A w, B bias, A s, A t, float64 count",
    "A a, A b, A c",
    "a = rstd * w; b = -rstd * t / (A)count; c = -a * s / (A)count - b * (A)bias",
    "tinygrad_mem_inplace_norm_plane",
)
_mixed = Fused(
    "T g, T y, A a, A b, A c, float64 slope",
    "T r",
    "const A v = (A)y; r = (T)((A)g * a + ((v > 0 ? v : v / (A)slope) * b + c))",
    "tinygrad_mem_inplace_norm_mixed",
)


def inplace_norm_backward(gz, y, scale, bias, rstd, slope, training, partial, work, sums, out):
    n, channels, length = y.shape
    arguments = (gz, y, float(slope), sums[0], sums[1], n, channels, length)
    raw.launch(_SOURCE, "inverted_sums", raw.types(y.dtype.char), channels * 256, *arguments, threads=256)
    a, b, c = work[0], work[1], work[2]
    if scale is None:
        a.fill(1)
    else:
        cupy.copyto(a, scale)
    offset = 0.0 if bias is None else bias
    _share(sums[0], offset, a, sums[1])
    if out is None:
        return
    _plane(rstd, a, offset, sums[0], sums[1], max(n * length, 1), a, b, c)
    if training:
        _mixed(gz, y, a[:, None], b[:, None], c[:, None], float(slope), out)
    else:
        _scaled(gz, a[:, None], out)
