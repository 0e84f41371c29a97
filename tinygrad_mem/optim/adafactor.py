"""Adafactor: Adam's scale from the means of rows and columns, for a fraction of its memory."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from .optimizer import Optimizer
from .state import StateArray, options, tick

__all__ = ("Adafactor",)


class Adafactor(Optimizer):
    """Scales the gradient by its mean squares. For a matrix it keeps only the means of rows and of columns; no momentum.

    Memory: ``4 * (n + m)`` bytes for a float32 matrix of n rows and m columns (``row_var``, ``col_var``); a parameter of more
    axes is a stack of matrices, along the axes before the last two. A vector needs as much as itself (``variance``). A
    4096 x 4096 matrix needs 32 KiB; with Adam it needs 128 MiB. Half precision takes as many bytes; PyTorch's takes half. A
    step takes a workspace of 8 KiB, and 8 bytes for each matrix of the largest parameter.

    Price: several passes over each gradient. The steps are not Adam's.

    Do not use when: most parameters are vectors, for which it keeps as much as RMSprop; or a rate tuned for Adam must stay.

    Args:
        lr, beta2_decay, eps, d, weight_decay, maximize: as in PyTorch, with the same results. ``lr`` is the largest step
            relative to the parameter's own size. If ``eps[0]`` is ``None``, it is the eps of the dtype of the arithmetic.

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

    arrays = ("row_var", "col_var", "variance")  # a matrix keeps the first two, a vector the last
    needs_whole = True

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        shape, dtype = p.array.shape, arithmetic(p.dtype)
        if len(shape) < 2:
            return {"variance": StateArray(shape, dtype)}
        return {"row_var": StateArray((*shape[:-1], 1), dtype), "col_var": StateArray((*shape[:-2], 1, shape[-1]), dtype)}

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        return device.kernels.adafactor_workspace(p.array.shape, arithmetic(p.dtype))

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t, lr = tick(state), float(group["lr"])
        eps1, eps2 = group["eps"]
        if eps1 is None:
            eps1 = float(np.finfo(arithmetic(p.dtype)).eps)
        row, col, variance = (state[name].array if name in state else None for name in self.arrays)
        step, share, shrink = min(lr, 1 / sqrt(t)), t ** group["beta2_decay"], 1 - lr * group["weight_decay"]
        device.kernels.adafactor_step(
            p, g, row, col, variance, self.work, step, share, eps1, eps2, group["d"], shrink, group["maximize"]
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
