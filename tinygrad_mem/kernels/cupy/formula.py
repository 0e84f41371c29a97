"""Fused kernels from formulas. float16 is computed in float32, other types in their own, and results are rounded once."""

from __future__ import annotations

from .fused import Fused


def forward(formula: str, name: str, numbers: str = "", preamble: str = "") -> Fused:
    """z = formula of v, an element of x, in the wide type W."""
    code = f"typedef typename Wide<X>::type W; z = Z({formula})"
    return Fused(f"X v{numbers}", "Z z", code, f"tinygrad_mem_{name}", preamble)


def backward(formula: str, name: str, numbers: str = "", preamble: str = "") -> Fused:
    """z = formula of g and v, elements of the gradient and of the saved array, in the wide type W."""
    code = f"typedef typename Wide<X>::type W; z = Z({formula})"
    return Fused(f"G g, X v{numbers}", "Z z", code, f"tinygrad_mem_{name}_backward", preamble)


def of_three(formula: str, name: str) -> Fused:
    """z = formula of x, a, b and a number ``value``, in W, the wide type of z. Arrays may share memory element by element."""
    code = f"typedef typename Wide<Z>::type W; z = Z({formula})"
    return Fused("X x, A a, B b, float64 value", "Z z", code, f"tinygrad_mem_{name}")
