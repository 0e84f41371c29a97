"""Piecewise linear activations on a GPU: one fused kernel each."""

from __future__ import annotations

from .formula import backward as _backward
from .formula import forward as _forward

_relu = _forward("v <= W(0) ? W(0) : v", "relu")
_relu_grad = _backward("v <= W(0) ? W(0) : g", "relu")
_leaky = _forward("v > W(0) ? v : W(slope) * v", "leaky_relu", ", float64 slope")
_leaky_grad = _backward("v > W(0) ? g : W(slope) * g", "leaky_relu", ", float64 slope")
_RAMP = "(v != v ? v : min(max(v + W(3), W(0)), W(6)) / W(6))"  # min and max ignore nan
_hardsigmoid = _forward(_RAMP, "hardsigmoid")
_hardswish = _forward(f"v * {_RAMP}", "hardswish")
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
_threshold_grad = _backward("v <= W(limit) ? W(0) : g", "threshold", ", float64 limit")
_prelu = _forward("v > W(0) ? v : W(w) * v", "prelu", ", Y w")
_prelu_grad = _backward("v > W(0) ? g : W(w) * g", "prelu", ", Y w")
_prelu_weight = _backward("v > W(0) ? W(0) : g * v", "prelu_weight")


def relu(x, out):
    """out = max(x, 0)."""
    _relu(x, out)


def relu_backward(gy, y, out):
    """out = 0 where y <= 0, else gy, also where y is nan."""
    _relu_grad(gy, y, out)


def leaky_relu(x, slope, out):
    """out = x where x > 0, else slope * x."""
    _leaky(x, slope, out)


def leaky_relu_backward(gy, s, slope, out):
    """out = gy where s > 0, else slope * gy; s is x, or y where the slope is positive."""
    _leaky_grad(gy, s, slope, out)


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
    """out = 0 where x <= limit, else gy."""
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
