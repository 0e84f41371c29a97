"""Elementwise arithmetic on a GPU: CuPy's ufuncs where they exist, otherwise one fused kernel per function.

A ufunc of CuPy copies an operand that shares memory with ``out`` and is another object (see ``apart``). A fused kernel does
not.
"""

from __future__ import annotations

import cupy

from .apart import apart as _apart
from .fused import Fused


def _fused(inputs: str, formula: str, name: str) -> Fused:
    """A kernel z = formula of arrays and numbers; W is the wide type of the result."""
    return Fused(inputs, "Z z", f"typedef typename Wide<Z>::type W; z = Z({formula})", f"tinygrad_mem_{name}")


def copy(x, out):
    cupy.copyto(out, _apart(x, out), casting="unsafe")


def staging_workspace(x):
    """Bytes of workspace for a copy to or from the host: an array that is not contiguous needs a contiguous buffer."""
    return 0 if x.flags.c_contiguous else x.nbytes


def host_workspace(x):
    """Bytes of workspace for a host array, so that kernels can read it."""
    return x.nbytes


def fill(value, out):
    out.fill(value)


_erfinv = _fused("X x", "erfinv(W(x))", "erfinv")


def erfinv(x, out):
    _erfinv(x, out)


# undefined in C: a shift by more than the number of bits. Here all bits are shifted out, and the sign stays
_LEFT = "y < 0 || y >= 8 * sizeof(W) ? W(0) : W(x) << y"
_RIGHT = "y < 0 || y >= 8 * sizeof(W) ? W(x) < W(0) ? W(-1) : W(0) : W(x) >> y"
_left_shift, _right_shift = _fused("X x, Y y", _LEFT, "left_shift"), _fused("X x, Y y", _RIGHT, "right_shift")


def left_shift(x, y, out):
    """out = x << y."""
    _left_shift(x, y, out)


def right_shift(x, y, out):
    """out = x >> y."""
    _right_shift(x, y, out)


_where = _fused("bool c, X x, Y y", "c ? Z(x) : Z(y)", "where")
_masked_copy = Fused("X x, bool mask", "Z z", "if (mask) z = Z(x)", "tinygrad_mem_masked_copy")
_clamp = Fused(  # a nan in x or in a bound gives nan
    "X x, L low, H high, bool below, bool above",
    "Z z",
    "typedef typename Wide<Z>::type W; W v = W(x);\n"
    "if (below && v == v && !(v >= W(low))) v = W(low);\n"
    "if (above && v == v && !(v <= W(high))) v = W(high);\n"
    "z = Z(v)",
    "tinygrad_mem_clamp",
)


def where(condition, x, y, out):
    _where(condition, x, y, out)


def masked_copy(x, mask, out):
    _masked_copy(x, mask, out)


def masked_fill(value, mask, out):
    _masked_copy(value, mask, out)


def clamp(x, low, high, out):
    _clamp(x, 0 if low is None else low, 0 if high is None else high, low is not None, high is not None, out)
