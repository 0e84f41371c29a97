"""Batch norm and leaky ReLU whose backward computes the input from the output."""

import numpy as np

from ..formula import formula
from .fast.channels import input_gradient, into, over_images, sum_lines
from .fast.computed import computed
from .fast.threads import SCRATCH, scratch


@computed
def bounded_scale(weight, least, out):
    """out = weight where its absolute value is at least ``least``, else ``least`` with its sign."""
    return np.copysign(np.maximum(np.abs(weight), least), weight)


def _before(y, slope, tile):
    """tile = what leaky ReLU made y of: of a slope up to 1, the smaller of y and y / slope."""
    np.divide(y, slope, out=tile)
    return (np.minimum if slope <= 1 else np.maximum)(tile, y, out=tile)


def _inplace_norm_backward(gz, y, scale, bias, rstd, slope, training):
    column = lambda a, otherwise: otherwise if a is None else a[:, None]  # noqa: E731
    normal = (np.where(y > 0, y, y / slope) - column(bias, 0)) / column(scale, 1)
    gx = gz
    if training:
        middle, share = (np.mean(a, (0, 2))[:, None] for a in (gz, gz * normal))
        gx = gz - middle - normal * share
    return {"sums": np.stack([np.sum(gz, (0, 2)), np.sum(gz * normal, (0, 2))]), "out": gx * column(rstd, 1) * column(scale, 1)}


@formula(_inplace_norm_backward)
def inplace_norm_backward(gz, y, scale, bias, rstd, slope, training, partial, work, sums, out):
    """sums[0] = sum of gz, sums[1] = sum of gz * the normalised x, per channel; out (or None) = the gradient of x.

    gz is the gradient behind the activation, y (n, channels, length) what it was activated to. partial is (2, n, channels),
    work (3, channels), sums (2, channels). out may be gz.
    """
    wide = rstd.dtype

    def total(images, channels, places):
        g, v = gz[images, channels, places], y[images, channels, places]
        z = scratch(v.shape, wide, 0, 4)
        _before(v, slope, z)
        if g.dtype != wide:
            cast = scratch(g.shape, wide, 1, 4)
            np.copyto(cast, g)
            g = cast
        into(sum_lines, places, partial[0, images, channels], g)
        into(np.vecdot, places, partial[1, images, channels], g, z)

    if y.size:
        over_images(y, SCRATCH // 4 // wide.itemsize, total)
    else:
        partial.fill(0)
    for part, found in zip(partial, sums, strict=True):
        np.add.reduce(part, axis=0, out=found)
    a, b, _ = work
    np.multiply(sums[0], 0.0 if bias is None else bias, out=b)
    np.subtract(sums[1], b, out=sums[1])
    if scale is not None:
        np.divide(sums[1], scale, out=sums[1])
    if out is None:
        return
    np.multiply(rstd, 1.0 if scale is None else scale, out=a)
    np.copyto(b, rstd)
    input_gradient(gz, y, bias, training, work, sums, out, lambda y, tile: _before(y, slope, tile))
