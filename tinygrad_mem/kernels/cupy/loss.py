"""Losses of pairs of elements in one pass, with their sum. As in ``kernels/numpy/loss.py``.

Sums are in float64.
"""

from __future__ import annotations

from functools import cache as _cache

import cupy as _cupy

from .cross_entropy import *  # noqa: F403
from .fused import Reduction as _Reduction

_NAMES = ("x", "y", "w", "p")
_HELPERS = """
// a nan stays where it is the first of the two
template<typename W> __device__ inline W least(W a, W b) { return b < a ? b : a; }
template<typename W> __device__ inline W most(W a, W b) { return a < b ? b : a; }
template<typename W> __device__ inline W softplus_minus(W x) { return log1p(exp(x < 0 ? x : -x)) - least(x, (W)0); }
"""


@_cache
def _elementwise(inputs, output, body, name):
    return _cupy.ElementwiseKernel(inputs, output, body, name, preamble=_HELPERS)  # pyright: ignore


@_cache
def _reduction(inputs, output, formula, name):
    post = "out = (float)a" if output.startswith("float16") else "out = a"
    options = {"reduce_type": "double", "preamble": _HELPERS}
    return _Reduction(inputs, output, formula, "a + b", post, "0", name, **options)


def _typed(arrays, out):
    """Declarations of the given arrays, and the formula with every array cast to the wide type."""
    wide = "double" if out.dtype.char == "d" else "float"
    given = [(n, a) for n, a in zip(_NAMES, arrays, strict=False) if a is not None]
    return wide, [f"{a.dtype.name} {n}_" for n, a in given], [a for _, a in given], [n for n, _ in given]


def _cast(formula, wide, names):
    for name in names:
        formula = formula.replace(f"${name}", f"(({wide}){name}_)")
    return formula.replace("$W", wide)


def _loss(name, formula, arrays, scale, out, **numbers):
    """out = ``formula`` of every element, or the sum of all times ``scale``; $x, $y, $w, $p are the arrays, $W the type."""
    wide, declared, given, names = _typed(arrays, out)
    real = "float64" if wide == "double" else "float32"
    inputs = [*declared, *[f"{real} {n}" for n in numbers]]
    formula = _cast(formula, wide, names)
    if scale is None:
        kernel = _elementwise(", ".join(inputs), f"{out.dtype.name} out", f"out = ({wide})({formula});", name)
        kernel(*given, *numbers.values(), out)
        return
    if not given[0].size:
        out.fill(0 * scale)
        return
    kernel = _reduction(", ".join([*inputs, "float64 scale"]), f"{out.dtype.name} out", f"({formula}) * scale", name + "_total")
    kernel(*given, *numbers.values(), float(scale), out=out)


def _gradient(name, formula, gy, arrays, scale, out, **numbers):
    """out = gy * scale * ``formula``; gy is 0-d, or of out's shape (and may be out)."""
    wide, declared, given, names = _typed(arrays, out)
    real = "float64" if wide == "double" else "float32"
    inputs = [f"{gy.dtype.name} gy", *declared, *[f"{real} {n}" for n in numbers], f"{real} scale"]
    body = f"out = ({wide})(({wide})gy * scale * ({_cast(formula, wide, names)}));"
    _elementwise(", ".join(inputs), f"{out.dtype.name} out", body, name)(gy, *given, *numbers.values(), float(scale), out)


def mse_loss(x, y, scale, out):
    """(x - y)**2."""
    _loss("mse_loss", "($x - $y) * ($x - $y)", [x, y], scale, out)


def mse_loss_backward(gy, x, y, scale, out):
    """2 * (x - y), for x; with the two exchanged, for y."""
    _gradient("mse_loss_backward", "2 * ($x - $y)", gy, [x, y], scale, out)


def l1_loss(x, y, scale, out):
    """|x - y|."""
    _loss("l1_loss", "abs($x - $y)", [x, y], scale, out)


def l1_loss_backward(gy, x, y, scale, out):
    """The sign of x - y, for x; with a negative ``scale``, for y."""
    _gradient("l1_loss_backward", "($W)(($x > $y) - ($x < $y))", gy, [x, y], scale, out)


