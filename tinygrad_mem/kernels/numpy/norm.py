"""Normalisation. Sums per image or per sample go into a buffer of the caller, and from there into the statistics in a fixed
order: results do not depend on how many cores there are.
"""

from __future__ import annotations

import numpy as np

from .threads import scratch as _scratch
from .threads import split as _split

_TILE = 1 << 15  # elements at once


def _wide(dtype):
    return np.float32 if dtype == np.float16 else dtype


def _tiles(shape, start, stop):
    """(images, channels) ranges of at most a tile's elements, for images start to stop of (n, channels, length)."""
    _, channels, length = shape
    images = max(_TILE // max(channels * length, 1), 1)
    lines = max(_TILE // max(length, 1), 1) if images == 1 else channels
    for i in range(start, stop, images):
        for c in range(0, channels, lines):
            yield slice(i, min(i + images, stop)), slice(c, min(c + lines, channels))


def _over_images(x, run):
    """``run(images, channels)`` over tiles, on several cores by images."""

    def part(start, stop):
        for images, channels in _tiles(x.shape, start, stop):
            run(images, channels)

    _split(x.shape[0], part, grain=max((1 << 16) // max(x.shape[1] * x.shape[2], 1), 1))


def _cast(x, slot, dtype):
    """``x`` in a scratch tile of the wide dtype."""
    tile = _scratch(x.shape, dtype, slot, 4)
    np.copyto(tile, x)
    return tile


def _total(partial, scale, out):
    """out = the sum over images of ``partial`` times ``scale``."""
    np.add.reduce(partial, axis=0, out=out)
    np.multiply(out, scale, out=out)


def _sum_lines(x, out):
    """out = x summed along its last axis: by BLAS, against a vector of ones, where x is as wide as the sums."""
    if x.dtype == out.dtype and x.shape[2] >= 8:
        np.matmul(x, _ones(x.shape[2], x.dtype), out=out)
    else:
        np.add.reduce(x, axis=2, dtype=out.dtype, out=out)


def _ones(length, dtype):
    tile = _scratch((length,), dtype, 3, 4) if length <= 1 << 15 else np.ones(length, dtype)
    tile.fill(1)
    return tile


def batch_statistics(x, eps, momentum, running_mean, running_var, partial, mean, rstd):
    """mean and 1 / sqrt(variance + eps) of each channel of x (n, channels, length); running statistics move by ``momentum``.

    partial is (2, n, channels) in the statistics' dtype. The variance comes from sums of squares, and where the mean is large
    beside it, so that this would cancel, from the differences from the mean.
    """
    count = x.shape[0] * x.shape[2]
    wide = mean.dtype

    def sums(images, channels):
        part = x[images, channels]
        part = part if part.dtype == wide else _cast(part, 0, wide)
        _sum_lines(part, partial[0, images, channels])
        np.vecdot(part, part, out=partial[1, images, channels])

    def squares(images, channels):
        part = x[images, channels]
        tile = _scratch(part.shape, wide, 0, 4)
        np.subtract(part, mean[channels, None], out=tile)
        np.vecdot(tile, tile, out=partial[1, images, channels])

    _over_images(x, sums)
    _total(partial[0], 1.0 / count, mean)
    _total(partial[1], 1.0 / count, rstd)  # the mean square, for now
    small = _scratch(mean.shape, wide, 0, 4)
    np.multiply(mean, mean, out=small)
    np.subtract(rstd, small, out=rstd)
    if not (small <= 4 * rstd).all():
        _over_images(x, squares)
        _total(partial[1], 1.0 / count, rstd)
    if running_mean is not None:
        small = _scratch(mean.shape, wide, 0, 4)
        np.multiply(running_mean, 1 - momentum, out=running_mean)
        np.multiply(mean, momentum, out=small)
        np.add(running_mean, small, out=running_mean, casting="unsafe")
        np.multiply(running_var, 1 - momentum, out=running_var)
        np.multiply(rstd, momentum * count / max(count - 1, 1), out=small)
        np.add(running_var, small, out=running_var, casting="unsafe")
    _reciprocal_root(rstd, eps, rstd)


def _reciprocal_root(variance, eps, out):
    np.add(variance, eps, out=out)
    np.sqrt(out, out=out)
    np.divide(1.0, out, out=out)


def given_statistics(running_mean, running_var, eps, mean, rstd):
    """mean and 1 / sqrt(variance + eps) from running statistics."""
    np.copyto(mean, running_mean)
    np.copyto(rstd, running_var)
    _reciprocal_root(rstd, eps, rstd)


def batch_norm(x, mean, rstd, weight, bias, work, out):
    """out = (x - mean) * rstd * weight + bias, per channel of (n, channels, length); work is (2, channels)."""
    wide = mean.dtype
    a, b = work
    np.copyto(a, rstd)
    if weight is not None:
        np.multiply(a, weight, out=a)
    np.multiply(mean, a, out=b)
    np.subtract(0.0 if bias is None else bias, b, out=b)

    def run(images, channels):
        target = out[images, channels]
        tile = target if target.dtype == wide else _scratch(target.shape, wide, 0, 4)
        np.multiply(x[images, channels], a[channels, None], out=tile)
        np.add(tile, b[channels, None], out=target, casting="unsafe")

    _over_images(x, run)


def batch_norm_backward(gy, x, mean, rstd, weight, training, partial, work, sums, out):
    """sums[0] = sum of gy, sums[1] = sum of gy * (x - mean) * rstd, per channel; out (or None) = the gradient of x.

    partial is (2, n, channels), work (3, channels), sums (2, channels). out may be gy.
    """
    count = x.shape[0] * x.shape[2]
    wide = mean.dtype

    def reduce(images, channels):
        g = gy[images, channels]
        if g.dtype != wide:
            g = _cast(g, 1, wide)
        _sum_lines(g, partial[0, images, channels])
        values = x[images, channels]
        if not centred or values.dtype != wide:
            tile = _scratch(g.shape, wide, 0, 4)
            np.subtract(values, mean[channels, None], out=tile)
            values = tile
        np.vecdot(values, g, out=partial[1, images, channels])

    product = _scratch(mean.shape, wide, 0, 4)
    np.multiply(mean, rstd, out=product)
    centred = bool((np.abs(product, out=product) <= 2).all()) and x.dtype == wide  # small means: subtract them afterwards
    _over_images(x, reduce)
    np.add.reduce(partial, axis=1, out=sums)
    if centred:
        product = _scratch(mean.shape, wide, 0, 4)
        np.multiply(mean, sums[0], out=product)
        np.subtract(sums[1], product, out=sums[1])
    np.multiply(sums[1], rstd, out=sums[1])
    if out is None:
        return
    a, b, c = work
    np.copyto(a, rstd)
    if weight is not None:
        np.multiply(a, weight, out=a)
    if training:  # gx = a * gy + b * x + c
        np.multiply(a, rstd, out=b)
        np.multiply(b, sums[1], out=b)
        np.multiply(b, -1.0 / count, out=b)
        np.multiply(a, sums[0], out=c)
        np.multiply(c, -1.0 / count, out=c)
        tile = _scratch(mean.shape, wide, 0, 4)
        np.multiply(b, mean, out=tile)
        np.subtract(c, tile, out=c)

    def write(images, channels):
        target = out[images, channels]
        if not training:
            np.multiply(gy[images, channels], a[channels, None], out=target, casting="unsafe")
            return
        tile, total = _scratch(target.shape, wide, 0, 4), _scratch(target.shape, wide, 1, 4)
        np.multiply(x[images, channels], b[channels, None], out=tile)
        np.add(tile, c[channels, None], out=tile)
        np.multiply(gy[images, channels], a[channels, None], out=total)
        np.add(total, tile, out=target, casting="unsafe")

    _over_images(x, write)


# --- statistics per sample: x is (n, groups, k, length), weight broadcasts to (groups, k, length), or is None


def sample_norm_workspace(shape, dtype):
    """Bytes that the kernels of layer, group and RMS norm want: two chunks of whole samples."""
    size = max(int(np.prod(shape[1:])), 1)
    return 2 * size * max(min(_TILE // size, shape[0]), 1) * np.dtype(_wide(dtype)).itemsize


def _chunks(x, work, dtype):
    """Ranges of samples, and two work arrays of each range's shape."""
    n = x.shape[0]
    size = max(int(np.prod(x.shape[1:])), 1)
    step = max(min(_TILE // size, n), 1)
    halves = work.view(dtype).reshape(2, -1)
    for i in range(0, n, step):
        rows = slice(i, min(i + step, n))
        shape = (rows.stop - i, *x.shape[1:])
        count = (rows.stop - i) * size
        yield rows, halves[0, :count].reshape(shape), halves[1, :count].reshape(shape)


def sample_norm(x, weight, bias, eps, centre, work, mean, rstd, out):
    """out = (x - mean) * rstd * weight + bias with statistics of each (sample, group); without ``centre`` mean is 0."""
    count = x.shape[2] * x.shape[3]
    wide = rstd.dtype
    for rows, t, u in _chunks(x, work, wide):
        if centre:
            np.add.reduce(x[rows], axis=(2, 3), dtype=wide, out=mean[rows])
            np.multiply(mean[rows], 1.0 / count, out=mean[rows])
            np.subtract(x[rows], mean[rows][..., None, None], out=t)
        else:
            np.copyto(t, x[rows])
        np.multiply(t, t, out=u)
        np.add.reduce(u, axis=(2, 3), out=rstd[rows])
        np.multiply(rstd[rows], 1.0 / count, out=rstd[rows])
        _reciprocal_root(rstd[rows], eps, rstd[rows])
        np.multiply(t, rstd[rows][..., None, None], out=t)
        if weight is not None:
            np.multiply(t, weight, out=t)
        if bias is not None:
            np.add(t, bias, out=t)
        np.copyto(out[rows], t, casting="unsafe")


def sample_norm_backward(gy, x, mean, rstd, weight, work, stat, grad_weight, grad_bias, out):
    """The gradients of x (into out), weight and bias; any target may be ``None``. mean is ``None`` without centring.

    stat is (2, n, groups); grad_weight and grad_bias have the weight's broadcast shape with one axis in front.
    """
    count = x.shape[2] * x.shape[3]
    wide = rstd.dtype
    for target in (grad_weight, grad_bias):
        if target is not None:
            target.fill(0)
    for rows, t, u in _chunks(x, work, wide):
        if mean is not None:
            np.subtract(x[rows], mean[rows][..., None, None], out=t)
        else:
            np.copyto(t, x[rows])
        np.multiply(t, rstd[rows][..., None, None], out=t)  # the normalised x
        if grad_weight is not None:
            np.multiply(gy[rows], t, out=u)
            _add_reduced(u, grad_weight)
        if grad_bias is not None:
            np.copyto(u, gy[rows])
            _add_reduced(u, grad_bias)
        if out is None:
            continue
        first, second = stat[0, rows], stat[1, rows]
        if weight is not None:
            np.multiply(gy[rows], weight, out=u)
        else:
            np.copyto(u, gy[rows])
        np.add.reduce(u, axis=(2, 3), out=first)
        np.multiply(first, 1.0 / count, out=first)
        if mean is not None:
            np.subtract(u, first[..., None, None], out=u)
        _dot(u, t, second)
        np.multiply(second, 1.0 / count, out=second)
        np.multiply(t, second[..., None, None], out=t)
        np.subtract(u, t, out=u)
        np.multiply(u, rstd[rows][..., None, None], out=out[rows], casting="unsafe")


def _dot(a, b, out):
    """out = the sum over the last two axes of a * b."""
    shape = (*a.shape[:2], a.shape[2] * a.shape[3])
    np.vecdot(a.reshape(shape), b.reshape(shape), out=out)


def _add_reduced(x, total):
    """total += x summed over samples and over the axes where total has size 1."""
    axes = (0, *[i for i in range(1, 4) if total.shape[i] == 1 and x.shape[i] != 1])
    small = _scratch(total.shape, total.dtype)
    np.add.reduce(x, axis=axes, keepdims=True, out=small)
    np.add(total, small, out=total)
