"""CuPy's ufuncs as kernels: operands in a form that they do not copy."""

from __future__ import annotations

from typing import Any

import cupy


def _endless(x: Any) -> bool:
    return type(x) is int and not -(1 << 63) <= x < 1 << 63


def apart(x: Any, out: Any) -> Any:
    """``x`` as an operand of a ufunc that writes ``out``.

    CuPy copies an operand that shares memory with ``out`` and is not ``out``, by comparing blocks and first and last bytes.
    Here each element is read at the place where it is written, or does not overlap ``out`` (other overlaps were refused
    before). So the operand is given as a view of another block, which CuPy does not copy.

    CuPy does not accept an integer beyond int64: it becomes a float, unless the result is an integer.
    """
    if _endless(x) and out.dtype.kind not in "iu":
        return float(x)
    if x is out or not isinstance(x, cupy.ndarray) or x.data.mem.ptr != out.data.mem.ptr:
        return x
    block = cupy.cuda.UnownedMemory(x.data.mem.ptr - 1, x.data.mem.size + 1, x, x.data.device_id)
    place = cupy.cuda.MemoryPointer(block, x.data.ptr - x.data.mem.ptr + 1)
    return cupy.ndarray(x.shape, x.dtype, place, x.strides)


def ufunc(function: Any, wide: bool = False) -> Any:
    """The kernel out = ``function`` of its operands. ``wide``: float16 and a number are computed in float32: the number is not
    rounded to float16 first.
    """

    def kernel(*given: Any, out: Any = None) -> None:
        *read, out = given if out is None else (*given, out)
        operands = [apart(x, out) for x in read]
        as_float = wide and out.dtype.char == "e" and any(isinstance(x, (float, int)) for x in operands)
        function(*operands, out=out, casting="unsafe", **({"dtype": "f"} if as_float else {}))

    return kernel
