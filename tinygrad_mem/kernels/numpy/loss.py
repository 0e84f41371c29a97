"""Losses of pairs of elements, in tiles: the sum is taken as the tiles are made, so no array of losses is needed.

``scale`` is ``None`` for a loss an element; else the result is the sum of all losses times ``scale``. Half precision is
computed in float32. Sums of tiles are added in float64, in the order of the tiles, whatever the number of threads.
"""

from __future__ import annotations

from typing import Any as _Any

import numpy as np

from ...errors import ArgumentError as _ArgumentError
from .cross_entropy import *  # noqa: F403
from .curves import log1p as _log1p
from .threads import GRAIN as _GRAIN
from .threads import scratch as _scratch
from .threads import split as _split
from .tiles import blocks as _blocks
from .tiles import sign as _sign

_TILE = 1 << 14  # elements: eight float64 tiles fill the scratch


def _cut(arrays: list[_Any]) -> tuple[list[_Any], list]:
    """The arrays, flat where all are contiguous, and the indices of their tiles."""
    if all(a is None or a.flags.c_contiguous for a in arrays):
        flat: list[_Any] = [None if a is None else a.reshape(-1) for a in arrays]
        return flat, [slice(i, i + _TILE) for i in range(0, flat[0].size, _TILE)]
    return arrays, list(_blocks(arrays[0].shape, _TILE))


def _tile(a: _Any, index: _Any, wide: _Any, slot: int) -> _Any:
    """One tile in the wide dtype: a view where it is already, else a copy in scratch."""
    if a is None:
        return None
    part = a[index]
    if part.dtype == wide:
        return part
    tile = _scratch(part.shape, wide, slot, 8)
    np.copyto(tile, part, casting="unsafe")
    return tile


