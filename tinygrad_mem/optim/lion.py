"""Lion: one moment, and steps of one size."""

from __future__ import annotations

from typing import Any

from ..devices import device as Device
from .optimizer import Optimizer
from .state import Betas, check_rates, options

__all__ = ("Lion",)


class Lion(Optimizer):
    """Moves each parameter by the rate, in the direction of the sign of a mean of the moment and the gradient.

    The rule: ``c = beta1 * m + (1 - beta1) * g``, ``p = p - lr * (sign(c) + weight_decay * p)``, and then
    ``m = beta2 * m + (1 - beta2) * g``.

    Memory: 4 bytes a float32 parameter (``exp_avg``): half of Adam's. 2 a half-precision one without ``master_weights``, and
    with ``state_dtype=bfloat16``.

    Price: none; a step reads and writes less than Adam's.

    Do not use when: a rate tuned for Adam must stay. The paper takes a rate 3 to 10 times smaller, and a weight decay as many
    times larger.

    Args:
        master_weights, state_dtype: as :class:`Adam`.

    Raises:
        ValueError: a rate outside of its range.

    Source: Chen et al., *Symbolic discovery of optimization algorithms*, 2023, algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: Betas = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
        master_weights: bool = False,
        state_dtype: Any = None,
    ) -> None:
        check_rates(lr, 0, weight_decay, betas)
        super().__init__(params, options(locals()))

    half_state = True
    arrays = ("exp_avg",)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        shrink = 1 - lr * group["weight_decay"]
        device.kernels.lion_step(p, g, state["exp_avg"].array, lr, beta1, beta2, shrink, group["maximize"])
