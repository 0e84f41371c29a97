"""Numbers that a dry run knows: those that the program gave, and what ops make of a few of them.

Nothing is computed in a dry run. But programs decide by small numbers that they made themselves (the positions of tokens, the
widths of layers): what an op makes of such numbers alone is computed beside the run, on the host, and noted with the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FLOATING
from ..errors import DataDependenceError
from ..kernels import numpy as kernels
from ..ops.base import Context, Op
from ..scope import local
from .shape import address_of
from .tensor import Tensor
from .unknown import Unknown

REMEMBERED = 4096
"""Elements: a dry run knows the values of a tensor up to this size."""


class _Beside:
    """The host, as a device whose memory nobody counts. It draws no random numbers."""

    xp = np
    kernels = kernels
    empty = staticmethod(np.empty)

    @staticmethod
    def workspace(size: int) -> Any:
        return np.empty(size, np.uint8) if size else None


def remember(values: np.ndarray, out: Tensor) -> None:
    """Note what a tensor of a dry run holds."""
    if local.dry is out.device and values.size <= REMEMBERED:
        out.storage.constant = (out.storage.version, address_of(out.array), values.tobytes())


def follow(op: type[Op], inputs: tuple, params: dict[str, Any], outputs: Any) -> None:
    """Note the values of ``outputs``, if ``op`` made them of few known numbers only.

    Where a GPU is predicted, whole numbers alone are followed: its last digits of others may be other ones.
    """
    made = outputs if type(outputs) is tuple else (outputs,)
    if op.view or any(t.array.size > REMEMBERED or not t.array.flags.c_contiguous for t in made):
        return
    arrays = [_values(x) for x in inputs]
    if not any(isinstance(x, Tensor) for x in inputs) or any(a is Unknown for a in (*arrays, *map(_values, params.values()))):
        return
    if local.dry.like != "cpu" and any(a.dtype.kind in FLOATING for a in [*arrays, *[t.array for t in made]] if _is(a)):
        return
    if any(np.may_share_memory(t.array, x.array) for t in made for x in inputs if isinstance(x, Tensor)):
        return
    try:
        device: Any = _Beside()
        found = local.unheard(op.forward, Context(device, (False,) * len(inputs)), *arrays, **params)
    except (AttributeError, ValueError, IndexError, RuntimeError, TypeError, ArithmeticError, DataDependenceError):
        return  # a device that draws or waits, or numbers that the run will refuse
    for tensor, values in zip(made, found if type(found) is tuple else (found,), strict=True):
        remember(values, tensor)


def _is(a: Any) -> bool:
    return isinstance(a, np.ndarray)


def _values(x: Any) -> Any:
    """The values of a known tensor, a number itself; the class ``Unknown`` for what is not known, or holds such."""
    if isinstance(x, Tensor):
        known = x._constant() if x.array.size <= REMEMBERED else None
        return Unknown if known is None else known
    if isinstance(x, (tuple, list)):
        return Unknown if any(_values(part) is Unknown for part in x) else x
    return Unknown if type(x) is Unknown or _is(x) else x
