"""Adam and SGD whose moments are bytes: block-wise 8-bit optimizers."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..dtypes import arithmetic
from ..errors import NotOfferedError
from .adam import Adam, decay_of
from .optimizer import Optimizer, options, tick
from .sgd import SGD, check_sgd
from .state import StateArray, check_rates

BLOCK = 2048
"""Numbers that share a scale: the paper's. bitsandbytes has 256 today; 64 to 16,384 are taken."""


class _Bytes(Optimizer):
    """The base of the 8-bit optimizers: which parameters have their moments in bytes, and what these take."""

    moments: tuple[str, ...] = ()  # of the rule in 32 bits, in the order of state1 and state2

    def in_bytes(self, group: dict[str, Any], p: Tensor) -> bool:
        """Whether the moments of ``p`` are kept in bytes: not those of small parameters, nor where the group has 32 bits."""
        return group["optim_bits"] == 8 and p.array.size >= group["min_8bit_size"]

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        packed = [name for i in range(len(self.moments)) for name in (f"state{i + 1}", f"absmax{i + 1}")]
        return (*packed, *self.moments)  # of a parameter either the first or the last

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        if not self.in_bytes(group, p):
            return {name: StateArray(p.array.shape, arithmetic(p.dtype)) for name in self.moments}
        blocks = -(-p.array.size // group["block_size"])
        kept = {}
        for i in range(1, len(self.moments) + 1):
            kept[f"state{i}"] = StateArray(p.array.shape, np.dtype(np.uint8))
            kept[f"absmax{i}"] = StateArray((blocks,), np.dtype(np.float32))
        return kept


def _check(optim_bits: int, min_8bit_size: int, block_size: int) -> None:
    if optim_bits not in (8, 32):
        raise ValueError(f"optim_bits should be 8 or 32, found {optim_bits!r}")
    if not (isinstance(min_8bit_size, int) and min_8bit_size >= 0):
        raise ValueError(f"min_8bit_size should be a number of elements, found {min_8bit_size!r}")
    if not (isinstance(block_size, int) and 64 <= block_size <= 1 << 14):
        raise ValueError(f"block_size should be between 64 and 16384, found {block_size!r}")


class Adam8bit(_Bytes, Adam):
    """Adam whose moments are a byte a number: block by block, the nearest of 256 numbers times the block's largest size.

    The numbers are unpacked, updated in float32 and packed again in tiles. ``exp_avg`` is ``state1`` (a byte a number) and
    ``absmax1`` (a float32 a block), ``exp_avg_sq`` is ``state2`` and ``absmax2``: bitsandbytes' names.

    Memory: ``2 * n + 8 * ceil(n / block_size)`` bytes for n parameters, whatever their dtype: 2.004 each, where Adam has 8.
    Parameters below ``min_8bit_size`` elements (biases, norms) have float32 moments, as :class:`Adam`.

    Price: each step unpacks and packs the moments. Each is stored to 8 bits, so the updates are noisier than Adam's.

    Do not use when: most parameters are embeddings, unless they have a group of their own (next paragraph).

    The stable-embedding rule: rows of an embedding see gradients now and then, of very different sizes, and 8 bits hurt
    there. Give its weight a group of its own with ``"optim_bits": 32``, and put a layer norm behind it.

    Args:
        params: parameters or groups.
        lr, betas, eps, weight_decay, maximize: as :class:`Adam`.
        optim_bits: 8, or 32 for float32 moments (a group's option).
        min_8bit_size: parameters with fewer elements have float32 moments.
        block_size: numbers that share a scale, 64 to 16384; 2048 is the paper's, 256 bitsandbytes'.
        amsgrad: not offered.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

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
        betas: tuple[float, float] = (0.9, 0.999),
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
        _check(optim_bits, min_8bit_size, block_size)
        Optimizer.__init__(self, params, options(locals()))

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        if "state1" not in state:
            super().update(kernels, group, p, g, state, first)
            return
        t = tick(state)
        beta1, beta2 = group["betas"]
        decay, shrink = decay_of(group)
        packed = [state[name].array for name in ("state1", "absmax1", "state2", "absmax2")]
        kernels.adam8bit_step(
            p,
            g,
            *packed,
            group["block_size"],
            float(group["lr"]) / (1 - beta1**t),
            beta1,
            beta2,
            group["eps"],
            sqrt(1 - beta2**t),
            decay,
            shrink,
            group["maximize"],
        )


class AdamW8bit(Adam8bit):
    """:class:`Adam8bit` whose weight decay shrinks the parameter directly, past the moments.

    Memory: as :class:`Adam8bit`. Price: as :class:`Adam8bit`. Do not use when: as :class:`Adam8bit`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
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


class SGD8bit(_Bytes, SGD):
    """SGD with momentum whose momentum is a byte a number, as in :class:`Adam8bit` (``state1``, ``absmax1``).

    Memory: ``n + 4 * ceil(n / block_size)`` bytes for n parameters: 1.002 each, where SGD with momentum has 4.

    Price: each step unpacks and packs the momentum, which is stored to 8 bits.

    Do not use when: there is no momentum: plain SGD keeps nothing. For embeddings see :class:`Adam8bit`.

    Args:
        params: parameters or groups.
        lr, momentum, dampening, weight_decay, nesterov, maximize: as :class:`SGD`; without momentum there is nothing to keep.
        optim_bits, min_8bit_size, block_size, master_weights: as :class:`Adam8bit`.

    Raises:
        ValueError: an option outside of its range, or no momentum.
    """

    half_state = False
    moments = ("momentum_buffer",)

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
        _check(optim_bits, min_8bit_size, block_size)
        Optimizer.__init__(self, params, options(locals()))

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        if "state1" not in state:
            super().update(kernels, group, p, g, state, first)
            return
        kernels.sgd8bit_step(
            p,
            g,
            state["state1"].array,
            state["absmax1"].array,
            group["block_size"],
            float(group["lr"]),
            group["momentum"],
            0 if first else group["dampening"],  # the first gradient enters whole
            group["weight_decay"],
            group["nesterov"],
            group["maximize"],
        )
