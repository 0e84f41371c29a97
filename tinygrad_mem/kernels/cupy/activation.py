"""Smooth activations on a GPU: one fused kernel each."""

from __future__ import annotations

from .formula import backward as _backward
from .formula import forward as _forward

_SIGMOID = "(W(0.5) * tanh(W(0.5) * v) + W(0.5))"
_SOFTPLUS = "(max(v, W(0)) + log1p(exp(-abs(v))))"
_PHI = "(W(0.5) * (W(1) + erf(v * W(0.7071067811865476))))"
_INNER = "tanh(W(0.7978845608028654) * (v + W(0.044715) * v * v * v))"
_SLOPE = "(W(0.7978845608028654) * (W(1) + W(0.134145) * v * v))"
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
