"""``accumulate_in``: products of half-precision matrices, added up in half precision, for lessons."""

from __future__ import annotations

from typing import Any

from ..dtypes import arithmetic, as_dtype, float32, is_half
from ..errors import ArgumentError
from ..scope import setting


class accumulate_in(setting):
    """``with accumulate_in(float16):`` adds up matrix products of float16 in float16. Such sums stop growing too early.

    It applies in this thread to ``matmul``, ``linear`` and ``addmm`` of float16 tensors, forward and backward. On ``cpu`` terms
    are added one after another, which is slow: a sum of ones stops at 2,048 (in bfloat16 at 256). ``cuda`` uses cuBLAS's 16-bit
    accumulator. It adds up in groups, so that a sum of ones goes on for longer. ``accumulate_in(float32)`` restores normal
    products inside. It needs no memory.

    Raises:
        ArgumentError: the dtype is neither float16, bfloat16 nor float32.
    """

    def __init__(self, dtype: Any) -> None:
        found = as_dtype(dtype)
        if arithmetic(found) != float32:
            raise ArgumentError(f"accumulate_in: expected float16, bfloat16 or float32, found {dtype}")
        super().__init__(narrow_products=found if is_half(found) else None)
