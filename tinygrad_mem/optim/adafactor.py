"""Adafactor: Adam's scale from the means of rows and columns, for a fraction of its memory."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..dtypes import arithmetic
from .optimizer import Optimizer, options, tick
from .state import StateArray


class Adafactor(Optimizer):
    """Steps scaled by mean squares of the gradient, of which a matrix keeps those of its rows and of its columns; no momentum.

    Memory: ``4 * (n + m)`` bytes a float32 matrix of n rows and m columns (``row_var``, ``col_var``), for each of those along
    the axes before the last two; as much as itself for a vector (``variance``). 4096 x 4096: 32 KiB, where Adam has 128 MiB.
    A step wants a workspace of 8 bytes a matrix of the largest parameter, and 8 KiB.

    Price: several passes over each gradient, one of them for the means of its rows and columns. It is another rule than Adam's.

    Do not use when: most parameters are vectors, of which it keeps as much as RMSprop; or a rate tuned for Adam must hold.

    Args:
        params: parameters or groups.
        lr, beta2_decay, eps, d, weight_decay, maximize: as in PyTorch, whose numbers these are. ``lr`` is the largest step
            relative to the parameter's own size; where ``eps[0]`` is ``None``, it is that of the dtype of the arithmetic.
        foreach: accepted and stored; the update is the same in any case.
        master_weights: float32 copies of half-precision parameters: see :class:`Optimizer`.

    Raises:
        ValueError: a rate outside of its range.

    Source: Shazeer and Stern, *Adafactor: adaptive learning rates with sublinear memory cost*, 2018.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        _check(lr, beta2_decay, eps, d, weight_decay)
        super().__init__(params, options(locals()))

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("row_var", "col_var", "variance")  # of a parameter either the first two or the last

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        shape, dtype = p.array.shape, arithmetic(p.dtype)
        if len(shape) < 2:
            return {"variance": StateArray(shape, dtype)}
        return {"row_var": StateArray((*shape[:-1], 1), dtype), "col_var": StateArray((*shape[:-2], 1, shape[-1]), dtype)}

    def workspace(self, kernels: Any, group: dict[str, Any], p: Tensor) -> int:
        return kernels.adafactor_workspace(p.array.shape, arithmetic(p.dtype))

    def update(self, kernels: Any, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t, lr = tick(state), float(group["lr"])
        eps1, eps2 = group["eps"]
        if eps1 is None:
            eps1 = float(np.finfo(arithmetic(p.dtype)).eps)
        row, col, variance = (state[name].array if name in state else None for name in ("row_var", "col_var", "variance"))
        kernels.adafactor_step(
            p,
            g,
            row,
            col,
            variance,
            self.work,
            min(lr, 1 / sqrt(t)),
            t ** group["beta2_decay"],
            eps1,
            eps2,
            group["d"],
            1 - lr * group["weight_decay"],
            group["maximize"],
        )


def _check(lr: float, beta2_decay: float, eps: tuple[float | None, float], d: float, weight_decay: float) -> None:
    for good, words, found in (
        (lr >= 0.0, "Learning rate should be >= 0", lr),
        (beta2_decay <= 0.0, "beta2_decay should be <= 0", beta2_decay),
        (eps[0] is None or eps[0] >= 0.0, "epsilon1 should be >= 0", eps[0]),
        (eps[1] >= 0.0, "epsilon2 should be >= 0", eps[1]),
        (d >= 1.0, "Clipping threshold d should be >= 1", d),
        (weight_decay >= 0.0, "weight_decay should be >= 0", weight_decay),
    ):
        if not good:
            raise ValueError(f"{words} but is: {found}")
