"""Operands that CuPy's ufuncs read without copying them first."""

from __future__ import annotations

from typing import Any

import cupy as _cupy


def _endless(x: Any) -> bool:
    return type(x) is int and not -(1 << 63) <= x < 1 << 63


def apart(x: Any, out: Any) -> Any:
    """``x``, as an operand of a ufunc that writes ``out``: CuPy copies an array in the memory of ``out`` that is not ``out``.

    A whole number that int64 does not hold CuPy does not take: it is given as a float, unless integers are to come of it.

    It looks at the block, and at the first and last byte. Here an element is read only where it is written, or lies beside
    what is written (what overlaps otherwise is refused before): so the view is shown as one of another block.
    """
    if _endless(x) and out.dtype.kind not in "iu":
        return float(x)
    if x is out or not isinstance(x, _cupy.ndarray) or x.data.mem.ptr != out.data.mem.ptr:
        return x
    block = _cupy.cuda.UnownedMemory(x.data.mem.ptr - 1, x.data.mem.size + 1, x, x.data.device_id)
    place = _cupy.cuda.MemoryPointer(block, x.data.ptr - x.data.mem.ptr + 1)
    return _cupy.ndarray(x.shape, x.dtype, place, x.strides)
