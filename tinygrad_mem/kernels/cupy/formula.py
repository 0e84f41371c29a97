"""How a formula becomes a fused kernel: computed in float32 for float16, else in the input's type."""

from __future__ import annotations

from typing import Any

import cupy as _cupy

_WIDE = """
template <typename T> struct Wide { typedef T type; };
template <> struct Wide<float16> { typedef float type; };
"""


def forward(formula: str, name: str, numbers: str = "") -> Any:
    """z = formula of v, which is x in the wide type W."""
    code = f"typedef typename Wide<X>::type W; const W v = W(x); z = Z({formula});"
    return _cupy.ElementwiseKernel(f"X x{numbers}", "Z z", code, f"tinygrad_mem_{name}", preamble=_WIDE)


def backward(formula: str, name: str, numbers: str = "") -> Any:
    """z = g * formula of v, which is the saved array in the wide type W."""
    code = f"typedef typename Wide<X>::type W; const W v = W(x); const W g = W(gy); z = Z({formula});"
    return _cupy.ElementwiseKernel(f"G gy, X x{numbers}", "Z z", code, f"tinygrad_mem_{name}_backward", preamble=_WIDE)


def of_three(formula: str, name: str) -> Any:
    """z = formula of x, a, b and a number ``value``, in W, the wide type of z; where they share memory, element by element."""
    code = f"typedef typename Wide<Z>::type W; z = Z({formula});"
    return _cupy.ElementwiseKernel("X x, A a, B b, float64 value", "Z z", code, f"tinygrad_mem_{name}", preamble=_WIDE)
