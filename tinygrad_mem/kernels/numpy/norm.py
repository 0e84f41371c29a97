"""Normalisation. Sums per image or per sample go into a buffer of the caller, and from there into the statistics in a fixed
order: results do not depend on how many cores there are.
"""

from functools import lru_cache
from math import prod

import numpy as np

from ..formula import formula
from .fast import line_norm
from .fast.blas import single
from .fast.channels import TILE, affine, channel_sums, input_gradient, squares
from .fast.channels import add as _add
from .fast.folds import ONES, RUN
from .fast.threads import scratch, split
from .fast.tiles import boxes

_GRAIN = 1 << 19  # elements of samples that pay for a core of their own: calls of a few microseconds wait for each other


def _batch_statistics(x, eps, momentum, running_mean, running_var):
    mean, variance = np.mean(x, (0, 2)), np.var(x, (0, 2))
    count = x.shape[0] * x.shape[2]
    found = {"mean": mean, "rstd": 1 / np.sqrt(variance + eps)}
    if running_mean is not None:
        found["running_mean"] = (1 - momentum) * running_mean + momentum * mean
        found["running_var"] = (1 - momentum) * running_var + momentum * variance * count / max(count - 1, 1)
    return found


@formula(_batch_statistics)
def batch_statistics(x, eps, momentum, running_mean, running_var, partial, mean, rstd):
    """mean and 1 / sqrt(variance + eps) of each channel of x (n, channels, length); running statistics move by ``momentum``.

    partial is (2, n, channels) in the statistics' dtype. The variance comes from sums of squares, and where the mean is large
    beside it, so that this would cancel, from the differences from the mean.
    """
    count = x.shape[0] * x.shape[2]
    wide = mean.dtype
    channel_sums(x, x, None, partial, (mean, rstd))
    np.multiply(mean, 1.0 / count, out=mean)
    np.multiply(rstd, 1.0 / count, out=rstd)  # the mean square, for now
    small = scratch(mean.shape, wide, 0, 4)
    np.multiply(mean, mean, out=small)
    np.subtract(rstd, small, out=rstd)
    room = scratch(mean.shape, wide, 1, 4)
    np.multiply(rstd, 4, out=room)
    np.subtract(room, small, out=room)
    if not np.minimum.reduce(room, initial=0) >= 0:
        squares(x, mean, partial)
        np.add.reduce(partial[1], axis=0, out=rstd)
        np.multiply(rstd, 1.0 / count, out=rstd)
    if running_mean is not None:
        small = scratch(mean.shape, wide, 0, 4)
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


@formula(lambda running_mean, running_var, eps: {"mean": running_mean, "rstd": 1 / np.sqrt(running_var + eps)})
def given_statistics(running_mean, running_var, eps, mean, rstd):
    """mean and 1 / sqrt(variance + eps) from running statistics."""
    np.copyto(mean, running_mean)
    np.copyto(rstd, running_var)
    _reciprocal_root(rstd, eps, rstd)


def _batch_norm(x, mean, rstd, weight, bias):
    y = (x - mean[:, None]) * rstd[:, None] * (1 if weight is None else weight[:, None])
    return y if bias is None else y + bias[:, None]


@formula(_batch_norm)
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

    affine((a, b), run, x, out)


def _batch_norm_backward(gy, x, mean, rstd, weight, training):
    normal = (x - mean[:, None]) * rstd[:, None]
    scale = (rstd if weight is None else rstd * weight)[:, None]
    gx = scale * gy
    if training:
        middle, slope = (np.mean(a, (0, 2))[:, None] for a in (gy, gy * normal))
        gx = scale * (gy - middle - normal * slope)
    return {"sums": np.stack([np.sum(gy, (0, 2)), np.sum(gy * normal, (0, 2))]), "out": gx}


