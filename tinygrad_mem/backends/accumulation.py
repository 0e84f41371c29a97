"""A switch for teaching: sums of halves that are kept as halves."""

from __future__ import annotations

from typing import Any

from ..dtypes import arithmetic, as_dtype, float32, is_half
from ..errors import ArgumentError
from ..interrupts import covered
from ..scope import local


class accumulate_in:
    """``with accumulate_in(float16):`` sums of float16 are kept in float16, so that one sees why they are not: they stall.

    It holds in this thread for ``sum``, ``mean``, matrix products (``matmul``, ``linear``, ``addmm``) and convolutions, forward
    and backward, of float16 tensors; a sum of ones ends at 2,048 (of bfloat16, in bfloat16, at 256). On ``cpu`` one term after
    the other is added, which is slow; on ``cuda`` products use cuBLAS's 16-bit accumulator. ``accumulate_in(float32)`` inside
    is as usual. No memory is taken.

    Raises:
        ArgumentError: the dtype is neither float16, bfloat16 nor float32.
    """

    def __init__(self, dtype: Any) -> None:
        found = as_dtype(dtype)
        if arithmetic(found) != float32:
            raise ArgumentError(f"accumulate_in: sums of halves are made in float16, bfloat16 or float32, found {dtype}")
        self.narrow = found if is_half(found) else None

    def __enter__(self) -> None:
        self.before, local.narrow_sums = local.narrow_sums, self.narrow

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            del exc
        finally:
            local.narrow_sums = self.before
