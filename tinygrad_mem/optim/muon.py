"""Muon: the momentum of each matrix, made orthogonal by products of matrices."""

from __future__ import annotations

from math import sqrt
from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError, is_whole
from .adam import adamw_update
from .optimizer import Optimizer
from .state import StateArray, bytes_of, cut, not_negative, options, tick

__all__ = ("Muon",)

_TILE = 1024  # the fewest columns of a product at a time, if there are as many
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of AdamW


class Muon(Optimizer):
    """Moves each matrix by its momentum with all singular values near 1.

    The rule: ``buf = momentum * buf + (1 - momentum) * g``, ``u = momentum * buf + (1 - momentum) * g`` (``buf`` without
    ``nesterov``), ``x = u / norm(u)``, and ``ns_steps`` times ``x = a * x + (b * A + c * A @ A) @ x`` with ``A = x @ x.T``,
    where (a, b, c) are ``ns_coefficients``. Then ``p = (1 - lr * weight_decay) * p - rate * x``. The rate is
    ``lr * sqrt(max(1, rows / columns))``. With ``adjust_lr_fn="match_rms_adamw"`` it is
    ``lr * 0.2 * sqrt(max(rows, columns))``, so that a rate and a decay for AdamW can stay.

    Memory: 4 bytes a float32 parameter (``momentum_buffer``), 2 a half-precision one without ``master_weights``. A step takes a
    workspace of ``4 * (n * m + 2 * n * n)`` bytes for the largest matrix, of n rows and m >= n columns or the reverse; of fewer
    than 1024, n times up to 1024 more.

    Price: ``ns_steps`` times three products of matrices for each matrix: for a 4096 x 4096 one about 2 TFLOP.

    Do not use when: parameters are embeddings, heads, or no matrices: give these to AdamW, in an optimizer of their own. With
    ``adamw=True`` all that are no matrices are updated by AdamW's rule here, and have its two moments.

    Differs from PyTorch's: that rounds ``u`` and each product to bfloat16. Here they are float32, or float64 of float64.

    Args:
        params: matrices, or groups of them.
        lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: as in PyTorch.
        adamw: whether to take parameters that are no matrices too.

    Raises:
        ValueError: an option outside of its range; a parameter that is no matrix.

    Source: Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024; Liu et al., *Muon is scalable for
    LLM training*, 2025 (``match_rms_adamw``).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        adamw: bool = False,
        master_weights: bool = False,
    ) -> None:
        not_negative(lr=lr, weight_decay=weight_decay, momentum=momentum)
        super().__init__(params, options(locals()))

    arrays, squares = ("momentum_buffer", "exp_avg", "exp_avg_sq"), ("exp_avg_sq",)
    needs_whole = True

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(
                f"Adjust learning rate function {group['adjust_lr_fn']!r} is not supported: give 'original', 'match_rms_adamw' "
                "or None"
            )
        if not is_whole(group["ns_steps"], 0) or group["ns_steps"] >= 100:
            raise ArgumentError(f"Muon: ns_steps should be a number of steps below 100, found {group['ns_steps']!r}")
        if not (isinstance(group["ns_coefficients"], (tuple, list)) and len(group["ns_coefficients"]) == 3):
            raise ArgumentError(f"Muon: ns_coefficients should be three numbers, found {group['ns_coefficients']!r}")
        for p in group["params"]:
            if p.ndim != 2 and not group.get("adamw"):
                raise ArgumentError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {list(p.shape)}. Give it to "
                    "AdamW in an optimizer of its own, or take adamw=True"
                )

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        mine = self.arrays[:1] if p.ndim == 2 else self.arrays[1:]
        return {name: array for name, array in super().kept(group, p).items() if name in mine}

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        return bytes_of(arithmetic(p.dtype), *_rooms(p.array.shape)) if p.ndim == 2 else 0

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        lr, decay, kernels = float(group["lr"]), group["weight_decay"], device.kernels
        if p.ndim != 2:
            moments = state["exp_avg"].array, state["exp_avg_sq"].array
            adamw_update(device, p, g, moments, lr, decay, tick(state), _BETAS, _EPS, False)
            return
        if p.size == 0:
            return
        x, tile, product, norm = cut(self.work, arithmetic(p.dtype), *_rooms(p.shape))
        u = x if x.shape == p.shape else x.T
        kernels.muon_direction(u, g, state["momentum_buffer"].array, group["momentum"], group["nesterov"])
        kernels.norm(x, (0, 1), 2, out=norm)
        kernels.maximum(norm, group["eps"], out=norm)
        kernels.divide(x, norm, out=x)
        for _ in range(group["ns_steps"]):
            _newton_schulz(kernels, x, tile, product, *group["ns_coefficients"])
        (rows, columns), adam = p.shape, group["adjust_lr_fn"] == "match_rms_adamw"
        size = 0.2 * sqrt(max(rows, columns)) if adam else sqrt(max(1, rows / columns))
        kernels.scaled_step(p, u, None, lr * size, 1 - lr * decay)


def _rooms(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The shapes of what a step needs: x, of no more rows than columns; a tile of its columns; n x n numbers; a norm."""
    n, m = sorted(shape)
    return (n, m), (n * min(m, max(n, _TILE)),), (n, n), (1, 1)


def _newton_schulz(kernels: Any, x: Any, tile: Any, product: Any, a: float, b: float, c: float) -> None:
    """x = a * x + (b * A + c * A @ A) @ x with A = x @ x.T, some columns at a time; A is in the tile before."""
    n, m = x.shape
    square = tile[: n * n].reshape(n, n)
    kernels.matmul(x, x.T, None, out=square)
    kernels.matmul(square, square, None, out=product)
    kernels.weighted_sum(square, product, b, c, out=product)
    diagonal = product.reshape(-1)[:: n + 1]
    kernels.add(diagonal, a, out=diagonal)
    width = tile.size // n
    for j in range(0, m, width):
        columns = x[:, j : j + width]
        part = tile[: columns.size].reshape(columns.shape)
        kernels.matmul(product, columns, None, out=part)
        kernels.copy(part, out=columns)
