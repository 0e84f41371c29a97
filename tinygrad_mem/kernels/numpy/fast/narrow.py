"""Sums of half precision in half precision, for ``backends.accumulate_in``.

Terms are added one after another, and every product and every sum is rounded. This is slow, and only for demonstration.
"""

from __future__ import annotations

import numpy as np

from .conv_geometry import lift_array
from .threads import scratch
from .windows import overlaps

_TILE = 1 << 17  # halves: a quarter of the scratch


def add_up(x, axes, scale, out):
    """out = ``scale`` times the sum of x over ``axes``, which out keeps with size 1."""
    lines = np.moveaxis(x, axes, range(len(axes)))
    total = out[(*[0 if a in axes else slice(None) for a in range(out.ndim)], ...)]
    total.fill(0)
    for index in np.ndindex(lines.shape[: len(axes)]):
        np.add(total, lines[index], out=total, casting="unsafe")
    if scale != 1:
        np.multiply(total, scale, out=total, dtype=np.float32, casting="unsafe")


def product(x, y, addend, alpha, beta, out):
    """out = alpha * (x @ y) + beta * addend (or ``None``) of matrices."""
    n = out.shape[1]
    for j in range(0, n, _TILE):
        width = min(_TILE, n - j)
        step = max(_TILE // width, 1)
        for i in range(0, len(out), step):
            part = out[i : i + step, j : j + width]
            term, total = (scratch(part.shape, out.dtype, k, 4) for k in (0, 1))
            total.fill(0)
            for k in range(x.shape[1]):
                np.multiply(x[i : i + step, k, None], y[k, j : j + width], out=term)
                np.add(total, term, out=total)
            if alpha != 1:
                np.multiply(total, alpha, out=total)
            if addend is not None:
                np.multiply(addend[i : i + step, j : j + width], beta, out=term)
                np.add(total, term, out=total)
            np.copyto(part, total)


def forward(geo, x, w, bias, _, out):
    """out = conv(x, w) + bias."""
    for xs, ws, bs, outs in _groups(geo, x, w, bias, out):
        _correlate(xs, ws, bs, list(_meetings(geo)), outs)


def backward_input(geo, gy, w, bias, _, out):
    """The gradient of x, which is also the transposed convolution of gy; a bias is added to it."""
    for outs, ws, bs, gs in _groups(geo, out, w, bias, gy):
        _correlate(gs, ws.swapaxes(0, 1), bs, [(tap, pixels, windows) for tap, windows, pixels in _meetings(geo)], outs)


def backward_weight(geo, gy, x, _, out):
    """The gradient of w: the sum over images and places of gy times x under each tap."""
    out.fill(0)
    for xs, outs, _, gs in _groups(geo, x, out, None, gy):
        for tap, windows, pixels in _meetings(geo):
            target = outs[:, :, *tap]
            for n in range(geo.images):
                grads, seen = gs[n, :, *windows], xs[n, :, *pixels]
                for place in np.ndindex(grads.shape[1:]):
                    _add_outer(grads[:, *place], seen[:, *place], target)


def _groups(geo, x, w, bias, y):
    """For each group: its channels of x, filters, part of the bias (of either side) and channels of y."""
    x, w, y = lift_array(x), lift_array(w), lift_array(y)
    for g in range(geo.groups):
        part = None if bias is None else bias.reshape(geo.groups, -1)[g]
        cin, cout = (slice(g * n, (g + 1) * n) for n in (geo.cin, geo.cout))
        yield x[:, cin], w[cout], part, y[:, cout]


def _meetings(geo):
    """(tap, windows, pixels): the slices of the output and of the input that each tap connects."""
    for _, *found in overlaps(geo.inside, geo.outside, geo.kernel, geo.stride, geo.low, geo.dilation):
        yield found


def _correlate(x, w, bias, taps, out):
    """out (N, O, ...) = the sum over channels and taps of x (N, C, ...) times w (O, C, *kernel), and a bias (or ``None``)."""
    for n in range(len(out)):
        total = out[n]
        np.copyto(total, 0 if bias is None else bias.reshape(-1, 1, 1, 1))
        for tap, to, of in taps:
            for c in range(x.shape[1]):
                _add_outer(w[:, c, *tap], x[n, c, *of], total[:, *to])


def _add_outer(a, b, total):
    """total (len(a), *b.shape) += a times b, as many rows at a time as fit a tile."""
    step = max(_TILE // max(b.size, 1), 1)
    for i in range(0, len(a), step):
        part = total[i : i + step]
        term = scratch(part.shape, total.dtype, 0, 4)
        np.multiply(a[i : i + step].reshape(-1, *(1,) * b.ndim), b, out=term)
        np.add(part, term, out=part)
