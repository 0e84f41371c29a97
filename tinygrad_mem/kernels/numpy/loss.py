"""Losses of pairs of elements, of their formulas: the sum is taken as tiles are made, so no array of losses is needed.

``scale`` is ``None`` for a loss an element; else the result is the sum of all losses times ``scale``. Half precision is
computed in float32. Sums of tiles are added in float64, in the order of the tiles, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from ...dtypes import arithmetic
from ...errors import ArgumentError
from .fast import threads, tiles
from .fast.computed import Written
from .fast.computed import log1p as _log1p

_P = ParamSpec("_P")
_TILE = 1 << 14  # elements: sixteen float64 tiles fill the scratch


def _tile(a: Any, index: Any, wide: Any, slot: int) -> Any:
    """One tile in the wide dtype: a view where it is already, else a copy in scratch."""
    part = a[index]
    if part.dtype == wide:
        return part
    tile = threads.scratch(part.shape, wide, slot, 16)
    np.copyto(tile, part, casting="unsafe")
    return tile


def _run(written: Written, arguments: tuple, others: list, wide: Any, finish: Any) -> None:
    """``finish(k, result, *others)`` for the result of the formula on each tile k, on several cores."""
    run, temps = written(*arguments)
    every, read = [*arguments, *others], len(arguments)
    if all(a.flags.c_contiguous for a in every if isinstance(a, np.ndarray)):
        every = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in every]
    cuts = _cuts(every[0])

    def part(start, stop):
        for k in range(start, stop):
            tile = [_tile(a, cuts[k], wide, i) if isinstance(a, np.ndarray) else a for i, a in enumerate(every[:read])]
            result, *work = (threads.scratch(tile[0].shape, wide, slot, 16) for slot in range(read, read + 1 + temps))
            run(result, *tile, *work)
            finish(k, result, *[a[cuts[k]] for a in every[read:]])

    threads.split(len(cuts), part, grain=threads.GRAIN // _TILE)


def _cuts(x: Any) -> list:
    return [slice(i, i + _TILE) for i in range(0, x.size, _TILE)] if x.ndim == 1 else list(tiles.blocks(x.shape, _TILE))


def _loss(plain: Callable[_P, Any]) -> Callable[_P, None]:
    """The kernel of a loss: out = the formula of every element, or the sum of all times ``scale``."""
    written = Written(plain, ("scale", "out"), apart=True)

    def kernel(*arguments: Any, out: Any) -> None:
        given, scale, wide = arguments[:-1], arguments[-1], arithmetic(out.dtype)
        if scale is None:
            _run(written, given, [out], wide, lambda k, loss, out: np.copyto(out, loss, casting="unsafe"))
            return
        sums: dict[int, float] = {}
        _run(written, given, [], wide, lambda k, loss: sums.update({k: float(np.add.reduce(loss, axis=None))}))
        out.fill(sum(sums[k] for k in sorted(sums)) * scale)

    def formula(**given: Any) -> Any:
        losses = plain(**given)  # pyright: ignore[reportCallIssue]
        return losses if given["scale"] is None else np.sum(losses) * given["scale"]

    return _kernel(plain, kernel, formula, "loss")


def _gradient(plain: Callable[_P, Any]) -> Callable[_P, None]:
    """The kernel of a gradient: out = gy * scale * the formula; gy is 0-d, or of out's shape (and may be out)."""
    written = Written(plain, ("gy", "scale", "out"), apart=True)

    def kernel(gy: Any, *arguments: Any, out: Any) -> None:
        given, scale, wide = arguments[:-1], arguments[-1], arithmetic(out.dtype)
        if gy.ndim == 0:
            factor = float(gy) * scale
            _run(written, given, [out], wide, lambda k, g, out: np.multiply(g, factor, out=out, casting="unsafe"))
            return

        def finish(k, g, out, gy):
            np.multiply(g, scale, out=g)
            np.multiply(g, gy, out=out, casting="unsafe")

        _run(written, given, [out, gy], wide, finish)

    def formula(**given: Any) -> Any:
        return given["gy"] * given["scale"] * plain(**given)  # pyright: ignore[reportCallIssue]

    return _kernel(plain, kernel, formula, "gradient")


def _kernel(plain: Any, kernel: Any, formula: Any, traced: str) -> Any:
    """The kernel, and its formula, with the name and the arguments of ``plain``."""
    kernel = wraps(plain)(kernel)
    kernel.formula, kernel.plain, kernel.traced = wraps(plain)(formula), plain, traced
    return kernel


@_loss
def mse_loss(x, y, scale, out):
    """(x - y)**2."""
    d = x - y
    return d * d


