"""Activations on a GPU: one fused kernel each. Numbers are computed in float32 for float16, else in the input's type."""

from __future__ import annotations

from typing import Any

import cupy as _cupy

_WIDE = """
template <typename T> struct Wide { typedef T type; };
template <> struct Wide<float16> { typedef float type; };
"""
_SIGMOID = "(W(0.5) * tanh(W(0.5) * v) + W(0.5))"
_SOFTPLUS = "(max(v, W(0)) + log1p(exp(-abs(v))))"
_PHI = "(W(0.5) * (W(1) + erf(v * W(0.7071067811865476))))"
_INNER = "tanh(W(0.7978845608028654) * (v + W(0.044715) * v * v * v))"
_SLOPE = "(W(0.7978845608028654) * (W(1) + W(0.134145) * v * v))"


def _forward(formula: str, name: str, numbers: str = "") -> Any:
    """z = formula of v, which is x in the wide type W."""
    code = f"typedef typename Wide<X>::type W; const W v = W(x); z = Z({formula});"
    return _cupy.ElementwiseKernel(f"X x{numbers}", "Z z", code, f"tinygrad_mem_{name}", preamble=_WIDE)


def _backward(formula: str, name: str, numbers: str = "") -> Any:
    """z = g * formula of v, which is the saved array in the wide type W."""
    code = f"typedef typename Wide<X>::type W; const W v = W(x); const W g = W(gy); z = Z({formula});"
    return _cupy.ElementwiseKernel(f"G gy, X x{numbers}", "Z z", code, f"tinygrad_mem_{name}_backward", preamble=_WIDE)


_relu = _forward("v > W(0) || isnan(v) ? v : W(0)", "relu")
_relu_grad = _backward("v > W(0) ? g : W(0)", "relu")
_leaky = _forward("v > W(0) ? v : W(slope) * v", "leaky_relu", ", float64 slope")
_leaky_grad = _backward("v > W(0) ? g : W(slope) * g", "leaky_relu", ", float64 slope")
_ELU = ", float64 alpha, float64 scale, float64 inner"
_elu = _forward("v > W(0) ? W(scale) * v : W(scale * alpha) * expm1(W(inner) * v)", "elu", _ELU)
_elu_grad = _backward("g * (v > W(0) ? W(scale) : W(scale * alpha * inner) * exp(W(inner) * v))", "elu", _ELU)
_gelu = _forward(f"tan ? W(0.5) * v * (W(1) + {_INNER}) : v * {_PHI}", "gelu", ", bool tan")
_gelu_grad = _backward(
    f"g * (tan ? W(0.5) * (W(1) + {_INNER}) + W(0.5) * v * (W(1) - {_INNER} * {_INNER}) * {_SLOPE}"
    f" : {_PHI} + v * W(0.3989422804014327) * exp(W(-0.5) * v * v))",
    "gelu",
    ", bool tan",
)
_silu = _forward(f"v * {_SIGMOID}", "silu")
_silu_grad = _backward(f"g * {_SIGMOID} * (W(1) + v * (W(1) - {_SIGMOID}))", "silu")
_SOFT = ", float64 beta, float64 limit"
_softplus = _forward(
    "W(beta) * v > W(limit) ? v : (max(W(beta) * v, W(0)) + log1p(exp(-abs(W(beta) * v)))) / W(beta)", "softplus", _SOFT
)
_softplus_grad = _backward("W(beta) * v > W(limit) ? g : g * (W(0.5) * tanh(W(0.5 * beta) * v) + W(0.5))", "softplus", _SOFT)
_mish = _forward(f"v * tanh({_SOFTPLUS})", "mish")
_mish_grad = _backward(f"g * (tanh({_SOFTPLUS}) + v * (W(1) - tanh({_SOFTPLUS}) * tanh({_SOFTPLUS})) * {_SIGMOID})", "mish")
_softsign = _forward("v / (W(1) + abs(v))", "softsign")
_softsign_grad = _backward("g / ((W(1) + abs(v)) * (W(1) + abs(v)))", "softsign")
_logsigmoid = _forward("min(v, W(0)) - log1p(exp(-abs(v)))", "logsigmoid")
_logsigmoid_grad = _backward("g * (W(0.5) - W(0.5) * tanh(W(0.5) * v))", "logsigmoid")
_hardsigmoid = _forward("min(max(v + W(3), W(0)), W(6)) / W(6)", "hardsigmoid")
_hardswish = _forward("v * min(max(v + W(3), W(0)), W(6)) / W(6)", "hardswish")
_hardswish_grad = _backward("v <= W(-3) ? W(0) : v >= W(3) ? g : g * (v / W(3) + W(0.5))", "hardswish")
_window_grad = _backward(
    "v > W(low) && v < W(high) ? W(scale) * g : W(0)", "window", ", float64 low, float64 high, float64 scale"
)
_shrink = _forward(
    "v >= W(low) && v <= W(high) ? W(0) : v > W(0) ? v - W(shift) : v + W(shift)",
    "shrink",
    ", float64 low, float64 high, float64 shift",
)
_shrink_grad = _backward("v >= W(low) && v <= W(high) ? W(0) : g", "shrink", ", float64 low, float64 high")
_threshold = _forward("v <= W(limit) ? W(value) : v", "threshold", ", float64 limit, float64 value")
_threshold_grad = _backward("v > W(limit) ? g : W(0)", "threshold", ", float64 limit")
_prelu = _forward("v > W(0) ? v : W(w) * v", "prelu", ", Y w")
_prelu_grad = _backward("v > W(0) ? g : W(w) * g", "prelu", ", Y w")
_prelu_weight = _backward("v > W(0) ? W(0) : g * v", "prelu_weight")


