"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from ..devices import device as Device
from .optimizer import Optimizer
from .rows import RowWise
from .state import not_negative, options

__all__ = ("SGD",)


class SGD(RowWise, Optimizer):
    """Gradient descent, with momentum and Nesterov's variant.

    The rule, with ``d = g + weight_decay * p``: ``p = p - lr * d``; with momentum ``b = momentum * b + (1 - dampening) * d``,
    at first ``b = d``, and ``p = p - lr * b``; Nesterov: ``p = p - lr * (d + momentum * b)``. A sparse gradient moves its rows.

    Memory: nothing without momentum, else 4 bytes a float32 parameter (``momentum_buffer``), 2 a half-precision one without
    ``master_weights``.

    Args:
        state_dtype: keep the momentum in this dtype, by default the parameter's (float32 with ``master_weights``): ``float16``
            halves it. It is computed in float32, rounded to nearest.

    Raises:
        ValueError: a negative rate, or Nesterov without momentum or with dampening; in a step: a sparse gradient, and momentum
            or weight decay.

    Source: Sutskever et al., *On the importance of initialization and momentum in deep learning*, 2013.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
        state_dtype: Any = None,
    ) -> None:
        check_sgd(lr, momentum, dampening, weight_decay, nesterov)
        super().__init__(params, options(locals()))

    half_state = True

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def refuse_rows(self, group: dict[str, Any]) -> str:
        wrong = " and ".join(f"{name}={group[name]}" for name in ("momentum", "weight_decay") if group[name])
        return (
            f"SGD: {wrong} would move all rows, and a sparse gradient has a few: set to 0, or use SparseAdam" if wrong else ""
        )

    def update_rows(self, device: Device, group: dict[str, Any], p: Any, first: Any, g: Any, state: dict[str, Any]) -> None:
        device.kernels.sparse_sgd_step(p, first, g, float(group["lr"]), group["maximize"])

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        buf = state["momentum_buffer"].array if group["momentum"] else None
        device.kernels.sgd_step(p, g, buf, *rates_of(group, first))


def rates_of(group: dict[str, Any], first: bool) -> tuple[float, float, float, float, bool, bool]:
    """The numbers that a step with momentum takes, in the order of the device.kernels."""
    dampening = 0 if first else group["dampening"]  # the first gradient is taken whole
    return (float(group["lr"]), group["momentum"], dampening, group["weight_decay"], group["nesterov"], group["maximize"])


def check_sgd(lr: float, momentum: float, dampening: float, weight_decay: float, nesterov: bool) -> None:
    """Check SGD's options, in PyTorch's words."""
    not_negative(lr=lr, momentum=momentum, weight_decay=weight_decay)
    if nesterov and (momentum <= 0 or dampening != 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
