"""Resampling on the GPU: one thread per output sums the taps of all axes. ``kernels/numpy/resize.py`` explains the tables."""

from __future__ import annotations

from .fused import Fused

_resize = Fused(
    "raw T x, raw int64 places, raw W weights, bool plain, int64 id, int64 ih, int64 iw, int64 od, int64 oh, int64 ow, "
    "int64 kd, int64 kh, int64 kw",
    "T y",
    """
    const long long w = i % ow, h = i / ow % oh, d = i / ow / oh % od, plane = i / ow / oh / od;
    const long long second = kd * od, third = second + kh * oh;
    W sum = 0;
    for (long long a = 0; a < max(kd, 1LL); ++a) {
        const long long pd = kd ? places[a * od + d] : d;
        const W wd = kd && !plain ? weights[a * od + d] : W(1);
        for (long long b = 0; b < max(kh, 1LL); ++b) {
            const long long ph = kh ? places[second + b * oh + h] : h;
            const W wh = kh && !plain ? weights[second + b * oh + h] : W(1);
            for (long long c = 0; c < max(kw, 1LL); ++c) {
                const long long pw = kw ? places[third + c * ow + w] : w;
                const W ww = kw && !plain ? weights[third + c * ow + w] : W(1);
                sum += W(x[((plane * id + pd) * ih + ph) * iw + pw]) * wd * wh * ww;
            }
        }
    }
    y = T(sum);
    """,
    "tinygrad_mem_resize",
)


def resize_workspace(shape, outs, taps, plain, dtype):
    return 0


def resize(x, places, weights, taps, plain, work, out):
    if out.size:
        lift = [1] * (3 - len(taps))
        sizes, outs = (*lift, *map(int, x.shape[1:])), (*lift, *map(int, out.shape[1:]))
        _resize(x, places, weights, plain, *sizes, *outs, *[0] * len(lift), *taps, out)
