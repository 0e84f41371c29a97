"""Adam with moments of half a byte per number."""

from __future__ import annotations

from typing import Any

from ..devices import device as Device
from .eight_bit import Adam8bit, check_bits
from .optimizer import Optimizer
from .state import check_rates, options

__all__ = ("Adam4bit", "AdamW4bit")


class Adam4bit(Adam8bit):
    """Adam with moments of 4 bits per number: indexes into 16 values, which are scaled by the largest number of each block.

    The values of the first moment are those of a dynamic exponent with a sign, from 0.0055 to 1, and 0. Those of the second
    are 1/16, 2/16, ... 1: without 0, because a root of 0 would make a step as long as ``1 / eps``. Both moments are scaled by
    blocks: of the paper's choices these are "B128/DE" and "B128/Linear", and not its rank-1 normalization. ``state1`` and
    ``state2`` have two numbers in each byte, ``absmax1`` and ``absmax2`` one float32 per block.

    Memory: ``2 * ceil(n / 2) + 8 * ceil(n / block_size)`` bytes for n parameters, whatever their dtype: 1.0625 each, and 8 with
    Adam. Parameters of fewer than ``min_4bit_size`` elements have float32 moments, as in :class:`Adam`.

    Price: each step unpacks and packs the moments. The updates are noisier than those of :class:`Adam8bit`.

    Do not use when: as :class:`Adam8bit`; its rule for embeddings holds here too, with ``"optim_bits": 32``.

    Args:
        params: parameters or groups.
        lr, betas, eps, weight_decay, maximize: as :class:`Adam`.
        optim_bits: 4, or 32 for float32 moments (a group's option).
        min_4bit_size: parameters with fewer elements have float32 moments.
        block_size: how many numbers share a scale, 64 to 16384, even.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

    Raises:
        ValueError: an option outside of its range.

    Source: Li, Chen and Zhu, *Memory efficient optimizers with 4-bit states*, 2023.
    """

    bits = 4

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
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

    def kernel(self, device: Device) -> Any:
        return device.kernels.adam4bit_step


class AdamW4bit(Adam4bit):
    """:class:`Adam4bit` whose weight decay shrinks the parameter directly, past the moments.

    Memory: as :class:`Adam4bit`. Price: as :class:`Adam4bit`. Do not use when: as :class:`Adam4bit`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
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
