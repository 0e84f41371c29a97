"""RMSprop, Adagrad and Adadelta: steps scaled by the size of past gradients."""

from __future__ import annotations

from typing import Any

from ..devices import device as Device
from .optimizer import Optimizer
from .rows import RowWise
from .state import check_rates, not_negative, options, tick

__all__ = ("Adadelta", "Adagrad", "RMSprop")


class RMSprop(Optimizer):
    """Divides the gradient by the root of the running mean of its square.

    The rule, with ``d = g + weight_decay * p``: ``v = alpha * v + (1 - alpha) * d**2``; centered: ``a`` likewise of d, and
    ``v - a**2`` in place of v; ``u = d / (sqrt(v) + eps)``; ``p = p - lr * u``, or with momentum ``b = momentum * b + u`` and
    ``p = p - lr * b``.

    Memory: 4 bytes a float32 parameter (``square_avg``), 4 more with momentum (``momentum_buffer``), 4 more when centered
    (``grad_avg``).

    Raises:
        ValueError: a rate outside of its range.

    Source: Tieleman and Hinton, *Lecture 6.5: rmsprop*, 2012; centered: Graves, *Generating sequences with recurrent neural
    networks*, 2013.
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
        not_negative(momentum=momentum, alpha=alpha)
        super().__init__(params, options(locals()))

    squares = ("square_avg",)

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        tick(state)
        buf = state["momentum_buffer"].array if group["momentum"] > 0 else None
        mean = state["grad_avg"].array if group["centered"] else None
        lr, alpha, eps, momentum, decay = (group[name] for name in ("lr", "alpha", "eps", "momentum", "weight_decay"))
        device.kernels.rmsprop_step(
            p, g, state["square_avg"].array, buf, mean, float(lr), alpha, eps, momentum, decay, group["maximize"]
        )


class Adagrad(RowWise, Optimizer):
    """Divides the gradient by the root of the sum of all its squares so far.

    The rule at step t, with ``d = g + weight_decay * p``: ``s = s + d**2``;
    ``p = p - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)``. A sparse gradient moves its rows alone.

    Memory: 4 bytes a float32 parameter (``sum``), made at the first step.

    Raises:
        ValueError: a rate outside of its range; in a step: a sparse gradient and weight decay.

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
        not_negative(lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value)
        super().__init__(params, options(locals()))

    arrays = squares = ("sum",)

    def initial(self, group: dict[str, Any]) -> float:
        return group["initial_accumulator_value"]

    def refuse_rows(self, group: dict[str, Any]) -> str:
        return "weight_decay option is not compatible with sparse gradients" if group["weight_decay"] else ""

    def update_rows(self, device: Device, group: dict[str, Any], p: Any, first: Any, g: Any, state: dict[str, Any]) -> None:
        t = tick(state)
        rate = float(group["lr"]) / (1 + (t - 1) * group["lr_decay"])
        device.kernels.sparse_adagrad_step(p, first, g, state["sum"].array, rate, group["eps"], group["maximize"])

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        rate = float(group["lr"]) / (1 + (t - 1) * group["lr_decay"])
        device.kernels.adagrad_step(p, g, state["sum"].array, rate, group["eps"], group["weight_decay"], group["maximize"])


class Adadelta(Optimizer):
    """Scales each gradient by the running root mean square of past steps over that of past gradients.

    The rule, with ``d = g + weight_decay * p``: ``v = rho * v + (1 - rho) * d**2``; ``u = sqrt(a + eps) / sqrt(v + eps) * d``;
    ``a = rho * a + (1 - rho) * u**2``; ``p = p - lr * u``.

    Memory: 8 bytes a float32 parameter (``square_avg``, ``acc_delta``).

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

    arrays = squares = ("square_avg", "acc_delta")

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        tick(state)
        square, moved = state["square_avg"].array, state["acc_delta"].array
        rates = float(group["lr"]), group["rho"], group["eps"]
        device.kernels.adadelta_step(p, g, square, moved, *rates, group["weight_decay"], group["maximize"])
