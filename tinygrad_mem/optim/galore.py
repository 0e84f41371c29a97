"""GaLore: Adam in the space of the gradient's largest singular vectors."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from .projected import MOMENTS, Group, Projected, is_plain, is_projected, tiles
from .state import Betas, StateArray, check_rates, not_negative, options

__all__ = ("GaLore",)


class GaLore(Projected):
    """AdamW in the space of the gradient's largest singular vectors, which are recomputed every ``update_proj_gap`` steps.

    The rule for a matrix of n rows and m >= n columns: every ``update_proj_gap`` steps ``P = U[:, :rank]`` of
    ``U, S, V = svd(g)``; ``r = P.T @ g``; Adam's step ``d = m' / (sqrt(v') + eps)`` of r;
    ``p = (1 - lr * weight_decay) * p - lr * scale * P @ d``. The moments stay when P changes, as in the paper.

    Memory: ``4 * rank * (n + 2 * m)`` bytes for a float32 matrix (``projection``, ``exp_avg``, ``exp_avg_sq``), half precision
    takes as many. A 4096 x 4096 matrix of rank 128 needs 6 MiB; with Adam it needs 128. Parameters that are no matrices, or
    have no more than ``rank`` rows or columns, need what AdamW keeps.
    A step takes a workspace of ``8 * rank * m`` bytes, and one with a new P another ``4 * (n * n + n + n * m)`` for the results
    of the SVD, for 4096 x 4096 another 128 MiB. LAPACK's own copies come on top: see ``kernels/uncounted.py``. On a GPU the SVD
    runs on the host, and takes nothing of the GPU's memory. A gradient of half precision is copied, and so is any
    gradient if it or the parameter is not contiguous: for an SVD ``4 * n * m`` bytes, else ``4 * n * min(m, 1024)``.

    Price: an SVD of each matrix every ``update_proj_gap`` steps, and three thin products a step.

    Do not use when: matrices are small, or the fine-tuning is short: the SVD is then most of the time.

    Args:
        rank: rows of the projected gradient. A group's option, too: see above for matrices that are too small for it.
        update_proj_gap: steps from one projection to the next.
        scale: as above; the paper's alpha.

    Raises:
        ValueError: an option outside of its range.

    Source: Zhao et al., *GaLore: memory-efficient LLM training by gradient low-rank projection*, 2024, algorithm 2.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        rank: int = 128,
        update_proj_gap: int = 200,
        scale: float = 0.25,
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        not_negative(scale=scale)
        super().__init__(params, options(locals()))

    arrays = (*MOMENTS, "projection")

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        kept = super().kept(group, p)
        if is_projected(group, p):
            kept["projection"] = StateArray((min(p.array.shape), group["rank"]), arithmetic(p.dtype))
        return kept

    def rooms(self, device: Device, group: Group, shape: tuple[int, ...], wide: Any, due: bool) -> Group:
        rooms = super().rooms(device, group, shape, wide, due)
        n, m = sorted(shape)
        results = device.kernels.left_vectors_workspace((n, m), wide) // wide.itemsize if due else 0
        return rooms | ({"svd": (results,)} if results else {})

    def copied(self, shape: tuple[int, ...], due: bool) -> tuple[int]:
        return (shape[0] * shape[1],) if due else super().copied(shape, due)

    def reads(self, p: Any, g: Any, wide: Any) -> bool:
        return is_plain(g, wide) and (p is None or is_plain(p, wide))

    def projection(self, device: Device, group: Group, g: Any, state: Group, room: Group, t: int, due: bool) -> Any:
        kept = state["projection"].array
        if due and "copy" in room:
            ((_, whole),) = tiles(room, g)
            device.kernels.copy(g, out=whole)
            g = whole
        if due:
            device.kernels.left_vectors(g, room.get("svd"), out=kept)
        return kept.T

    def move(self, device: Device, group: Group, p: Any, g: Any, projection: Any, state: Group, room: Group) -> None:
        kernels, lr, direction = device.kernels, float(group["lr"]), room["direction"]
        shrink = 1 - lr * group["weight_decay"]
        kernels.multiply(direction, lr * group["scale"], out=direction)
        if shrink != 1:  # by itself: with the step, a GPU might round both together, in one of the two ways only
            kernels.multiply(p, shrink, out=p)
        for columns, tile in tiles(room, p):
            _product(kernels.matmul, projection.T, direction[:, columns], tile, None)
            kernels.scaled_step(p[:, columns], tile, None, -1.0, 1.0)
        if "copy" not in room:
            _product(kernels.add_matmul, projection.T, direction, p)


def _product(kernel: Any, x: Any, y: Any, out: Any, *work: Any) -> None:
    """out = or += x @ y; where ``out`` is turned, by the turned product: its rows must be contiguous."""
    if out.flags.c_contiguous:
        kernel(x, y, *work, out=out)
    else:
        kernel(y.T, x.T, *work, out=out.T)
