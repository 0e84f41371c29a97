"""Adam and SGD with moments of one byte per number: block-wise 8-bit optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import NotOfferedError, is_whole
from .adam import Adam, adam_rates
from .optimizer import Optimizer
from .sgd import SGD, check_sgd, rates_of
from .state import Betas, StateArray, check_rates, options, tick

__all__ = ("Adam8bit", "AdamW8bit", "SGD8bit")

BLOCK = 2048
"""How many numbers share a scale: the paper's number. bitsandbytes has 256 today; 64 to 16,384 are accepted."""


class InBytes(Optimizer):
    """The base of optimizers with moments of few bits: which parameters have such moments, and the arrays of these."""

    bits = 8
    moments: tuple[str, ...] = ()  # their names in 32 bits, in the order of state1 and state2

    def in_bytes(self, group: dict[str, Any], p: Tensor) -> bool:
        """True if ``p`` has moments of few bits: it is not small, and its group does not ask for 32 bits."""
        return group["optim_bits"] == self.bits and p.array.size >= group[f"min_{self.bits}bit_size"]

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        packed = [name for i in range(len(self.moments)) for name in (f"state{i + 1}", f"absmax{i + 1}")]
        return (*packed, *self.moments)  # a parameter has either the packed arrays or the moments

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        if not self.in_bytes(group, p):
            return {name: StateArray(p.array.shape, arithmetic(p.dtype)) for name in self.moments}
        blocks = -(-p.array.size // group["block_size"])
        codes = p.array.shape if self.bits == 8 else (-(-p.array.size // 2),)
        kept = {}
        for i in range(1, len(self.moments) + 1):
            kept[f"state{i}"] = StateArray(codes, np.dtype(np.uint8))
            kept[f"absmax{i}"] = StateArray((blocks,), np.dtype(np.float32))
        return kept


def check_bits(bits: int, optim_bits: int, min_size: int, block_size: int) -> None:
    """Refuse options outside of their range, for an optimizer whose moments have ``bits`` bits."""
    if optim_bits not in (bits, 32):
        raise ValueError(f"optim_bits should be {bits} or 32, found {optim_bits!r}")
    if not is_whole(min_size, 0):
        raise ValueError(f"min_{bits}bit_size should be a number of elements, found {min_size!r}")
    if not is_whole(block_size, 64) or block_size > 1 << 14 or block_size * bits % 8:
        even = ", and even" if bits == 4 else ""
        raise ValueError(f"block_size should be between 64 and 16384{even}, found {block_size!r}")


class Adam8bit(InBytes, Adam):
    """Adam with moments of one byte per number: an index into 256 values, which are scaled by the largest number of each block.

    A step unpacks the moments tile by tile, updates them in float32 and packs them again. ``exp_avg`` is kept as ``state1``
    (one byte per number) and ``absmax1`` (one float32 per block), ``exp_avg_sq`` as ``state2`` and ``absmax2``: bitsandbytes'
    names.

    Memory: ``2 * n + 8 * ceil(n / block_size)`` bytes for n parameters, whatever their dtype: 2.004 each, and 8 with Adam.
    Parameters of fewer than ``min_8bit_size`` elements (biases, norms) have float32 moments, as in :class:`Adam`.

    Price: each step unpacks and packs the moments. The updates are noisier than Adam's, because each moment has 8 bits.

    Do not use when: most parameters are embeddings, unless they have a group of their own (next paragraph).

    The stable-embedding rule: rows of an embedding get gradients only now and then, and of very different sizes. 8 bits are too
    few for that. Put its weight into a group of its own with ``"optim_bits": 32``, and put a layer norm behind the embedding.

    Args:
        lr, betas, eps, weight_decay, maximize: as :class:`Adam`.
        optim_bits: 8, or 32 for float32 moments (a group's option).
        min_8bit_size: parameters with fewer elements have float32 moments.
        block_size: how many numbers share a scale, 64 to 16384; the paper has 2048, bitsandbytes 256.
        amsgrad: not offered.

    Raises:
        ValueError: an option outside of its range.

    Source: Dettmers, Lewis, Shleifer and Zettlemoyer, *8-bit optimizers via block-wise quantization*, 2022.
    """

    half_state = False
    moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        optim_bits: int = 8,
        *,
        min_8bit_size: int = 4096,
        block_size: int = BLOCK,
        maximize: bool = False,
        master_weights: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if amsgrad:
            raise NotOfferedError("amsgrad=True is not offered in 8 bits: use Adam")
        check_rates(lr, eps, weight_decay, betas)
        check_bits(8, optim_bits, min_8bit_size, block_size)
        Optimizer.__init__(self, params, options(locals()))

    def update_packed(self, device: Device, p: Any, g: Any, *states_and_rates: Any) -> None:
        """The rule of packed moments."""
        device.kernels.adam8bit_step(p, g, *states_and_rates)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        if "state1" not in state:
            super().update(device, group, p, g, state, first)
            return
        packed = [state[name].array for name in ("state1", "absmax1", "state2", "absmax2")]
        self.update_packed(device, p, g, *packed, group["block_size"], *adam_rates(group, tick(state)))


class AdamW8bit(Adam8bit):
    """:class:`Adam8bit` whose weight decay shrinks the parameter directly, past the moments.

    Memory: as :class:`Adam8bit`. Price: as :class:`Adam8bit`. Do not use when: as :class:`Adam8bit`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        optim_bits: int = 8,
        *,
        min_8bit_size: int = 4096,
        block_size: int = BLOCK,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        super().__init__(params, **options(locals()), decoupled_weight_decay=True)


class SGD8bit(InBytes, SGD):
    """SGD with a momentum of one byte per number, as in :class:`Adam8bit` (``state1``, ``absmax1``).

    Memory: ``n + 4 * ceil(n / block_size)`` bytes for n parameters: 1.002 each, and 4 with SGD.

    Price: each step unpacks and packs the momentum, which is stored to 8 bits.

    Do not use when: there is no momentum: plain SGD keeps nothing. For embeddings see :class:`Adam8bit`.

    Args:
        lr, momentum, dampening, weight_decay, nesterov, maximize: as :class:`SGD`; without momentum there is nothing to keep.
        optim_bits, min_8bit_size, block_size, master_weights: as :class:`Adam8bit`.

    Raises:
        ValueError: an option outside of its range, or no momentum.

    Source: as :class:`Adam8bit`.
    """

    half_state = False
    moments = ("momentum_buffer",)

    def refuse_rows(self, group: dict[str, Any]) -> str:
        return (
            "SGD8bit does not support sparse gradients: its momentum reaches all rows. Use SparseAdam, or SGD without momentum"
        )

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.9,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        optim_bits: int = 8,
        *,
        min_8bit_size: int = 4096,
        block_size: int = BLOCK,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_sgd(lr, momentum, dampening, weight_decay, nesterov)
        if momentum == 0:
            raise ValueError("SGD8bit keeps its momentum in 8 bits: without momentum use SGD")
        check_bits(8, optim_bits, min_8bit_size, block_size)
        Optimizer.__init__(self, params, options(locals()))

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        if "state1" not in state:
            super().update(device, group, p, g, state, first)
            return
        packed = state["state1"].array, state["absmax1"].array
        device.kernels.sgd8bit_step(p, g, *packed, group["block_size"], *rates_of(group, first))