def huber_loss(x, y, delta, factor, scale, out):
    """factor * ((x - y)**2 / 2 where |x - y| <= delta, else delta * (|x - y| - delta / 2))."""
    small = "least(($W)abs($x - $y), ($W)delta)"
    _loss("huber_loss", f"factor * {small} * (abs($x - $y) - {small} / 2)", [x, y], scale, out, delta=delta, factor=factor)


def huber_loss_backward(gy, x, y, delta, factor, scale, out):
    """factor * (x - y) within [-delta, delta], for x; with the two exchanged, for y."""
    formula = "factor * least(most($x - $y, ($W)-delta), ($W)delta)"
    _gradient("huber_loss_backward", formula, gy, [x, y], scale, out, delta=delta, factor=factor)


def check_probabilities(x):
    """Does nothing: reading the input would make the host wait. A number outside of [0, 1] gives nan."""


def _times(weight):
    return "" if weight is None else "$w * "


def binary_cross_entropy(x, y, weight, scale, out):
    """-weight * (y * ln x + (1 - y) * ln(1 - x)), logarithms not below -100."""
    formula = "($y - 1) * most(($W)log1p(-$x), ($W)-100) - $y * most(($W)log($x), ($W)-100)"
    _loss("binary_cross_entropy", f"{_times(weight)}({formula})", [x, y, weight], scale, out)


def binary_cross_entropy_backward(gy, x, y, weight, scale, out):
    """weight * (x - y) / (x * (1 - x)), for x; the denominator is not below 1e-12."""
    formula = f"{_times(weight)}($x - $y) / most($x * (1 - $x), ($W)1e-12)"
    _gradient("binary_cross_entropy_backward", formula, gy, [x, y, weight], scale, out)


def binary_cross_entropy_backward_y(gy, x, y, weight, scale, out):
    """weight * -(ln x - ln(1 - x)), for y."""
    formula = f"{_times(weight)}(log($x) - log1p(-$x))"
    _gradient("binary_cross_entropy_backward_y", formula, gy, [x, y, weight], -scale, out)


def _heavier(positive):
    return "" if positive is None else " * (1 + ($p - 1) * $y)"


def bce_with_logits(x, y, weight, positive, scale, out):
    """weight * ((1 - y) * x + (1 + (positive - 1) * y) * ln(1 + e**-x)); ``positive`` may be ``None``, for 1."""
    formula = f"{_times(weight)}((1 - $y) * $x + softplus_minus($x){_heavier(positive)})"
    _loss("bce_with_logits", formula, [x, y, weight, positive], scale, out)


def bce_with_logits_backward(gy, x, y, weight, positive, scale, out):
    """weight * ((1 - y) - (1 + (positive - 1) * y) * sigmoid(-x)), for x."""
    formula = f"{_times(weight)}((1 - $y) - 1 / (1 + exp($x)){_heavier(positive)})"
    _gradient("bce_with_logits_backward", formula, gy, [x, y, weight, positive], scale, out)


def bce_with_logits_backward_y(gy, x, y, weight, positive, scale, out):
    """weight * ((positive - 1) * ln(1 + e**-x) - x), for y."""
    extra = "" if positive is None else "($p - 1) * softplus_minus($x) "
    _gradient("bce_with_logits_backward_y", f"{_times(weight)}({extra}- $x)", gy, [x, y, weight, positive], scale, out)


def kl_div(x, y, log_target, scale, out):
    """y * (ln y - x), 0 where y is 0; with ``log_target``, e**y * (y - x)."""
    formula = "exp($y) * ($y - $x)" if log_target else "($y == 0 ? ($W)0 : $y * log($y)) - $y * $x"
    _loss(f"kl_div_{int(log_target)}", formula, [x, y], scale, out)


def kl_div_backward(gy, x, y, log_target, scale, out):
    """-y, or -e**y with ``log_target``, for x."""
    _gradient(f"kl_div_backward_{int(log_target)}", "-exp($y)" if log_target else "-$y", gy, [x, y], scale, out)


def kl_div_backward_y(gy, x, y, log_target, scale, out):
    """ln y + 1 - x, or e**y * (y - x + 1) with ``log_target``, for y."""
    formula = "exp($y) * ($y - $x + 1)" if log_target else "log($y) + 1 - $x"
    _gradient(f"kl_div_backward_y_{int(log_target)}", formula, gy, [x, y], scale, out)