@formula(_batch_norm_backward)
def batch_norm_backward(gy, x, mean, rstd, weight, training, partial, work, sums, out):
    """sums[0] = sum of gy, sums[1] = sum of gy * (x - mean) * rstd, per channel; out (or None) = the gradient of x.

    partial is (2, n, channels), work (3, channels), sums (2, channels). out may be gy.
    """
    wide = mean.dtype
    product = scratch(mean.shape, wide, 0, 4)
    np.absolute(np.multiply(mean, rstd, out=product), out=product)
    small = bool(np.maximum.reduce(product, initial=0) <= 2) and x.dtype == wide  # small means are subtracted afterwards
    channel_sums(gy, x, None if small else mean, partial, sums)
    if small:
        product = scratch(mean.shape, wide, 0, 4)
        np.multiply(mean, sums[0], out=product)
        np.subtract(sums[1], product, out=sums[1])
    np.multiply(sums[1], rstd, out=sums[1])
    if out is None:
        return
    a, b, _ = work
    np.copyto(a, rstd)
    if weight is not None:
        np.multiply(a, weight, out=a)
    np.multiply(a, rstd, out=b)
    input_gradient(gy, x, mean, training, work, sums, out)


# --- statistics per sample: x is (n, groups, k, length), weight broadcasts to (groups, k, length), or is None


