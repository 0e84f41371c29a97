"""``accumulate_in``: sums of half-precision numbers in half precision, for lessons."""

from __future__ import annotations

from typing import Any

from ..dtypes import arithmetic, as_dtype, float32, is_half
from ..errors import ArgumentError
from ..scope import setting


class accumulate_in(setting):
    """``with accumulate_in(float16):`` computes sums of float16 in float16. It shows that such sums stop growing too early.

    It applies in this thread to ``sum``, ``mean``, matrix products (``matmul``, ``linear``, ``addmm``) and convolutions,
    forward and backward, of float16 tensors. A sum of ones stops at 2,048 (in bfloat16 at 256). On ``cpu`` terms are added one
    after another, which is slow; on ``cuda`` products use cuBLAS's 16-bit accumulator. ``accumulate_in(float32)`` restores
    normal sums inside. It needs no memory.

    Raises:
        ArgumentError: the dtype is neither float16, bfloat16 nor float32.
    """

    def __init__(self, dtype: Any) -> None:
        found = as_dtype(dtype)
        if arithmetic(found) != float32:
            raise ArgumentError(f"accumulate_in: expected float16, bfloat16 or float32, found {dtype}")
        super().__init__(narrow_sums=found if is_half(found) else None)
