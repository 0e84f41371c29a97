"""LOMO and AdaLomo: rules with hardly any state, whose steps are meant to be made in backward."""

from __future__ import annotations

from typing import Any

from ..devices import device as Device
from ..errors import ArgumentError
from .adafactor import Adafactor
from .loading import is_number
from .optimizer import Optimizer
from .state import not_negative, options, tick

__all__ = ("AdaLomo", "Lomo")

_TINY = 1e-19  # mean squares are at least its square, which float32 still has


class Lomo(Optimizer):
    """Gradient descent whose gradients are cut to a range, number by number: ``p = p - lr * clamp(g, -c, c)``.

    LOMO makes this step in backward: ``optimizer_in_backward(Lomo(...))`` updates each parameter when its gradient is complete,
    and frees the gradient: only one exists at a time. To clip by the norm of all gradients, or to scale the loss, the paper
    goes back twice: ``optimizer_in_backward(Lomo(...), max_norm=1.0, scaler=GradScaler())``.

    Memory: no state. In backward one gradient at a time: see :class:`~tinygrad_mem.techniques.optimizer_in_backward`. With
    ``step()`` all gradients, as with SGD.
    Price: none; with ``max_norm`` or ``scaler`` a second backward.
    Do not use when: the network learns slowly with SGD, as large transformers do from scratch.

    Args:
        clip_grad_value: c above; ``None`` cuts nothing.

    Raises:
        ValueError: a negative rate, or a range that is not above 0.

    Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        clip_grad_value: float | None = None,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        not_negative(lr=lr)
        super().__init__(params, options(locals()))

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        bound = group["clip_grad_value"]
        if bound is not None and not (is_number(bound) and bound > 0):
            raise ArgumentError(f"Lomo: clip_grad_value should be above 0, or None to cut nothing, found {bound!r:.60}")

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        bound = group["clip_grad_value"]
        device.kernels.lomo_step(p, g, float(group["lr"]), None if bound is None else float(bound), group["maximize"])


class AdaLomo(Adafactor):
    """Scales the gradient by the mean squares of its rows and columns, and the step by the size of the parameter.

    The rule for a matrix, with ``b = 1 - t**decay_rate``: ``r = b * r + (1 - b) * mean(g**2, over columns)``, ``c`` likewise
    over rows, ``u = g / sqrt(r * c / mean(r))``, ``p = p - lr * max(eps, rms(p)) * u / max(1, rms(u) / clip_threshold)``. A
    vector has a mean square for each number. It is Adafactor with a fixed rate, and as LOMO it is meant for backward:
    ``optimizer_in_backward(AdaLomo(...))``.

    Memory: as :class:`Adafactor`: ``4 * (n + m)`` bytes for a matrix of n rows and m columns. In backward one gradient at a
    time: see :class:`~tinygrad_mem.techniques.optimizer_in_backward`.
    Price: as :class:`Adafactor`. Do not use when: as :class:`Adafactor`.

    Raises:
        ValueError: a rate outside of its range.

    Source: Lv et al., *AdaLomo: low-memory optimization with adaptive learning rate*, 2023, algorithm 1.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        decay_rate: float = -0.8,
        clip_threshold: float = 1.0,
        eps: float = 1e-3,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        not_negative(lr=lr, eps=eps)
        if not (decay_rate <= 0 and clip_threshold > 0):
            found = f"found {decay_rate!r} and {clip_threshold!r}"
            raise ArgumentError(f"AdaLomo: decay_rate should be at most 0 and clip_threshold above 0, {found}")
        Optimizer.__init__(self, params, options(locals()))

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        share = float(tick(state)) ** group["decay_rate"]
        row, col, variance = (state[name].array if name in state else None for name in self.arrays)
        rates = float(group["lr"]), share, _TINY, group["eps"], group["clip_threshold"], 1.0
        device.kernels.adafactor_step(p, g, row, col, variance, self.work, *rates, group["maximize"])
