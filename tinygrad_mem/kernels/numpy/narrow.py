"""Sums of halves that stay halves, to show what float32 is for: ``backends.accumulate_in(float16)``.

One term after the other is added, and every product and every sum is rounded. Slow: nothing here is meant for use.
"""

from __future__ import annotations

import numpy as np

from .threads import scratch as _scratch

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
            term, total = (_scratch(part.shape, out.dtype, k, 4) for k in (0, 1))
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


def convolve(x, w, bias, taps, out):
    """out (N, O, ...) = the sum over channels and taps of x (N, C, ...) times w (O, C, *kernel), and a bias (or ``None``).

    ``taps`` are (index in the kernel, slices of out, slices of x).
    """
    for n in range(len(out)):
        total = out[n]
        total.fill(0)
        if bias is not None:
            np.copyto(total, bias.reshape(-1, *(1,) * (out.ndim - 2)))
        for tap, to, of in taps:
            for c in range(x.shape[1]):
                _add_outer(w[(slice(None), c, *tap)], x[(n, c, *of)], total[(slice(None), *to)])


def convolve_weight(gy, x, taps, out):
    """out (O, C, *kernel) = the sum over images and places of gy (N, O, ...) times what of x each tap sees there."""
    out.fill(0)
    for tap, to, of in taps:
        target = out[(slice(None), slice(None), *tap)]
        for n in range(len(gy)):
            grads, seen = gy[(n, slice(None), *to)], x[(n, slice(None), *of)]
            for place in np.ndindex(grads.shape[1:]):
                _add_outer(grads[(slice(None), *place)], seen[(slice(None), *place)], target)


def _add_outer(a, b, total):
    """total (len(a), *b.shape) += a times b, as many rows at a time as fit a tile."""
    step = max(_TILE // max(b.size, 1), 1)
    for i in range(0, len(a), step):
        part = total[i : i + step]
        term = _scratch(part.shape, total.dtype, 0, 4)
        np.multiply(a[i : i + step].reshape(-1, *(1,) * b.ndim), b, out=term)
        np.add(part, term, out=part)