@_gradient
def mse_loss_backward(gy, x, y, scale, out):
    """2 * (x - y), for x; with the two exchanged, for y."""
    return (x - y) * 2


@_loss
def l1_loss(x, y, scale, out):
    """|x - y|."""
    return np.abs(x - y)


@_gradient
def l1_loss_backward(gy, x, y, scale, out):
    """The sign of x - y, for x; with a negative ``scale``, for y."""
    return np.sign(x - y)


@_loss
def huber_loss(x, y, delta, factor, scale, out):
    """factor * ((x - y)**2 / 2 where |x - y| <= delta, else delta * (|x - y| - delta / 2))."""
    far = np.abs(x - y)
    near = np.minimum(far, delta)
    return (far - near * 0.5) * near * factor


@_gradient
def huber_loss_backward(gy, x, y, delta, factor, scale, out):
    """factor * (x - y) within [-delta, delta], for x; with the two exchanged, for y."""
    return np.minimum(np.maximum(x - y, delta * -1), delta) * factor


def check_probabilities(x, y):
    """Refuse elements outside of [0, 1]. Raises: ArgumentError: x or y has one, or a nan."""
    hint = "pass it through sigmoid(), or use the _with_logits loss"
    for name, z, what in (("input", x, hint), ("target", y, "divide labels or pixels by their largest value")):
        if z.size and not (np.minimum.reduce(z, axis=None) >= 0 and np.maximum.reduce(z, axis=None) <= 1):
            raise ArgumentError(f"all elements of {name} should be between 0 and 1: {what}")


def _weighed(loss, weight):
    return loss if weight is None else loss * weight


@_loss
def binary_cross_entropy(x, y, weight, scale, out):
    """-weight * (y * ln x + (1 - y) * ln(1 - x)), logarithms not below -100."""
    of_one = np.maximum(np.log(x), -100) * y
    return _weighed(np.maximum(np.log1p(-x), -100) * (y - 1) - of_one, weight)


@_gradient
def binary_cross_entropy_backward(gy, x, y, weight, scale, out):
    """weight * (x - y) / (x * (1 - x)), for x; the denominator is not below 1e-12."""
    return _weighed((x - y) / np.maximum((1 - x) * x, 1e-12), weight)


@_gradient
def binary_cross_entropy_backward_y(gy, x, y, weight, scale, out):
    """weight * -(ln x - ln(1 - x)), for y."""
    return _weighed(-(np.log(x) - np.log1p(-x)), weight)  # in this order 0 has PyTorch's sign


def _above(x):
    """ln(1 + e**-x), without overflow."""
    return _log1p(np.exp(-np.abs(x))) - np.minimum(x, 0)


def _share(y, positive):
    """1 + (positive - 1) * y, by which what belongs to the positive class is multiplied."""
    return (positive - 1) * y + 1


@_loss
def bce_with_logits(x, y, weight, positive, scale, out):
    """weight * ((1 - y) * x + (1 + (positive - 1) * y) * ln(1 + e**-x)); ``positive`` may be ``None``, for 1."""
    above = _above(x) if positive is None else _above(x) * _share(y, positive)
    return _weighed(above + (1 - y) * x, weight)


@_gradient
def bce_with_logits_backward(gy, x, y, weight, positive, scale, out):
    """weight * ((1 - y) - (1 + (positive - 1) * y) * sigmoid(-x)), for x."""
    below = 1 / (np.exp(x) + 1)
    return _weighed((1 - y) - (below if positive is None else below * _share(y, positive)), weight)


@_gradient
def bce_with_logits_backward_y(gy, x, y, weight, positive, scale, out):
    """weight * ((positive - 1) * ln(1 + e**-x) - x), for y."""
    return _weighed(-x if positive is None else _above(x) * (positive - 1) - x, weight)


@_loss
def kl_div(x, y, log_target, scale, out):
    """y * (ln y - x), 0 where y is 0; with ``log_target``, e**y * (y - x)."""
    if log_target:
        return (y - x) * np.exp(y)
    y_log_y = np.log(y) * y
    return np.where(y == 0, 0, y_log_y) - y * x


@_gradient
def kl_div_backward(gy, x, y, log_target, scale, out):
    """-y, or -e**y with ``log_target``, for x."""
    return -np.exp(y) if log_target else -y


@_gradient
def kl_div_backward_y(gy, x, y, log_target, scale, out):
    """ln y + 1 - x, or e**y * (y - x + 1) with ``log_target``, for y."""
    return (y - x + 1) * np.exp(y) if log_target else np.log(y) - x + 1
