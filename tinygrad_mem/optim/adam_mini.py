"""Adam-mini: Adam with one mean square for each block of a parameter."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError, is_whole
from .optimizer import Optimizer
from .state import Betas, StateArray, bytes_of, check_rates, cut, options, tick

__all__ = ("AdamMini",)


class AdamMini(Optimizer):
    """AdamW whose mean square is one number for each block of a parameter, that of the block's mean.

    A block is a row of a matrix: the weights of one output, or of one token of an embedding. A vector is one block. For queries
    and keys of attention the paper takes a head as a block: give their weights a group with ``"blocks"``, the number of heads.

    The rule for a block: ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * mean(g**2)``,
    ``p = (1 - lr * weight_decay) * p - lr * m' / (sqrt(v') + eps)``, with ``m' = m / (1 - beta1**t)`` and
    ``v' = v / (1 - beta2**t)``.

    Memory: 4 bytes a float32 parameter (``exp_avg``), 2 a half-precision one without ``master_weights``, and 4 for each block
    (``exp_avg_sq``): a 4096 x 4096 matrix needs 64.016 MiB; with Adam it needs 128. A step takes a workspace of 4 bytes for
    each block of the parameter with the most.

    Price: one more pass over each gradient.

    Do not use when: numbers within a row have gradients of very different sizes, as in a parameter that packs several together.

    Args:
        blocks: into how many blocks of rows each parameter is cut; ``None``: as said above. Usually a group's option.

    Raises:
        ValueError: a rate outside of its range; in a step: rows that cannot be divided into this number of blocks.

    Source: Zhang et al., *Adam-mini: use fewer learning rates to gain more*, 2024, algorithms 1 and 3.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        *,
        blocks: int | None = None,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        super().__init__(params, options(locals()))

    arrays = ("exp_avg", "exp_avg_sq")
    needs_whole = True

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        kept = super().kept(group, p)
        blocks, *rest = _in_blocks(p.array.shape, group["blocks"])
        kept["exp_avg_sq"] = StateArray((blocks, *[1] * len(rest)), arithmetic(p.dtype))
        return kept

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        return bytes_of(arithmetic(p.dtype), _in_blocks(p.array.shape, group["blocks"])[:1])

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t, lr = tick(state), float(group["lr"])
        if not p.size:
            return
        beta1, beta2 = group["betas"]
        shape = _in_blocks(p.shape, group["blocks"])
        p, g, m = (a.reshape(shape) for a in (p, g, state["exp_avg"].array))  # views
        v = state["exp_avg_sq"].array
        (norms,) = cut(self.work, v.dtype, v.shape)
        device.kernels.norm(g, tuple(range(1, g.ndim)), 2, out=norms)
        share = (1 - beta2) / max(prod(shape[1:]), 1)
        device.kernels.moved_mean_square(v, norms, beta2, share, out=v)
        rate, root, shrink = lr / (1 - beta1**t), sqrt(1 - beta2**t), 1 - lr * group["weight_decay"]
        device.kernels.adam_mini_step(p, g, m, v, rate, beta1, group["eps"], root, shrink, group["maximize"])


def _in_blocks(shape: tuple[int, ...], blocks: int | None) -> tuple[int, ...]:
    """The shape of a parameter whose rows are cut into blocks: (blocks, rows of each, ...)."""
    rows, rest = (shape[0], shape[1:]) if shape else (1, ())
    if blocks is None:
        blocks = rows if rest else 1
    if not is_whole(blocks, 0) or (rows % blocks if blocks else rows):
        raise ArgumentError(
            f"AdamMini: blocks={blocks!r} of a parameter of shape {list(shape)}: its {rows} rows should be cut into equal "
            "blocks; give a number that divides them, such as the number of heads"
        )
    return (blocks, rows // blocks if blocks else 1, *rest)