@lru_cache(256)
def _lines(shape, start, stop):
    """Ranges of (samples, groups), each with the (k, length) ranges that cut it into tiles: one where whole groups fit."""
    _, groups, *whole = shape
    cuts = [key for key, _ in boxes(tuple(whole), TILE)]
    rows = boxes((stop - start, groups), max(TILE // max(prod(whole), 1), 1))
    return [((slice(start + samples.start, start + samples.stop), some), cuts) for (samples, some), _ in rows]


def _over_samples(shape, run, alone=False):
    """``run(rows, cuts)`` over :func:`_lines`, on several cores by samples unless ``alone``."""

    def part(start, stop):
        for rows, cuts in _lines(shape, start, stop):
            run(rows, cuts)

    size = max(shape[1] * shape[2] * shape[3], 1)
    with single():  # sums are matrix products
        split(shape[0], part, grain=shape[0] + 1 if alone else max(_GRAIN // size, 1))


def _centred(x, mean, tile):
    """tile = x - mean, or x where mean is ``None``; x a tile of (samples, groups, k, length)."""
    if mean is None:
        np.copyto(tile, x)
    else:
        np.subtract(x, mean[..., None, None], out=tile)


def _dot(a, b, out, first):
    """out = the sum over the last two axes of a * b, added to what is there unless ``first``; a and b are contiguous."""
    shape = (*a.shape[:2], a.shape[2] * a.shape[3])
    total = out if first else scratch(out.shape, out.dtype, 3, 4)
    np.vecdot(a.reshape(shape), b.reshape(shape), out=total)
    _add(total, out)


def _sum(x, out, first):
    """out = the sum over the last two axes of x, added to what is there unless ``first``."""
    total = out if first else scratch(out.shape, out.dtype, 3, 4)
    count = x.shape[2] * x.shape[3]
    if x.dtype == out.dtype and x.flags.c_contiguous and total.flags.c_contiguous and count <= RUN:
        np.matmul(x.reshape(total.size, count), ONES[x.dtype][:count], out=total.reshape(-1))
    else:
        np.add.reduce(x, axis=(2, 3), dtype=out.dtype, out=total)
    _add(total, out)


def _part(parameter, groups, cut):
    """The part of a parameter of shape (groups or 1, k or 1, length or 1) that meets a tile."""
    index = (groups, *cut)
    return parameter[tuple(i if n != 1 else slice(None) for i, n in zip(index, parameter.shape, strict=True))]


def _sample_norm(x, weight, bias, eps, centre):
    mean = np.mean(x, (2, 3), keepdims=True) if centre else np.zeros((*x.shape[:2], 1, 1))
    rstd = 1 / np.sqrt(np.mean((x - mean) ** 2, (2, 3), keepdims=True) + eps)
    y = (x - mean) * rstd * (1 if weight is None else weight)
    found = {"rstd": rstd[..., 0, 0], "out": y if bias is None else y + bias}
    return found | {"mean": mean[..., 0, 0]} if centre else found


@formula(_sample_norm)
def sample_norm(x, weight, bias, eps, centre, mean, rstd, out):
    """out = (x - mean) * rstd * weight + bias with statistics of each (sample, group); without ``centre`` mean is 0."""
    if line_norm.fits(x, rstd, weight, bias):
        size = (len(x), x.shape[2] * x.shape[3])
        w, b = (a if a is None else a.reshape(size[1]) for a in (weight, bias))
        line_norm.forward(x.reshape(size), w, b, eps, mean if centre else None, rstd, out.reshape(size))
        return
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
            tile = scratch(part.shape, wide, 0, 4)
            _centred(part, middle, tile)
            _dot(tile, tile, scale, number == 0)
        np.multiply(scale, 1.0 / count, out=scale)
        _reciprocal_root(scale, eps, scale)
        for cut in cuts:
            part = x[rows + cut]
            tile = scratch(part.shape, wide, 0, 4)
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


def _summed_to(like, x):
    """x summed over samples, and over the other axes of which ``like`` has 1."""
    axes = (0, *[a for a in (1, 2, 3) if like.shape[a] == 1])
    return np.sum(x, axis=axes, keepdims=True)


def _sample_norm_backward(gy, x, mean, rstd, weight, grad_weight, grad_bias):
    normal = (x if mean is None else x - mean[..., None, None]) * rstd[..., None, None]
    g = gy if weight is None else gy * weight
    slope = g if mean is None else g - np.mean(g, (2, 3), keepdims=True)
    gx = (slope - normal * np.mean(g * normal, (2, 3), keepdims=True)) * rstd[..., None, None]
    found = {"grad_weight": (grad_weight, gy * normal), "grad_bias": (grad_bias, gy)}
    return {"out": gx} | {name: _summed_to(like, terms) for name, (like, terms) in found.items() if like is not None}


@formula(_sample_norm_backward)
def sample_norm_backward(gy, x, mean, rstd, weight, stat, grad_weight, grad_bias, out):
    """The gradients of x (into out), weight and bias; any target may be ``None``. mean is ``None`` without centring.

    stat is (2, n, groups); grad_weight and grad_bias have the weight's broadcast shape with one axis in front. out may be gy.
    """
    if line_norm.fits(x, rstd, weight, grad_weight, grad_bias):
        size = (len(x), x.shape[2] * x.shape[3])
        flat = [a if a is None else a.reshape(size[1]) for a in (weight, grad_weight, grad_bias)]
        gx = out if out is None else out.reshape(size)
        line_norm.backward(gy.reshape(size), x.reshape(size), mean, rstd, flat[0], stat.reshape(-1), flat[1], flat[2], gx)
        return
    count = max(x.shape[2] * x.shape[3], 1)
    wide = rstd.dtype
    for target in (grad_weight, grad_bias):
        if target is not None:
            target.fill(0)

    def normal(rows, cut):
        """The normalised x."""
        part = x[rows + cut]
        t = scratch(part.shape, wide, 0, 4)
        _centred(part, None if mean is None else mean[rows], t)
        return np.multiply(t, rstd[rows][..., None, None], out=t)

    def weighed(rows, cut):
        """The gradient times the weight."""
        u = scratch(gy[rows + cut].shape, wide, 1, 4)
        if weight is None:
            np.copyto(u, gy[rows + cut])
            return u
        return np.multiply(gy[rows + cut], _part(weight, rows[1], cut), out=u, dtype=wide)

    def parameters(rows, cut, t):
        part, u = gy[rows + cut], scratch(t.shape, wide, 1, 4)
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
    small, ones = scratch((1, *total.shape), total.dtype, 2, 4), ONES[x.dtype]
    if axes == (0,) and len(x) <= RUN:
        np.matmul(ones[: len(x)], x.reshape(len(x), small.size), out=small.reshape(-1))
    elif axes == (0, 3) and x.shape[3] <= RUN:
        lines = scratch((*x.shape[:3], 1), total.dtype, 3, 4)
        np.matmul(x.reshape(lines.size, x.shape[3]), ones[: x.shape[3]], out=lines.reshape(-1))
        np.add.reduce(lines, axis=0, keepdims=True, out=small)
    else:
        np.add.reduce(x, axis=axes, keepdims=True, out=small)
    np.add(total, small[0], out=total)
