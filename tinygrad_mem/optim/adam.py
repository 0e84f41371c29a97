"""Adam and its relatives: AdamW, Adamax, NAdam, RAdam."""

from __future__ import annotations

from math import sqrt
from typing import Any

from ..devices import device as Device
from ..errors import ArgumentError
from .optimizer import Optimizer
from .rows import RowWise
from .state import Betas, check_rates, not_negative, options, tick

__all__ = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam")


def decay_of(group: dict[str, Any]) -> tuple[float, float]:
    """Weight decay as (factor of the parameter to add to the gradient, factor to multiply the parameter by)."""
    if group["decoupled_weight_decay"]:
        return 0, 1 - float(group["lr"]) * group["weight_decay"]
    return group["weight_decay"], 1


def adam_rates(group: dict[str, Any], t: int) -> tuple:
    """The numbers of Adam's rule at step ``t``, as the kernels take them after the moments."""
    beta1, beta2 = group["betas"]
    rate, root = float(group["lr"]) / (1 - beta1**t), sqrt(1 - beta2**t)
    return rate, beta1, beta2, group["eps"], root, *decay_of(group), group["maximize"]


def adamw_update(
    device: Device, p: Any, g: Any, moments: Any, lr: float, decay: float, t: int, betas: Betas, eps: float, maximize: bool
) -> None:
    """Step ``t`` of AdamW, from 1."""
    m, v = moments
    rate, root = lr / (1 - betas[0] ** t), sqrt(1 - betas[1] ** t)
    device.kernels.adam_step(p, g, m, v, None, rate, *betas, eps, root, 0, 1 - lr * decay, maximize)


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square.

    The rule at step t, with ``d = g + weight_decay * p``: ``m = beta1 * m + (1 - beta1) * d``;
    ``v = beta2 * v + (1 - beta2) * d**2``; ``p = p - lr * m / (1 - beta1**t) / (sqrt(v / (1 - beta2**t)) + eps)``. With
    ``amsgrad`` the largest v so far takes the place of v.

    Memory: 8 bytes a float32 parameter (``exp_avg``, ``exp_avg_sq``), 12 with ``amsgrad`` (``max_exp_avg_sq``); half of that
    for half-precision parameters, and with ``state_dtype=float16``. With ``master_weights`` a half-precision parameter takes
    what a float32 one does, and 4 more for its copy.

    Args:
        state_dtype: keep the moments in this dtype, by default the parameter's (float32 with ``master_weights``); ``float16``
            halves those of float32. They are computed in float32, rounded to nearest; in ``float16`` mean squares are kept as
            their roots, which have the gradient's range. Changes of a moment by less than half of its
            last digit (at most 1 in 2,048) are lost: ``exp_avg_sq`` still follows a gradient that changes its size, and stays
            within a factor of 2 for one that does not. ``bfloat16`` has float32's range and only 8 bits: with ``betas[1] =
            0.999`` a step takes away less than half of the last bit, so ``exp_avg_sq`` never falls, and stays at a quarter of
            the square of a constant gradient. So ``float16`` is the better choice.

    Raises:
        ValueError: a rate outside of its range.

    Source: Kingma and Ba, *Adam: a method for stochastic optimization*, 2015; ``amsgrad``: Reddi et al., *On the convergence
    of Adam and beyond*, 2018.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
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
        master_weights: bool = False,
        state_dtype: Any = None,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        super().__init__(params, options(locals()))

    half_state = True
    squares = ("exp_avg_sq", "max_exp_avg_sq")

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        m, v = state["exp_avg"].array, state["exp_avg_sq"].array
        top = state["max_exp_avg_sq"].array if group["amsgrad"] else None
        device.kernels.adam_step(p, g, m, v, top, *adam_rates(group, tick(state)))