def _run(formula: _Any, arrays: list[_Any], count: int, wide: _Any, finish: _Any) -> None:
    """``finish(k, index, result)`` for every tile k, the result of ``formula(result, *tiles, *scratch)`` on it."""
    arrays, cuts = _cut(arrays)

    def part(start, stop):
        for k in range(start, stop):
            tiles = [_tile(a, cuts[k], wide, slot) for slot, a in enumerate(arrays[:count])]
            work = [_scratch(tiles[0].shape, wide, slot, 8) for slot in (4, 5, 6)]
            formula(work[0], *tiles, *work[1:])
            finish(k, cuts[k], work[0], arrays[count:])

    _split(len(cuts), part, grain=_GRAIN // _TILE)


def _loss(formula, arrays, scale, out):
    """out = ``formula`` of every element, or the sum of all times ``scale``."""
    wide = np.float64 if out.dtype == np.float64 else np.float32
    if scale is None:

        def keep(k, index, result, rest):
            np.copyto(rest[0][index], result, casting="unsafe")

        _run(formula, [*arrays, out], len(arrays), wide, keep)
        return
    sums = [0.0] * len(_cut(arrays)[1])

    def add(k, index, result, rest):
        sums[k] = float(np.add.reduce(result, axis=None))

    _run(formula, arrays, len(arrays), wide, add)
    out.fill(sum(sums) * scale)


def _gradient(formula, gy, arrays, scale, out):
    """out = gy * scale * ``formula``; gy is 0-d, or of out's shape (and may be out)."""
    wide = np.float64 if out.dtype == np.float64 else np.float32
    if gy.ndim == 0:
        factor = float(gy) * scale

        def keep(k, index, result, rest):
            np.multiply(result, factor, out=rest[0][index], casting="unsafe")

        _run(formula, [*arrays, out], len(arrays), wide, keep)
        return

    def keep_each(k, index, result, rest):
        np.multiply(result, scale, out=result)
        np.multiply(result, rest[1][index], out=rest[0][index], casting="unsafe")

    _run(formula, [*arrays, out, gy], len(arrays), wide, keep_each)


def mse_loss(x, y, scale, out):
    """(x - y)**2."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        np.multiply(o, o, out=o)

    _loss(formula, [x, y], scale, out)


def mse_loss_backward(gy, x, y, scale, out):
    """2 * (x - y), for x; with the two exchanged, for y."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        np.multiply(o, 2, out=o)

    _gradient(formula, gy, [x, y], scale, out)


def l1_loss(x, y, scale, out):
    """|x - y|."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        np.absolute(o, out=o)

    _loss(formula, [x, y], scale, out)


def l1_loss_backward(gy, x, y, scale, out):
    """The sign of x - y, for x; with a negative ``scale``, for y."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        _sign(o, t, o)

    _gradient(formula, gy, [x, y], scale, out)


def huber_loss(x, y, delta, factor, scale, out):
    """factor * ((x - y)**2 / 2 where |x - y| <= delta, else delta * (|x - y| - delta / 2))."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        np.absolute(o, out=o)
        np.minimum(o, delta, out=t)
        np.multiply(t, 0.5, out=u)
        np.subtract(o, u, out=o)
        np.multiply(o, t, out=o)
        np.multiply(o, factor, out=o)

    _loss(formula, [x, y], scale, out)


def huber_loss_backward(gy, x, y, delta, factor, scale, out):
    """factor * (x - y) within [-delta, delta], for x; with the two exchanged, for y."""

    def formula(o, x, y, t, u):
        np.subtract(x, y, out=o)
        np.maximum(o, -delta, out=o)
        np.minimum(o, delta, out=o)
        np.multiply(o, factor, out=o)

    _gradient(formula, gy, [x, y], scale, out)


def check_probabilities(x):
    """Refuse elements outside of [0, 1].

    Raises:
        ArgumentError: there is one, or a nan.
    """
    if x.size and not (np.minimum.reduce(x, axis=None) >= 0 and np.maximum.reduce(x, axis=None) <= 1):
        raise _ArgumentError(
            "all elements of input should be between 0 and 1: pass it through sigmoid(), or use the _with_logits loss"
        )


def binary_cross_entropy(x, y, weight, scale, out):
    """-weight * (y * ln x + (1 - y) * ln(1 - x)), logarithms not below -100."""

    def formula(o, x, y, w, t, u):
        np.log(x, out=t)
        np.maximum(t, -100, out=t)
        np.multiply(t, y, out=t)
        np.negative(x, out=o)
        np.log1p(o, out=o)
        np.maximum(o, -100, out=o)
        np.subtract(y, 1, out=u)
        np.multiply(o, u, out=o)
        np.subtract(o, t, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _loss(formula, [x, y, weight], scale, out)


def binary_cross_entropy_backward(gy, x, y, weight, scale, out):
    """weight * (x - y) / (x * (1 - x)), for x; the denominator is not below 1e-12."""

    def formula(o, x, y, w, t, u):
        np.subtract(1, x, out=t)
        np.multiply(t, x, out=t)
        np.maximum(t, 1e-12, out=t)
        np.subtract(x, y, out=o)
        np.divide(o, t, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _gradient(formula, gy, [x, y, weight], scale, out)


def binary_cross_entropy_backward_y(gy, x, y, weight, scale, out):
    """weight * -(ln x - ln(1 - x)), for y."""

    def formula(o, x, y, w, t, u):
        np.log(x, out=t)
        np.negative(x, out=o)
        np.log1p(o, out=o)
        np.subtract(t, o, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _gradient(formula, gy, [x, y, weight], -scale, out)


def _softplus_minus(x, o, t, u):
    """o = ln(1 + e**-x), without overflow; t and u are scratch."""
    np.absolute(x, out=u)
    np.negative(u, out=u)
    np.exp(u, out=u)
    _log1p(u, t, o)
    np.minimum(x, 0, out=t)
    np.subtract(o, t, out=o)


def bce_with_logits(x, y, weight, positive, scale, out):
    """weight * ((1 - y) * x + (1 + (positive - 1) * y) * ln(1 + e**-x)); ``positive`` may be ``None``, for 1."""

    def formula(o, x, y, w, p, t, u):
        _softplus_minus(x, o, t, u)
        if p is not None:
            np.subtract(p, 1, out=t)
            np.multiply(t, y, out=t)
            np.add(t, 1, out=t)
            np.multiply(o, t, out=o)
        np.subtract(1, y, out=t)
        np.multiply(t, x, out=t)
        np.add(o, t, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _loss(formula, [x, y, weight, positive], scale, out)


def bce_with_logits_backward(gy, x, y, weight, positive, scale, out):
    """weight * ((1 - y) - (1 + (positive - 1) * y) * sigmoid(-x)), for x."""

    def formula(o, x, y, w, p, t, u):
        np.exp(x, out=o)
        np.add(o, 1, out=o)
        np.divide(1, o, out=o)
        if p is not None:
            np.subtract(p, 1, out=t)
            np.multiply(t, y, out=t)
            np.add(t, 1, out=t)
            np.multiply(o, t, out=o)
        np.subtract(1, y, out=t)
        np.subtract(t, o, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _gradient(formula, gy, [x, y, weight, positive], scale, out)


def bce_with_logits_backward_y(gy, x, y, weight, positive, scale, out):
    """weight * ((positive - 1) * ln(1 + e**-x) - x), for y."""

    def formula(o, x, y, w, p, t, u):
        if p is None:
            np.negative(x, out=o)
        else:
            _softplus_minus(x, o, t, u)
            np.subtract(p, 1, out=t)
            np.multiply(o, t, out=o)
            np.subtract(o, x, out=o)
        if w is not None:
            np.multiply(o, w, out=o)

    _gradient(formula, gy, [x, y, weight, positive], scale, out)


def _x_log_x(y, o, flag):
    """o = y * ln y, 0 where y is 0."""
    zero = flag.view(np.bool_).reshape(-1)[: y.size].reshape(y.shape)
    np.log(y, out=o)
    np.multiply(o, y, out=o)
    np.equal(y, 0, out=zero)
    np.copyto(o, 0, where=zero)


def kl_div(x, y, log_target, scale, out):
    """y * (ln y - x), 0 where y is 0; with ``log_target``, e**y * (y - x)."""

    def formula(o, x, y, t, u):
        if log_target:
            np.exp(y, out=t)
            np.subtract(y, x, out=o)
            np.multiply(o, t, out=o)
        else:
            _x_log_x(y, o, u)
            np.multiply(y, x, out=t)
            np.subtract(o, t, out=o)

    _loss(formula, [x, y], scale, out)


def kl_div_backward(gy, x, y, log_target, scale, out):
    """-y, or -e**y with ``log_target``, for x."""

    def formula(o, x, y, t, u):
        if log_target:
            np.exp(y, out=o)
            np.negative(o, out=o)
        else:
            np.negative(y, out=o)

    _gradient(formula, gy, [x, y], scale, out)


def kl_div_backward_y(gy, x, y, log_target, scale, out):
    """ln y + 1 - x, or e**y * (y - x + 1) with ``log_target``, for y."""

    def formula(o, x, y, t, u):
        if log_target:
            np.subtract(y, x, out=o)
            np.exp(y, out=t)
        else:
            np.log(y, out=o)
            np.subtract(o, x, out=o)
        np.add(o, 1, out=o)
        if log_target:
            np.multiply(o, t, out=o)

    _gradient(formula, gy, [x, y], scale, out)
