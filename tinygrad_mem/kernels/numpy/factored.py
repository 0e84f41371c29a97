"""Adafactor: it keeps the mean squares of a matrix's rows and columns, and allocates nothing of the matrix's size.

Shapes: ``p`` and ``g`` (..., n, m), ``row`` (..., n, 1), ``col`` (..., 1, m). A vector has a ``variance`` of its shape.

Source: Shazeer and Stern, *Adafactor: adaptive learning rates with sublinear memory cost*, 2018.
"""

from math import prod as _prod
from math import sqrt as _sqrt

import numpy as np

from ...dtypes import arithmetic
from ..formula import formula
from .fast.threads import scratch
from .fast.tiles import blocks, boxes

_TILE = 1 << 16  # elements: a quarter of the scratch in float64
SUMS = 1026  # float64s: two sums, and on a GPU the parts that they are made of


def adafactor_workspace(shape, dtype):
    """Bytes of workspace for a step: sums, and the mean over the rows' mean squares of each matrix."""
    return 8 * (SUMS + (_prod(shape[:-2]) if len(shape) > 1 else 0))


def _adafactor_step(p, g, row, col, variance, rho, fresh, eps1, eps2, d, shrink, maximize):
    if p.size == 0:
        return {}
    rms = lambda a, *axes, **options: np.sqrt(np.mean(a**2, *axes, **options))  # noqa: E731
    if row is None:
        mean_square = variance = (1 - fresh) * variance + fresh * g**2
    else:
        row = (1 - fresh) * row + fresh * rms(g, -1, keepdims=True) ** 2
        col = (1 - fresh) * col + fresh * rms(g, -2, keepdims=True) ** 2
        mean_square = row * col / np.maximum(np.mean(row, -2, keepdims=True), eps1)
    u = g / np.sqrt(np.maximum(mean_square, eps1**2))
    step = max(eps2, rms(p)) * rho * u / max(1, rms(u) / d)
    return {"p": p * shrink + (step if maximize else -step), "row": row, "col": col, "variance": variance}


@formula(_adafactor_step)
def adafactor_step(p, g, row, col, variance, work, rho, fresh, eps1, eps2, d, shrink, maximize):
    """Mean squares move towards those of g by the share ``fresh``; p = shrink * p - alpha * u / max(1, rms(u) / d).

    u = g / max(root of the mean squares' estimate, eps1), alpha = max(eps2, rms(p)) * rho. Either row and col or variance is
    there, the others are ``None``. work is the workspace asked for.
    """
    if p.size == 0:
        return
    alpha = max(eps2, _sqrt(_sum_of_squares(p)) / _sqrt(p.size)) * rho
    if row is None:
        p, g, variance = (a.reshape(1, 1, -1) for a in (p, g, variance))
        _move_variance(g, variance, fresh)
        parts = [(p, g, variance, None, None)]
    else:
        parts = list(_matrices(p, g, row, col, work.view(row.dtype)[: _prod(p.shape[:-2])].reshape(*p.shape[:-2], 1, 1)))
        for _, gs, rows, cols, means in parts:
            _move_factors(gs, rows, cols, fresh)
            np.add.reduce(rows, axis=1, keepdims=True, out=means)
            np.multiply(means, 1.0 / rows.shape[1], out=means)
            np.maximum(means, eps1, out=means)
    total = 0.0
    for _, gs, rows, cols, means in parts:
        for key, _ in boxes(gs.shape, _TILE):
            u = _direction(gs, rows, cols, means, key, eps1)
            total += float(np.add.reduce(np.multiply(u, u, out=u), axis=None))
    step = alpha / max(1.0, _sqrt(total) / (_sqrt(p.size) * d)) * (-1.0 if maximize else 1.0)
    for ps, gs, rows, cols, means in parts:
        for key, _ in boxes(gs.shape, _TILE):
            u = _direction(gs, rows, cols, means, key, eps1)
            np.multiply(u, step, out=u)
            moved = scratch(u.shape, u.dtype, 1, 4)
            np.multiply(ps[key], shrink, out=moved, dtype=u.dtype)
            np.subtract(moved, u, out=ps[key], casting="unsafe")


def _sum_of_squares(p):
    total = 0.0
    for key in blocks(p.shape, _TILE):
        tile = scratch(p[key].shape, arithmetic(p.dtype), 0, 4)
        np.multiply(p[key], p[key], out=tile, dtype=tile.dtype)
        total += float(np.add.reduce(tile, axis=None))
    return total


def _matrices(p, g, *states):
    """The arrays as (batch, n, m): at once where that is a view, else matrix by matrix."""
    if p.flags.c_contiguous and g.flags.c_contiguous:
        yield tuple([a.reshape(-1, *a.shape[-2:]) for a in (p, g, *states)])
        return
    for index in np.ndindex(p.shape[:-2]):
        yield tuple([a[index][None] for a in (p, g, *states)])


def _move_factors(g, row, col, fresh):
    """row and col = (1 - fresh) of themselves + fresh of the mean squares of g's rows and columns."""
    _, n, m = g.shape
    np.multiply(row, 1 - fresh, out=row)
    np.multiply(col, 1 - fresh, out=col)
    for (bs, ns, ms), _ in boxes(g.shape, _TILE):
        part = g[bs, ns, ms]
        squares = scratch(part.shape, row.dtype, 0, 4)
        np.multiply(part, part, out=squares, dtype=row.dtype)
        for target, axis, count in ((row[bs, ns], 2, m), (col[bs, :, ms], 1, n)):
            sums = scratch(target.shape, row.dtype, 1, 4)
            np.add.reduce(squares, axis=axis, keepdims=True, out=sums)
            np.multiply(sums, fresh / count, out=sums)
            np.add(target, sums, out=target)


def _move_variance(g, variance, fresh):
    np.multiply(variance, 1 - fresh, out=variance)
    for key, _ in boxes(g.shape, _TILE):
        squares = scratch(g[key].shape, variance.dtype, 0, 4)
        np.multiply(g[key], g[key], out=squares, dtype=variance.dtype)
        np.multiply(squares, fresh, out=squares)
        np.add(variance[key], squares, out=variance[key])


def _direction(g, row, col, mean, key, eps1):
    """g over the root of the mean squares' estimate, in scratch; for a vector ``row`` is its variance."""
    bs, ns, ms = key
    u = scratch(g[key].shape, row.dtype, 0, 4)
    if col is None:
        np.copyto(u, row[key])
    else:
        np.multiply(row[bs, ns], col[bs, :, ms], out=u)
        np.divide(u, mean[bs], out=u)
    np.maximum(u, eps1 * eps1, out=u)
    np.sqrt(u, out=u)
    np.divide(g[key], u, out=u)
    return u
