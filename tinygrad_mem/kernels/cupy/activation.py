"""Smooth activations on a GPU: one fused kernel each."""

from __future__ import annotations

from .formula import backward as _formula_backward
from .formula import forward as _formula_forward

_CURVES = """
template <typename W> __device__ inline W sigmoid(W v) { return W(1) / (W(1) + exp(-v)); }
template <typename W> __device__ inline W softplus(W v) { return (v > W(0) ? v : W(0)) + log1p(exp(-abs(v))); }
template <typename W> __device__ inline W normal(W v) { return W(0.5) * erfc(v * W(-0.7071067811865476)); }
template <typename W> __device__ inline W density(W v) { return W(0.3989422804014327) * exp(W(-0.5) * v * v); }

// gelu's tanh, and the derivative of what is inside it
template <typename W> __device__ inline W bend(W v) { return tanh(W(0.7978845608028654) * (v + W(0.044715) * v * v * v)); }
template <typename W> __device__ inline W slope(W v) { return W(0.7978845608028654) * (W(1) + W(0.134145) * v * v); }

// mish is v n / (n + 2): n = e**v (e**v + 2); beyond 20 that is v itself in float64
template <typename W> __device__ inline W mish(W v) {
    const W e = exp(v > W(20) ? W(20) : v), n = e * (e + W(2));
    return v * (n / (n + W(2)));
}
template <typename W> __device__ inline W mish_slope(W v) {
    const W u = v > W(20) ? W(20) : v, e = exp(u), n = e * (e + W(2));
    return (n + W(4) * (e * (W(1) + e) * u) / (n + W(2))) / (n + W(2));
}
"""


def _forward(formula, name, numbers=""):
    return _formula_forward(formula, name, numbers, _CURVES)


def _backward(formula, name, numbers=""):
    return _formula_backward(formula, name, numbers, _CURVES)


_ELU = ", float64 alpha, float64 scale, float64 inner"
_elu = _forward("v > W(0) ? W(scale) * v : W(scale * alpha) * expm1(W(inner) * v)", "elu", _ELU)
_elu_grad = _backward("g * (v > W(0) ? W(scale) : W(scale * alpha * inner) * exp(W(inner) * v))", "elu", _ELU)
_gelu = _forward("tan ? W(0.5) * v * (W(1) + bend(v)) : v * normal(v)", "gelu", ", bool tan")
_BENT = "W(0.5) * (W(1) + bend(v)) + W(0.5) * v * (W(1) - bend(v) * bend(v)) * slope(v)"
_gelu_grad = _backward(f"g * (tan ? {_BENT} : normal(v) + v * density(v))", "gelu", ", bool tan")
_silu = _forward("v * sigmoid(v)", "silu")
_silu_grad = _backward("g * sigmoid(v) * (W(1) + v * (W(1) - sigmoid(v)))", "silu")
_SOFT = ", float64 beta, float64 limit"
_softplus = _forward("W(beta) * v > W(limit) ? v : softplus(W(beta) * v) / W(beta)", "softplus", _SOFT)
_softplus_grad = _backward("W(beta) * v > W(limit) ? g : g * sigmoid(W(beta) * v)", "softplus", _SOFT)
_mish = _forward("mish(v)", "mish")
_mish_grad = _backward("g * mish_slope(v)", "mish")
_softsign = _forward("v / (W(1) + abs(v))", "softsign")
_softsign_grad = _backward("g / ((W(1) + abs(v)) * (W(1) + abs(v)))", "softsign")
_logsigmoid = _forward("-softplus(-v)", "logsigmoid")
_logsigmoid_grad = _backward("g * sigmoid(-v)", "logsigmoid")


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
