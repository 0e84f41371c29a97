"""The options of ``fully_shard`` that are classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import dtypes
from ...errors import DTypeError


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a unit. The optimizer sees the parameters in their own dtype, such as float32, which are the masters.

    It takes the place of ``autocast``, under which the casts of weights stay whole on each rank until backward has used them.

    Attributes:
        param_dtype: of the gathered parameters, and so of the forward and backward; by default their own.
        reduce_dtype: in which gradients are added up; by default that of the gradients. It also holds in accumulation
            (``set_requires_gradient_sync``).
        output_dtype: to which the module's floating outputs are cast.
        cast_forward_inputs: cast floating inputs to ``param_dtype``.

    Raises:
        DTypeError: a dtype is not floating.
    """

    param_dtype: np.dtype | None = None
    reduce_dtype: np.dtype | None = None
    output_dtype: np.dtype | None = None
    cast_forward_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "output_dtype"):
            found = getattr(self, name)
            if found is not None and not dtypes.is_floating(dtypes.as_dtype(found)):
                raise DTypeError(f"MixedPrecisionPolicy: {name} must be a floating dtype, found {found}")


@dataclass(frozen=True)
class OffloadPolicy:
    """No offload: the shards are on the device that computes."""


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters, gradients and optimizer state are on the host; the optimizer's step runs on the cpu.

    ``parameter.device`` is the host, ``device("cuda").host(pinned=True)``: a :class:`~tinygrad_mem.memory.Track` of it tells
    its bytes. On ``cpu`` and ``meta`` the host is a second pool beside the first: the bytes can be counted, but the machine
    saves nothing.

    Attributes:
        pin_memory: use pinned memory, which the GPU reads and writes directly.
    """

    pin_memory: bool = True
