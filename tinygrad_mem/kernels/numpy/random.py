"""Random numbers from a ticket ``(seed, call)``: Philox with the seed for key and the call for counter."""

import numpy as np

from ..formula import formula
from .fast.threads import scratch
from .fast.tiles import blocks


def _source(ticket, stream=0):
    seed, call = ticket
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, stream, call, 0]))


def _fill(out, draw, scale, shift):
    """out = scale * the numbers of ``draw`` + shift, drawn as contiguous float32 or float64, and copied for other kinds."""

    def fill(tile):
        draw(dtype=tile.dtype, out=tile)
        if scale != 1:
            np.multiply(tile, scale, out=tile)
        if shift != 0:
            np.add(tile, shift, out=tile)

    if out.dtype in (np.float32, np.float64) and out.flags.c_contiguous:
        fill(out)
        return
    wide = np.float64 if out.dtype == np.float64 else np.float32
    for index in blocks(out.shape):
        tile = scratch(out[index].shape, wide)
        fill(tile)
        np.copyto(out[index], tile, casting="unsafe")


@formula(None, "it draws random numbers")
def uniform(ticket, low, high, out):
    """out = uniform numbers in [low, high)."""
    _fill(out, _source(ticket).random, high - low, low)


@formula(None, "it draws random numbers")
def normal(ticket, mean, std, out):
    """out = normal numbers."""
    _fill(out, _source(ticket).standard_normal, std, mean)


@formula(None, "it draws random numbers")
def exponential(ticket, rate, out):
    """out = exponential numbers with this rate."""
    _fill(out, _source(ticket).standard_exponential, 1.0 / rate, 0)


@formula(None, "it draws random numbers")
def integers(ticket, low, high, out):
    """out = integers in [low, high)."""
    source = _source(ticket)
    for index in blocks(out.shape):
        part = out[index]
        part[...] = source.integers(low, high, part.shape)


@formula(None, "it draws random numbers")
def bernoulli(ticket, p, out):
    """out = 1 with probability p (a number, or an array of out's shape), else 0."""
    source = _source(ticket)
    for index in blocks(out.shape):
        part = out[index]
        tile, flag = scratch(part.shape, np.float64, 0, 2), scratch(part.shape, np.bool_, 1, 2)
        source.random(out=tile)
        np.less(tile, p if isinstance(p, float) else p[index], out=flag)
        np.copyto(part, flag, casting="unsafe")


def permutation_workspace(out):
    """Bytes of workspace for ``permutation``: none here."""
    return 0


@formula(None, "it draws random numbers")
def permutation(ticket, work, out):
    """out = 0 to n - 1 in random order."""
    out[...] = _source(ticket).permutation(out.size)


def multinomial_workspace(weights, replacement, out):
    """Bytes of workspace for ``multinomial``: none here."""
    return 0


@formula(None, "it draws random numbers")
def multinomial(ticket, weights, replacement, work, out):
    """out = for each row, indices drawn in proportion to the row's weights."""
    source = _source(ticket)
    rows = weights.reshape(-1, weights.shape[-1]).astype(np.float64)
    for row, target in zip(rows, out.reshape(-1, out.shape[-1]), strict=True):
        target[...] = source.choice(row.size, target.size, replace=replacement, p=row / row.sum())
