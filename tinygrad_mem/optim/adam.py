"""Adam and AdamW."""

from __future__ import annotations

from math import sqrt
from typing import Any

from .optimizer import Optimizer


def check_rates(lr: float, eps: float, weight_decay: float, betas: tuple[float, float] = (0.0, 0.0)) -> None:
    """What the adaptive rules ask of their options, in PyTorch's words."""
    if not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not eps >= 0.0:
        raise ValueError(f"Invalid epsilon value: {eps}")
    for index, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
    if not weight_decay >= 0.0:
        raise ValueError(f"Invalid weight_decay value: {weight_decay}")


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square.

    Memory: 8 bytes a float32 parameter (``exp_avg``, ``exp_avg_sq``), 12 with ``amsgrad`` (``max_exp_avg_sq``).

    Args:
        params: parameters or groups.
        lr, betas, eps, weight_decay, amsgrad, maximize, decoupled_weight_decay: as in PyTorch.
        foreach, capturable, fused: accepted and stored; the update is one fused pass here in any case.

    Raises:
        ValueError: a rate outside of its range.

    Source: Kingma and Ba, *Adam: a method for stochastic optimization*, 2015.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "decoupled_weight_decay": decoupled_weight_decay,
            },
        )

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = state["step"] = state.get("step", 0) + 1
        beta1, beta2 = group["betas"]
        lr, decay, decoupled = float(group["lr"]), group["weight_decay"], group["decoupled_weight_decay"]
        kernels.adam_step(
            p,
            g,
            state["exp_avg"].array,
            state["exp_avg_sq"].array,
            state["max_exp_avg_sq"].array if group["amsgrad"] else None,
            lr / (1 - beta1**t),
            beta1,
            beta2,
            group["eps"],
            sqrt(1 - beta2**t),
            0 if decoupled else decay,
            1 - lr * decay if decoupled else 1,
            group["maximize"],
        )


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter directly, past the running means. Memory: as :class:`Adam`.

    Source: Loshchilov and Hutter, *Decoupled weight decay regularization*, 2019.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
