"""Activations on a GPU that are not generated from their formulas: one fused kernel each."""

from __future__ import annotations

from .fused import Fused

_CURVES = """
template <typename W> __device__ inline W normal(W v) { return W(0.5) * erfc(v * W(-0.7071067811865476)); }
template <typename W> __device__ inline W density(W v) { return W(0.3989422804014327) * exp(W(-0.5) * v * v); }

// gelu's tanh, and the derivative of what is inside it
template <typename W> __device__ inline W bend(W v) { return tanh(W(0.7978845608028654) * (v + W(0.044715) * v * v * v)); }
template <typename W> __device__ inline W slope(W v) { return W(0.7978845608028654) * (W(1) + W(0.134145) * v * v); }
"""
_TYPE = "typedef typename Wide<X>::type W; z = "
_GELU = f"{_TYPE}Z(tan ? W(0.5) * v * (W(1) + bend(v)) : v * normal(v))"
_BENT = "W(0.5) * (W(1) + bend(v)) + W(0.5) * v * (W(1) - bend(v) * bend(v)) * slope(v)"
_GRADIENT = f"{_TYPE}Z(g * (tan ? {_BENT} : normal(v) + v * density(v)))"
_gelu = Fused("X v, bool tan", "Z z", _GELU, "tinygrad_mem_gelu", _CURVES)
_gelu_grad = Fused("G g, X v, bool tan", "Z z", _GRADIENT, "tinygrad_mem_gelu_backward", _CURVES)


def gelu(x, tanh, out):
    _gelu(x, tanh, out)


def gelu_backward(gy, x, tanh, out):
    _gelu_grad(gy, x, tanh, out)