def relu(x, out):
    """out = max(x, 0)."""
    _relu(x, out)


def relu_backward(gy, y, out):
    """out = gy where y > 0, else 0."""
    _relu_grad(gy, y, out)


def leaky_relu(x, slope, out):
    """out = x where x > 0, else slope * x."""
    _leaky(x, slope, out)


def leaky_relu_backward(gy, s, slope, out):
    """out = gy where s > 0, else slope * gy; s is x, or y where the slope is positive."""
    _leaky_grad(gy, s, slope, out)


def elu(x, alpha, scale, inner, out):
    """out = scale * x where x > 0, else scale * alpha * (e**(inner * x) - 1)."""
    _elu(x, alpha, scale, inner, out)


def elu_backward(gy, x, alpha, scale, inner, out):
    """out = gy times scale where x > 0, else times scale * alpha * inner * e**(inner * x)."""
    _elu_grad(gy, x, alpha, scale, inner, out)


def gelu(x, tanh, out):
    """out = x * Phi(x), exactly or by the tanh formula."""
    _gelu(x, tanh, out)


def gelu_backward(gy, x, tanh, out):
    """out = gy * (Phi(x) + x * phi(x)), or the derivative of the tanh formula."""
    _gelu_grad(gy, x, tanh, out)


def silu(x, out):
    """out = x * sigmoid(x)."""
    _silu(x, out)


def silu_backward(gy, x, out):
    """out = gy * s * (1 + x * (1 - s)), s = sigmoid(x)."""
    _silu_grad(gy, x, out)


def softplus(x, beta, threshold, out):
    """out = ln(1 + e**(beta * x)) / beta; x itself where beta * x is above the threshold."""
    _softplus(x, beta, threshold, out)


def softplus_backward(gy, x, beta, threshold, out):
    """out = gy * sigmoid(beta * x); gy itself where beta * x is above the threshold."""
    _softplus_grad(gy, x, beta, threshold, out)


def mish(x, out):
    """out = x * tanh(ln(1 + e**x))."""
    _mish(x, out)


def mish_backward(gy, x, out):
    """out = gy * (t + x * (1 - t**2) * sigmoid(x)), t = tanh(ln(1 + e**x))."""
    _mish_grad(gy, x, out)


def softsign(x, out):
    """out = x / (1 + |x|)."""
    _softsign(x, out)


def softsign_backward(gy, x, out):
    """out = gy / (1 + |x|)**2."""
    _softsign_grad(gy, x, out)


def logsigmoid(x, out):
    """out = -ln(1 + e**-x)."""
    _logsigmoid(x, out)


def logsigmoid_backward(gy, x, out):
    """out = gy * sigmoid(-x)."""
    _logsigmoid_grad(gy, x, out)


def hardsigmoid(x, out):
    """out = min(max(x / 6 + 1 / 2, 0), 1)."""
    _hardsigmoid(x, out)


def hardswish(x, out):
    """out = x * hardsigmoid(x)."""
    _hardswish(x, out)


def hardswish_backward(gy, x, out):
    """out = gy times 0 below -3, x / 3 + 1 / 2 up to 3, 1 above."""
    _hardswish_grad(gy, x, out)


def window_backward(gy, s, low, high, scale, out):
    """out = scale * gy where low < s < high, else 0: the gradient of a ramp between two constants."""
    _window_grad(gy, s, low, high, scale, out)


def shrink(x, low, high, shift, out):
    """out = 0 where low <= x <= high, else x moved towards zero by ``shift``."""
    _shrink(x, low, high, shift, out)


def shrink_backward(gy, x, low, high, out):
    """out = 0 where low <= x <= high, else gy."""
    _shrink_grad(gy, x, low, high, out)


def threshold(x, limit, value, out):
    """out = x where x > limit, else value."""
    _threshold(x, limit, value, out)


def threshold_backward(gy, x, limit, out):
    """out = gy where x > limit, else 0."""
    _threshold_grad(gy, x, limit, out)


def prelu(x, weight, out):
    """out = x where x > 0, else weight * x; weight is broadcast to x's shape."""
    _prelu(x, weight, out)


def prelu_backward(gy, x, weight, out):
    """out = gy where x > 0, else weight * gy."""
    _prelu_grad(gy, x, weight, out)


def prelu_backward_weight(gy, x, out):
    """out = gy * min(x, 0)."""
    _prelu_weight(gy, x, out)
