"""The plain NumPy formula of a kernel, written above the kernel: first what is computed, then how it is computed fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def formula(plain: Callable[..., Any] | None, why_none: str = "", traced: bool = False) -> Callable[[Kernel], Kernel]:
    """Keep ``plain`` as the attribute ``formula`` of a kernel. A call of the kernel costs nothing more.

    ``tests/ops/test_formulas.py`` compares the two wherever an op calls the kernel, on every device.

    Args:
        plain: takes some of the kernel's arguments, by their names, with floats as float64. Returns the array that the kernel
            writes into ``out``, or a dict of all that it writes: the buffers' names, and arrays.
        why_none: the reason why a kernel has no formula: it draws random numbers, say.
        traced: whether the GPU's kernel is generated from it: see ``kernels/cupy/computed.py``.
    """
    assert plain is not None or why_none

    def keep(kernel: Kernel) -> Kernel:
        kernel.formula = plain  # pyright: ignore[reportFunctionMemberAccess]
        if traced:
            kernel.traced = "elements"  # pyright: ignore[reportFunctionMemberAccess]
        return kernel

    return keep