class SparseAdam(RowWise, Optimizer):
    """Adam for sparse gradients: rows without a gradient keep their values and their running means.

    The rule is :class:`Adam`'s for the rows that are there; t counts the parameter's steps.

    Memory: as :class:`Adam`, and in a step a workspace of the gradient's size.

    Raises:
        ValueError: a rate outside of its range; in a step: a dense gradient.

    Source: as :class:`Adam`.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8, maximize: bool = False
    ) -> None:
        if not lr > 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps > 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        check_rates(lr, eps, 0, betas)
        super().__init__(params, options(locals()))

    arrays, squares = ("exp_avg", "exp_avg_sq"), ("exp_avg_sq",)

    def _step(self, due: list) -> None:
        if any(not p.grad.is_sparse for _, p in due):
            raise ArgumentError("SparseAdam does not support dense gradients, please consider Adam instead")
        super()._step(due)

    def update_rows(self, device: Device, group: dict[str, Any], p: Any, first: Any, g: Any, state: dict[str, Any]) -> None:
        t = tick(state)
        beta1, beta2 = group["betas"]
        size = float(group["lr"]) * sqrt(1 - beta2**t) / (1 - beta1**t)
        m, v = state["exp_avg"].array, state["exp_avg_sq"].array
        device.kernels.sparse_adam_step(p, first, g, m, v, size, beta1, beta2, group["eps"], group["maximize"])


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameter directly, past the running means.

    The rule: ``p = (1 - lr * weight_decay) * p``, then :class:`Adam`'s with ``d = g``.

    Memory: as :class:`Adam`.

    Raises:
        ValueError: a rate outside of its range.

    Source: Loshchilov and Hutter, *Decoupled weight decay regularization*, 2019.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        master_weights: bool = False,
        state_dtype: Any = None,
    ) -> None:
        super().__init__(params, **options(locals()), decoupled_weight_decay=True)


class Adamax(Optimizer):
    """Adam with the largest recent gradient in place of the mean square.

    The rule at step t, with ``d = g + weight_decay * p``: ``m = beta1 * m + (1 - beta1) * d``;
    ``u = max(beta2 * u, abs(d) + eps)``; ``p = p - lr / (1 - beta1**t) * m / u``.

    Memory: 8 bytes a float32 parameter (``exp_avg``, ``exp_inf``).

    Raises:
        ValueError: a rate outside of its range.

    Source: Kingma and Ba, *Adam: a method for stochastic optimization*, 2015, section 7.1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        super().__init__(params, options(locals()))

    arrays = ("exp_avg", "exp_inf")

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        beta1, beta2 = group["betas"]
        rate = float(group["lr"]) / (1 - beta1**t)
        m, top = state["exp_avg"].array, state["exp_inf"].array
        device.kernels.adamax_step(p, g, m, top, rate, beta1, beta2, group["eps"], group["weight_decay"], group["maximize"])


class NAdam(Optimizer):
    """Adam with Nesterov's momentum.

    The rule at step t, with ``d = g + weight_decay * p`` (or decay as in :class:`AdamW`), m and v as in :class:`Adam`, and
    ``mu(t) = beta1 * (1 - 0.5 * 0.96**(t * momentum_decay))``, whose product so far is M:
    ``u = mu(t + 1) * m / (1 - M * mu(t + 1)) + (1 - mu(t)) * d / (1 - M)``;
    ``p = p - lr * u / (sqrt(v / (1 - beta2**t)) + eps)``.

    Memory: 8 bytes a float32 parameter (``exp_avg``, ``exp_avg_sq``).

    Raises:
        ValueError: a rate outside of its range.

    Source: Dozat, *Incorporating Nesterov momentum into Adam*, 2016.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        not_negative(momentum_decay=momentum_decay)
        super().__init__(params, options(locals()))

    arrays, squares = ("exp_avg", "exp_avg_sq"), ("exp_avg_sq",)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        mu, after = (beta1 * (1.0 - 0.5 * 0.96 ** (n * group["momentum_decay"])) for n in (t, t + 1))
        product = state["mu_product"] = state.get("mu_product", 1.0) * mu
        m, v = state["exp_avg"].array, state["exp_avg_sq"].array
        rates, root = (lr * (1 - mu) / (1 - product), lr * after / (1 - product * after)), sqrt(1 - beta2**t)
        device.kernels.nadam_step(p, g, m, v, *rates, beta1, beta2, group["eps"], root, *decay_of(group), group["maximize"])


class RAdam(Optimizer):
    """Adam whose adaptive scale waits until its variance is bounded.

    The rule at step t, with m and v as in :class:`Adam`, ``N = 2 / (1 - beta2) - 1`` and
    ``n = N - 2 * t * beta2**t / (1 - beta2**t)``: while ``n <= 5``, ``p = p - lr * m / (1 - beta1**t)``; then Adam's step times
    ``sqrt((n - 4) * (n - 2) * N / ((N - 4) * (N - 2) * n))``.

    Memory: 8 bytes a float32 parameter (``exp_avg``, ``exp_avg_sq``).

    Raises:
        ValueError: a rate outside of its range.

    Source: Liu et al., *On the variance of the adaptive learning rate and beyond*, 2020.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        super().__init__(params, options(locals()))

    arrays, squares = ("exp_avg", "exp_avg_sq"), ("exp_avg_sq",)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        beta1, beta2 = group["betas"]
        most = 2 / (1 - beta2) - 1
        length = most - 2 * t * beta2**t / (1 - beta2**t)
        rate = float(group["lr"]) / (1 - beta1**t)
        rectified = length > 5.0
        if rectified:
            rate *= sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) * sqrt(1 - beta2**t)
        m, v = state["exp_avg"].array, state["exp_avg_sq"].array
        device.kernels.radam_step(p, g, m, v, rate, rectified, beta1, beta2, group["eps"], *decay_of(group), group["maximize"])
