"""Adam with moments of half a byte per number."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..devices import device as Device
from .eight_bit import Adam8bit, check_bits
from .optimizer import Optimizer
from .state import Betas, StateArray, check_rates, options

__all__ = ("Adam4bit", "AdamW4bit")


class Adam4bit(Adam8bit):
    """Adam with moments of 4 bits per number: indexes into 16 values, which are scaled by the largest numbers nearby.

    The values of the first moment are those of a dynamic exponent with a sign, from 0.0055 to 1, and 0. Those of the second
    are 1/16, 2/16, ... 1: without 0, because a root of 0 would make a step as long as ``1 / eps``.

    The first moment is scaled by the largest number of each block of ``block_size`` (the paper's "B128/DE"). The second is
    scaled by rank-1 normalization ("Rank-1/Linear"): a number of a matrix by the largest of its row or the largest of its
    column, whichever is smaller. So an outlier spoils nothing beside it. With more axes there is a largest number of each slice
    along each axis. A vector, for which that would be one scale, has blocks here too, as in the paper.

    ``state1`` and ``state2`` have two numbers in each byte, ``absmax1`` one float32 per block, and ``absmax2`` those of the
    rows, then of the columns.

    Memory: ``2 * ceil(n * m / 2) + 4 * ceil(n * m / block_size) + 4 * (n + m)`` bytes for a matrix of n rows and m columns,
    whatever its dtype: 1.033 a number of a 4096 x 4096 matrix, and 8 with Adam. A vector of n numbers takes
    ``2 * ceil(n / 2) + 8 * ceil(n / block_size)``. Parameters of fewer than ``min_4bit_size`` elements have float32 moments, as
    in :class:`Adam`. A step takes a workspace of ``4 * (n + m)`` bytes, of the largest matrix.

    Price: each step unpacks and packs the moments, and goes over a matrix twice: first for the scales. The updates are noisier
    than those of :class:`Adam8bit`.

    Do not use when: as :class:`Adam8bit`; its rule for embeddings holds here too, with ``"optim_bits": 32``. Nor when
    parameters are divided over ranks, of which none sees a whole column: that is refused.

    Args:
        lr, betas, eps, weight_decay, maximize: as :class:`Adam`.
        optim_bits: 4, or 32 for float32 moments (a group's option).
        min_4bit_size: parameters with fewer elements have float32 moments.
        block_size: how many numbers share a scale, 64 to 16384, even.

    Raises:
        ValueError: an option outside of its range.

    Source: Li, Chen and Zhu, *Memory efficient optimizers with 4-bit states*, 2023, sections 4.1 and 4.2.
    """

    bits = 4
    needs_whole = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        optim_bits: int = 4,
        *,
        min_4bit_size: int = 4096,
        block_size: int = 128,
        maximize: bool = False,
        master_weights: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        check_bits(4, optim_bits, min_4bit_size, block_size)
        Optimizer.__init__(self, params, options(locals()) | {"amsgrad": False})

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        kept = super().kept(group, p)
        if "absmax2" in kept and p.array.ndim > 1:
            kept["absmax2"] = StateArray((sum(p.array.shape),), np.dtype(np.float32))
        return kept

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        return 4 * sum(p.array.shape) if self.in_bytes(group, p) and p.array.ndim > 1 else 0

    def update_packed(self, device: Device, p: Any, g: Any, *states_and_rates: Any) -> None:
        if p.ndim > 1:
            device.kernels.adam4bit_rank1_step(p, g, self.work, *states_and_rates)
        else:
            device.kernels.adam4bit_step(p, g, *states_and_rates)


class AdamW4bit(Adam4bit):
    """:class:`Adam4bit` whose weight decay shrinks the parameter directly, past the moments.

    Memory: as :class:`Adam4bit`. Price: as :class:`Adam4bit`. Do not use when: as :class:`Adam4bit`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        optim_bits: int = 4,
        *,
        min_4bit_size: int = 4096,
        block_size: int = 128,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        super().__init__(params, **options(locals()), decoupled_weight_decay=True)
