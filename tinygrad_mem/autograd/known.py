"""Values that a dry run knows: numbers that the program gave, and results of ops on a few of them.

A dry run computes nothing on tensors. But programs branch on small tensors that they made themselves (positions of tokens,
widths of layers). If all inputs of an op are such known values, its result is computed on the host and stored with the tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import scope
from ..dtypes import FLOATING
from ..errors import DataDependenceError
from ..kernels import numpy as kernels
from ..ops.base import Context, Op, address_of
from ..scope import local
from .tensor import Tensor
from .unknown import Unknown

REMEMBERED = 4096
"""The most elements of a tensor whose values a dry run knows."""


class _Beside:
    """The host as a device without a pool or random numbers."""

    xp = np
    kernels = kernels
    empty = staticmethod(np.empty)

    @staticmethod
    def workspace(size: int) -> Any:
        return np.empty(size, np.uint8) if size else None


def remember(values: np.ndarray, out: Tensor) -> None:
    """Store the values of a tensor of a dry run."""
    if local.dry is out.device and values.size <= REMEMBERED:
        out.storage.constant = (out.storage.version, address_of(out.array), values.tobytes())


def _follow(op: type[Op], inputs: tuple, params: dict[str, Any], outputs: Any) -> None:
    """Store the values of ``outputs`` if all inputs of ``op`` are small and known.

    In a prediction of a GPU only integers are computed: a GPU may round other results differently.
    """
    made = outputs if type(outputs) is tuple else (outputs,)
    if op.view or any(t.array.size > REMEMBERED or not t.array.flags.c_contiguous for t in made):
        return
    arrays = [_values(x) for x in inputs]
    if not any(isinstance(x, Tensor) for x in inputs) or any(a is Unknown for a in (*arrays, *map(_values, params.values()))):
        return
    involved = [a for a in (*arrays, *[t.array for t in made]) if isinstance(a, np.ndarray)]
    if local.dry.like != "cpu" and any(a.dtype.kind in FLOATING for a in involved):
        return
    if any(np.may_share_memory(t.array, x.array) for t in made for x in inputs if isinstance(x, Tensor)):
        return
    try:
        device: Any = _Beside()
        found = local.run_uncounted(op.forward, Context(device, (False,) * len(inputs)), *arrays, **params)
    except (AttributeError, ValueError, IndexError, RuntimeError, TypeError, ArithmeticError, DataDependenceError):
        return  # the op needs a real device, or the run will refuse the numbers
    for tensor, values in zip(made, found if type(found) is tuple else (found,), strict=True):
        remember(values, tensor)


def _values(x: Any) -> Any:
    """The values of a known tensor; a number itself; the class ``Unknown`` for all else."""
    if isinstance(x, Tensor):
        known = x._constant() if x.array.size <= REMEMBERED else None
        return Unknown if known is None else known
    if isinstance(x, (tuple, list)):
        return Unknown if any(_values(part) is Unknown for part in x) else x
    return Unknown if isinstance(x, (Unknown, np.ndarray)) else x


scope.dry_run_hooks.append(_follow)
