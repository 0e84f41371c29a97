"""Kernels for whole formulas of arrays and numbers: elementwise, or with a reduction."""

from __future__ import annotations

import re
from typing import Any

import cupy
import numpy as np

WIDE = """
template <typename T> struct Wide { typedef T type; };
template <> struct Wide<float16> { typedef float type; };
"""
"""``Wide<T>::type`` is the type in which a kernel computes: float for float16, else T itself."""
LOG_ADD = """
template <typename W> __device__ W log_add(W a, W b) {
    W high = a > b ? a : b, low = a > b ? b : a;
    if (a != a || b != b) return a + b;
    return isinf(high) ? high : high + log1p(exp(low - high));
}
"""
"""``log_add(a, b)``: ln(e**a + e**b)."""

_LETTER = re.compile(r"(raw )?([A-Z]) (\w+)")
_C_NAMES = {"bool": "bool", "int64": "long long", "float64": "double"}


class Fused:
    """As ``cupy.ElementwiseKernel``, except for inputs whose type is a letter, as in ``X x``.

    The formula reads a float16 as float, so nothing is rounded between its steps. The input may also be a number. CuPy infers
    the type of a letter from arrays, and raises ``KeyError`` if there is none; here it is the number's own type then: bool,
    int64 or float64. As in PyTorch, no number is rounded to the dtype of an array before it is used.
    """

    def __init__(self, inputs: str, outputs: str, body: str, name: str, preamble: str = "") -> None:
        letters = [(raw, letter, variable) for raw, letter, variable in _LETTER.findall(inputs) if not raw]
        read = [f"const typename Wide<{letter}>::type {variable}({variable}_);\n" for _, letter, variable in letters]
        inputs = _LETTER.sub(lambda found: found[0] if found[1] else f"{found[2]} {found[3]}_", inputs)
        self._source = inputs, outputs, "".join(read) + body, name, WIDE + preamble
        self._places = _places(inputs, outputs)
        self._wide = [i for i, declared in enumerate(inputs.split(",")) if declared.strip().startswith("float64 ")]
        self._kernels: dict[tuple, Any] = {}

    def __call__(self, *arguments: Any, size: int | None = None) -> None:
        if any(isinstance(x, int) and not -(1 << 63) <= x < 1 << 63 for x in arguments):
            arguments = self._as_floats(arguments)
        numbers = ()
        for letter, places in self._places:
            if not any(isinstance(arguments[i], cupy.ndarray) for i in places):
                numbers += ((letter, _dtype_of(arguments[places[0]])),)
        kernel = self._kernels.get(numbers)
        if kernel is None:
            kernel = self._kernels[numbers] = self._compile(numbers)
        kernel(*arguments) if size is None else kernel(*arguments, size=size)

    def _as_floats(self, arguments: tuple) -> tuple:
        """Integers beyond int64 as floats, if the kernel takes floats; otherwise CuPy refuses them."""
        numbers = {i for _, places in self._places for i in places}.union(self._wide)
        return tuple(float(x) if i in numbers and isinstance(x, int) else x for i, x in enumerate(arguments))

    def _compile(self, numbers: tuple) -> Any:
        """The kernel compiled for these dtypes of the letters."""
        inputs, outputs, body, name, preamble = self._source
        for letter, dtype in numbers:
            inputs = re.sub(rf"\b{letter} ", f"{dtype} ", inputs)
            body = f"typedef {_C_NAMES[dtype]} {letter};\n{body}"
        return cupy.ElementwiseKernel(inputs, outputs, body, name, preamble=preamble)  # pyright: ignore


class Reduction:
    """As ``cupy.ReductionKernel``, but never with CUB.

    If CuPy finds nvcc, it reduces a single array with CUB, which adds in another order. For a sum of everything CUB also
    allocates 32 bytes for every 2,048 elements, without the op's knowledge. Reductions of two inputs do not use CUB and need no
    memory. So a single array gets a second input, a number that the formula does not read.
    """

    def __init__(self, inputs: str, *rest: Any, **options: Any) -> None:
        alone = "," not in inputs
        self._beside = (False,) if alone else ()
        self._kernel = cupy.ReductionKernel(inputs + ", bool beside" * alone, *rest, **options)  # pyright: ignore

    def __call__(self, *inputs: Any, out: Any, axis: Any = None, keepdims: bool = False) -> None:
        self._kernel(*inputs, *self._beside, out=out, axis=axis, keepdims=keepdims)


def _places(inputs: str, outputs: str) -> list[tuple[str, list[int]]]:
    """The letters that only inputs have, each with the positions of those inputs among the arguments. A raw argument or an
    output is always an array.
    """
    places: dict[str, list[int]] = {}
    for i, declared in enumerate(inputs.split(",")):
        if found := _LETTER.fullmatch(declared.strip()):
            places.setdefault(found[2], []).append(i)
    known = {letter for _, letter, _ in _LETTER.findall(outputs)} | set(re.findall(r"raw ([A-Z]) ", inputs))
    return [(letter, where) for letter, where in places.items() if letter not in known]


def _dtype_of(number: Any) -> str:
    if isinstance(number, (bool, np.bool_)):
        return "bool"
    return "int64" if isinstance(number, (int, np.integer)) else "float64"
