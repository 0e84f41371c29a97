"""Normalisation. Sums per image or per sample go into a buffer of the caller, and from there into the statistics in a fixed
order: results do not depend on how many cores there are.
"""

from __future__ import annotations

import numpy as np

from .blas import single as _single
from .channels import TILE as _TILE
from .channels import add as _add
from .channels import affine as _affine
from .channels import channel_sums as _channel_sums
from .channels import squares as _squares
from .folds import ONES as _ONES
from .folds import RUN as _RUN
from .threads import scratch as _scratch
from .threads import split as _split

_GRAIN = 1 << 19  # elements of samples that pay for a core of their own: calls of a few microseconds wait for each other


def batch_statistics(x, eps, momentum, running_mean, running_var, partial, mean, rstd):
    """mean and 1 / sqrt(variance + eps) of each channel of x (n, channels, length); running statistics move by ``momentum``.

    partial is (2, n, channels) in the statistics' dtype. The variance comes from sums of squares, and where the mean is large
    beside it, so that this would cancel, from the differences from the mean.
    """
    count = x.shape[0] * x.shape[2]
    wide = mean.dtype
    _channel_sums(x, x, None, partial, (mean, rstd))
    np.multiply(mean, 1.0 / count, out=mean)
    np.multiply(rstd, 1.0 / count, out=rstd)  # the mean square, for now
    small = _scratch(mean.shape, wide, 0, 4)
    np.multiply(mean, mean, out=small)
    np.subtract(rstd, small, out=rstd)
    room = _scratch(mean.shape, wide, 1, 4)
    np.multiply(rstd, 4, out=room)
    np.subtract(room, small, out=room)
    if not np.minimum.reduce(room, initial=0) >= 0:
        _squares(x, mean, partial)
        np.add.reduce(partial[1], axis=0, out=rstd)
        np.multiply(rstd, 1.0 / count, out=rstd)
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
    a, b = work
    np.copyto(a, rstd)
    if weight is not None:
        np.multiply(a, weight, out=a)
    np.multiply(mean, a, out=b)
    np.subtract(0.0 if bias is None else bias, b, out=b)

    def run(tile, coefficients, x, target):
        a, b = coefficients
        tile = target if target.dtype == a.dtype else tile
        np.multiply(x, a, out=tile)
        np.add(tile, b, out=target, casting="unsafe")

    _affine((a, b), run, x, out)


def batch_norm_backward(gy, x, mean, rstd, weight, training, partial, work, sums, out):
    """sums[0] = sum of gy, sums[1] = sum of gy * (x - mean) * rstd, per channel; out (or None) = the gradient of x.

    partial is (2, n, channels), work (3, channels), sums (2, channels). out may be gy.
    """
    count = x.shape[0] * x.shape[2]
    wide = mean.dtype
    product = _scratch(mean.shape, wide, 0, 4)
    np.absolute(np.multiply(mean, rstd, out=product), out=product)
    small = bool(np.maximum.reduce(product, initial=0) <= 2) and x.dtype == wide  # small means are subtracted afterwards
    _channel_sums(gy, x, None if small else mean, partial, sums)
    if small:
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
    if not training:
        _affine((a,), lambda _, rows, g, target: np.multiply(g, rows[0], out=target, casting="unsafe"), gy, out)
        return
    np.multiply(a, rstd, out=b)  # gx = a * gy + b * x + c
    np.multiply(b, sums[1], out=b)
    np.multiply(b, -1.0 / count, out=b)
    np.multiply(a, sums[0], out=c)
    np.multiply(c, -1.0 / count, out=c)
    tile = _scratch(mean.shape, wide, 0, 4)
    np.multiply(b, mean, out=tile)
    np.subtract(c, tile, out=c)

    def run(tile, coefficients, g, x, target):
        a, b, c = coefficients
        np.multiply(x, b, out=tile)
        np.add(tile, c, out=tile)
        if target.dtype == wide:
            np.multiply(g, a, out=target)
            np.add(target, tile, out=target)
        else:  # a half: the sum is rounded once
            scaled = _scratch(g.shape, wide, 1, 4)
            np.multiply(g, a, out=scaled)
            np.add(scaled, tile, out=target, casting="unsafe")

    _affine((a, b, c), run, gy, x, out)


