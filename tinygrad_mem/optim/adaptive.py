"""RMSprop, Adagrad and Adadelta: steps scaled by what the gradients were."""

from __future__ import annotations

from typing import Any

from .optimizer import Optimizer, options, tick
from .rows import RowWise
from .state import check_rates


class RMSprop(Optimizer):
    """Steps over the root of the running mean of squared gradients.

    Memory: 4 bytes a float32 parameter (``square_avg``), 4 more with momentum, 4 more when centered.

    Args:
        params: parameters or groups.
        lr, alpha, eps, weight_decay, momentum, centered, maximize: as in PyTorch.
        capturable, foreach: accepted and stored; the update is one fused pass here in any case.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

    Raises:
        ValueError: a negative rate.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        *,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay)
        if not momentum >= 0.0:
            raise ValueError(f"Invalid momentum value: {momentum}")
        if not alpha >= 0.0:
            raise ValueError(f"Invalid alpha value: {alpha}")
        super().__init__(params, options(locals()))

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        tick(state)
        kernels.rmsprop_step(
            p,
            g,
            state["square_avg"].array,
            state["momentum_buffer"].array if group["momentum"] > 0 else None,
            state["grad_avg"].array if group["centered"] else None,
            float(group["lr"]),
            group["alpha"],
            group["eps"],
            group["momentum"],
            group["weight_decay"],
            group["maximize"],
        )


class Adagrad(RowWise, Optimizer):
    """Steps over the root of the sum of all squared gradients.

    Memory: 4 bytes a float32 parameter (``sum``), made at the first step.

    Args:
        params: parameters or groups.
        lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize: as in PyTorch.
        foreach, fused: accepted and stored; the update is one fused pass here in any case.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

    Raises:
        ValueError: a negative rate.

    Source: Duchi et al., *Adaptive subgradient methods*, 2011.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay)
        if not lr_decay >= 0.0:
            raise ValueError(f"Invalid lr_decay value: {lr_decay}")
        if not initial_accumulator_value >= 0.0:
            raise ValueError(f"Invalid initial_accumulator_value value: {initial_accumulator_value}")
        super().__init__(params, options(locals()))

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("sum",)

    def initial(self, group: dict[str, Any]) -> float:
        return group["initial_accumulator_value"]

    def refuse_rows(self, group: dict[str, Any]) -> str:
        return "weight_decay option is not compatible with sparse gradients" if group["weight_decay"] else ""

    def update_rows(self, kernels: Any, group: dict[str, Any], p: Any, first: Any, g: Any, state: dict[str, Any]) -> None:
        t = tick(state)
        rate = float(group["lr"]) / (1 + (t - 1) * group["lr_decay"])
        kernels.sparse_adagrad_step(p, first, g, state["sum"].array, rate, group["eps"], group["maximize"])

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        rate = float(group["lr"]) / (1 + (t - 1) * group["lr_decay"])
        kernels.adagrad_step(p, g, state["sum"].array, rate, group["eps"], group["weight_decay"], group["maximize"])


class Adadelta(Optimizer):
    """Steps scaled by the running mean of squared steps over that of squared gradients.

    Memory: 8 bytes a float32 parameter (``square_avg``, ``acc_delta``).

    Args:
        params: parameters or groups.
        lr, rho, eps, weight_decay, maximize: as in PyTorch.
        foreach, capturable: accepted and stored; the update is one fused pass here in any case.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

    Raises:
        ValueError: a rate outside of its range.

    Source: Zeiler, *ADADELTA: an adaptive learning rate method*, 2012.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        super().__init__(params, options(locals()))

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("square_avg", "acc_delta")

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        tick(state)
        square, moved = state["square_avg"].array, state["acc_delta"].array
        rates = float(group["lr"]), group["rho"], group["eps"]
        kernels.adadelta_step(p, g, square, moved, *rates, group["weight_decay"], group["maximize"])