# --- statistics per sample: x is (n, groups, k, length), weight broadcasts to (groups, k, length), or is None


def _lines(shape, start, stop):
    """Ranges of (samples, groups), each with the (k, length) ranges that cut it into tiles: one where whole groups fit."""
    _, groups, k, length = shape
    size = max(k * length, 1)
    if size > _TILE:
        step = max(_TILE // length, 1)
        cuts = [
            (slice(c, min(c + step, k)), slice(i, min(i + _TILE, length)))
            for c in range(0, k, step)
            for i in range(0, length, _TILE)
        ]
    else:
        cuts = [(slice(0, k), slice(0, length))]
    samples = max(_TILE // max(size * groups, 1), 1)
    some = max(_TILE // size, 1) if samples == 1 else groups
    for i in range(start, stop, samples):
        for g in range(0, groups, some):
            yield (slice(i, min(i + samples, stop)), slice(g, min(g + some, groups))), cuts


def _over_samples(shape, run, alone=False):
    """``run(rows, cuts)`` over :func:`_lines`, on several cores by samples unless ``alone``."""

    def part(start, stop):
        for rows, cuts in _lines(shape, start, stop):
            run(rows, cuts)

    size = max(shape[1] * shape[2] * shape[3], 1)
    with _single():  # sums are matrix products
        _split(shape[0], part, grain=shape[0] + 1 if alone else max(_GRAIN // size, 1))


def _centred(x, mean, tile):
    """tile = x - mean, or x where mean is ``None``; x a tile of (samples, groups, k, length)."""
    if mean is None:
        np.copyto(tile, x)
    else:
        np.subtract(x, mean[..., None, None], out=tile)


def _dot(a, b, out, first):
    """out = the sum over the last two axes of a * b, added to what is there unless ``first``; a and b are contiguous."""
    shape = (*a.shape[:2], a.shape[2] * a.shape[3])
    total = out if first else _scratch(out.shape, out.dtype, 3, 4)
    np.vecdot(a.reshape(shape), b.reshape(shape), out=total)
    _add(total, out)


def _sum(x, out, first):
    """out = the sum over the last two axes of x, added to what is there unless ``first``."""
    total = out if first else _scratch(out.shape, out.dtype, 3, 4)
    count = x.shape[2] * x.shape[3]
    if x.dtype == out.dtype and x.flags.c_contiguous and total.flags.c_contiguous and count <= _RUN:
        np.matmul(x.reshape(total.size, count), _ONES[x.dtype][:count], out=total.reshape(-1))
    else:
        np.add.reduce(x, axis=(2, 3), dtype=out.dtype, out=total)
    _add(total, out)


def _part(parameter, groups, cut):
    """The part of a parameter of shape (groups or 1, k or 1, length or 1) that meets a tile."""
    index = (groups, *cut)
    return parameter[tuple(i if n != 1 else slice(None) for i, n in zip(index, parameter.shape, strict=True))]


def sample_norm(x, weight, bias, eps, centre, mean, rstd, out):
    """out = (x - mean) * rstd * weight + bias with statistics of each (sample, group); without ``centre`` mean is 0."""
    count = max(x.shape[2] * x.shape[3], 1)
    wide = rstd.dtype

    def run(rows, cuts):
        middle, scale = mean[rows] if centre else None, rstd[rows]
        if middle is not None:
            for number, cut in enumerate(cuts):
                _sum(x[rows + cut], middle, number == 0)
            np.multiply(middle, 1.0 / count, out=middle)
        for number, cut in enumerate(cuts):
            part = x[rows + cut]
            tile = _scratch(part.shape, wide, 0, 4)
            _centred(part, middle, tile)
            _dot(tile, tile, scale, number == 0)
        np.multiply(scale, 1.0 / count, out=scale)
        _reciprocal_root(scale, eps, scale)
        for cut in cuts:
            part = x[rows + cut]
            tile = _scratch(part.shape, wide, 0, 4)
            if len(cuts) > 1:  # else the tile holds it still
                _centred(part, middle, tile)
            np.multiply(tile, scale[..., None, None], out=tile)
            if weight is not None:
                np.multiply(tile, _part(weight, rows[1], cut), out=tile)
            if bias is None:
                np.copyto(out[rows + cut], tile, casting="unsafe")
            else:
                np.add(tile, _part(bias, rows[1], cut), out=out[rows + cut], casting="unsafe")

    _over_samples(x.shape, run)


def sample_norm_backward(gy, x, mean, rstd, weight, stat, grad_weight, grad_bias, out):
    """The gradients of x (into out), weight and bias; any target may be ``None``. mean is ``None`` without centring.

    stat is (2, n, groups); grad_weight and grad_bias have the weight's broadcast shape with one axis in front. out may be gy.
    """
    if _of_lines(x, rstd, weight, grad_weight, grad_bias):
        size = (len(x), x.shape[2] * x.shape[3])
        flat = [a if a is None else a.reshape(size[1]) for a in (weight, grad_weight, grad_bias)]
        gx = out if out is None else out.reshape(size)
        _line_norm_backward(gy.reshape(size), x.reshape(size), mean, rstd, flat[0], stat.reshape(-1), flat[1], flat[2], gx)
        return
    count = max(x.shape[2] * x.shape[3], 1)
    wide = rstd.dtype
    for target in (grad_weight, grad_bias):
        if target is not None:
            target.fill(0)

    def normal(rows, cut):
        """The normalised x."""
        part = x[rows + cut]
        t = _scratch(part.shape, wide, 0, 4)
        _centred(part, None if mean is None else mean[rows], t)
        return np.multiply(t, rstd[rows][..., None, None], out=t)

    def weighed(rows, cut):
        """The gradient times the weight."""
        u = _scratch(gy[rows + cut].shape, wide, 1, 4)
        if weight is None:
            np.copyto(u, gy[rows + cut])
            return u
        return np.multiply(gy[rows + cut], _part(weight, rows[1], cut), out=u, dtype=wide)

    def parameters(rows, cut, t):
        part, u = gy[rows + cut], _scratch(t.shape, wide, 1, 4)
        if grad_bias is not None:
            whole = part.dtype == wide and part.flags.c_contiguous
            if not whole:
                np.copyto(u, part)
            _add_reduced(part if whole else u, _part(grad_bias[0], rows[1], cut))
        if grad_weight is not None:
            np.multiply(part, t, out=u)
            _add_reduced(u, _part(grad_weight[0], rows[1], cut))

    def run(rows, cuts):
        first, second = stat[0][rows], stat[1][rows]
        for number, cut in enumerate(cuts):
            t = normal(rows, cut)
            parameters(rows, cut, t)
            if out is not None:
                u = weighed(rows, cut)
                _sum(u, first, number == 0)
                _dot(u, t, second, number == 0)
        if out is None:
            return
        np.multiply(first, 1.0 / count, out=first)
        np.multiply(second, 1.0 / count, out=second)
        for cut in cuts:
            if len(cuts) > 1:  # else both are there still
                t, u = normal(rows, cut), weighed(rows, cut)
            if mean is not None:
                np.subtract(u, first[..., None, None], out=u)
            np.multiply(t, second[..., None, None], out=t)
            np.subtract(u, t, out=u)
            np.multiply(u, rstd[rows][..., None, None], out=out[rows + cut], casting="unsafe")

    _over_samples(x.shape, run, alone=grad_weight is not None or grad_bias is not None)


def _add_reduced(x, total):
    """total += x summed over samples and over the axes where total (groups, k, length) has size 1; x is contiguous."""
    axes = (0, *[i for i in range(1, 4) if total.shape[i - 1] == 1 and x.shape[i] != 1])
    small, ones = _scratch((1, *total.shape), total.dtype, 2, 4), _ONES[x.dtype]
    if axes == (0,) and len(x) <= _RUN:
        np.matmul(ones[: len(x)], x.reshape(len(x), small.size), out=small.reshape(-1))
    elif axes == (0, 3) and x.shape[3] <= _RUN:
        lines = _scratch((*x.shape[:3], 1), total.dtype, 3, 4)
        np.matmul(x.reshape(lines.size, x.shape[3]), ones[: x.shape[3]], out=lines.reshape(-1))
        np.add.reduce(lines, axis=0, keepdims=True, out=small)
    else:
        np.add.reduce(x, axis=axes, keepdims=True, out=small)
    np.add(total, small[0], out=total)


# --- layer norm: a sample is a line, which has a parameter for each of its numbers

_SEGMENTS = 16  # at most: what threads can share
_LONGEST = len(_ONES[np.dtype(np.float32)])  # line that one product sums


def _of_lines(x, rstd, *parameters):
    size = x.shape[2] * x.shape[3]
    whole = all(p is None or p.size == size for p in parameters)
    return x.shape[1] == 1 and x.dtype == rstd.dtype and whole and 0 < size <= _LONGEST and len(x) > 0


def _line_norm_backward(gy, x, mean, rstd, weight, stat, grad_weight, grad_bias, out):
    """:func:`sample_norm_backward` of lines: x (n, size). Sums along lines and over them are products, with the weight or rstd.

    The lines are cut into segments, which depend on the shape alone; each has its sums over lines in stat.
    """
    n, size = x.shape
    height = min(_TILE // size, _RUN)
    tiles = -(-n // height)
    segments = max(min(n // size, tiles, _SEGMENTS), 1)
    targets = [grad_bias, grad_weight]
    shares = [[t if segments == 1 else stat[k * n + i * size :][:size] for i in range(segments)] for k, t in enumerate(targets)]
    ones = _ONES[x.dtype]

    def run(first, last):
        for i in range(first, last):
            bias, slope = (None if t is None else share[i] for t, share in zip(targets, shares, strict=True))
            for number in range(tiles * i // segments, tiles * (i + 1) // segments):
                rows = slice(number * height, min((number + 1) * height, n))
                fresh = number == tiles * i // segments
                g, r = gy[rows], rstd[rows]
                t, u = (_scratch(g.shape, x.dtype, k, 4) for k in (0, 1))
                np.subtract(x[rows], 0 if mean is None else mean[rows], out=t)
                if bias is not None:
                    _add_weighed(ones[: len(g)], g, bias, fresh)
                np.multiply(g, t, out=u)
                if slope is not None:
                    _add_weighed(r[:, 0], u, slope, fresh)
                if out is not None:
                    _line_gradient(g, t, u, r, weight, mean is not None, out[rows])

    with _single():
        _split(segments, run, max(segments * _GRAIN // x.size, 1))
    for target, share in zip(targets, shares, strict=True):
        if target is not None and segments > 1:
            np.copyto(target, share[0])
            for more in share[1:]:
                np.add(target, more, out=target)


def _add_weighed(weights, x, total, first):
    """total = weights @ x, added to what is there unless ``first``."""
    part = total if first else _scratch(total.shape, total.dtype, 2, 4)
    np.matmul(weights, x, out=part)
    _add(part, total)


def _line_gradient(g, t, u, r, weight, centre, out):
    """out = (w g - mean(w g) - t r**2 mean(w g t)) r of a tile, where t is centred, u = g t, and both may be overwritten."""
    count = g.shape[1]
    along = _ONES[t.dtype][:count] if weight is None else weight
    middle, flow = (_scratch((len(g), 1), t.dtype, k, 8) for k in (6, 7))
    np.matmul(g, along, out=middle[:, 0])
    np.matmul(u, along, out=flow[:, 0])
    np.multiply(middle, 1.0 / count, out=middle)
    for factor in (r, r, 1.0 / count):
        np.multiply(flow, factor, out=flow)
    np.multiply(t, flow, out=t)
    if weight is not None:
        g = np.multiply(g, weight, out=u)
    np.subtract(g, t, out=u)
    if centre:
        np.subtract(u, middle, out=u)
    np.multiply(u, r, out=out)
