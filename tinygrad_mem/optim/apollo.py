"""APOLLO: the gradient, with the scales that Adam would give to a random projection of it."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError
from .projected import MOMENTS, Group, Projected, is_projected
from .state import Betas, StateArray, check_rates, not_negative, options

__all__ = ("APOLLO", "APOLLOMini")

_GROWTH = 1.01  # how much longer than the last one an update may be
_SEEDS = 1 << 63
_APART = 0x9E3779B97F4A7C15  # from the seed of one parameter to the next one's
_EPS = 1e-8  # added to lengths before a division


class APOLLO(Projected):
    """Scales each column of the gradient as AdamW would scale the column's random projection.

    The rule for a matrix of n rows and m >= n columns: P has normal numbers of variance ``1 / rank``, others every
    ``update_proj_gap`` steps; ``r = P @ g``; Adam's step ``d = m' / (sqrt(v') + eps)`` of r; the scale of a column is
    ``norm(d) / norm(r)`` of this column, or with ``scale_type="tensor"`` of the whole; ``u = g * scales``, shortened to 1.01
    times the length of the last u where it is longer; ``p = (1 - lr * weight_decay) * p - lr * scale * u``.

    Memory: ``4 * (2 * rank * m + 1)`` bytes for a float32 matrix (``exp_avg``, ``exp_avg_sq``, and ``norm``, the length of the
    last u), half precision takes as many. P is made again from its seed in each step. A 4096 x 4096 matrix of rank 128 needs 4
    MiB; with Adam it needs 128. Parameters that are no matrices, or have no more than ``rank`` rows or columns, need what AdamW
    keeps. A step takes a workspace of ``4 * (rank * n + 2 * rank * m + 3 * m + 1)`` bytes, with ``"tensor"`` of
    ``4 * (rank * n + 2 * rank * m + 4)``. A gradient of half precision, or one that is not contiguous, is copied in
    parts of ``4 * n * min(m, 1024)`` bytes.

    Price: random numbers for P and a thin product a step, and two more passes over the gradient. The steps follow the gradient,
    with fewer scales than Adam's.

    Do not use when: most parameters are vectors or small matrices, for which AdamW's state is kept.

    P comes from the generator of the parameter's device. With ``DistributedDataParallel`` all ranks have the same P, whatever
    their seeds; ranks that average gradients by themselves need the same ``manual_seed``.

    Args:
        rank: rows of the projected gradient.
        update_proj_gap: steps from one projection to the next.
        scale: as above; the paper's alpha.
        scale_type: ``"channel"`` or ``"tensor"``.

    Raises:
        ValueError: an option outside of its range.

    Source: Zhu et al., *APOLLO: SGD-like memory, AdamW-level performance*, 2024, algorithm 1; Chen et al., *Fira*, 2024 (the
    limit of the length).
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
        scale: float = 1.0,
        scale_type: str = "channel",
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        check_rates(lr, eps, weight_decay, betas)
        not_negative(scale=scale)
        super().__init__(params, options(locals()))

    arrays = (*MOMENTS, "norm")

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        if group["scale_type"] not in ("channel", "tensor"):
            raise ArgumentError(f"APOLLO: scale_type should be 'channel' or 'tensor', found {group['scale_type']!r}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As :meth:`Optimizer.add_param_group`; the group gets a ``"seed"``, from which its parameters' seeds are made."""
        super().add_param_group(param_group)
        _draw_seed(param_group)

    def _step_one(self, group: dict[str, Any], p: Tensor, fresh: dict[str, Tensor]) -> None:
        if is_projected(group, p) and "seed" not in self.state[p]:
            _draw_seed(group)  # if it was empty before
            place = next(place for place, other in enumerate(group["params"]) if other is p)
            first = group["seed"]
            if p._replica is not None:  # the generators of ranks may differ, and their steps must not
                first, place = 0, p._replica
            self.state[p]["seed"] = (first + place * _APART) % _SEEDS
        super()._step_one(group, p, fresh)

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        kept = super().kept(group, p)
        if is_projected(group, p):
            kept["norm"] = StateArray((1, 1), arithmetic(p.dtype))
        return kept

    def rooms(self, device: Device, group: Group, shape: tuple[int, ...], wide: Any, due: bool) -> Group:
        n, m = sorted(shape)
        scales = 1, m if group["scale_type"] == "channel" else 1
        more = {"projection": (group["rank"], n), "scale": scales, "length": scales, "lengths": scales, "limit": (1, 1)}
        return super().rooms(device, group, shape, wide, due) | more

    def projection(self, device: Device, group: Group, g: Any, state: Group, room: Group, t: int, due: bool) -> Any:
        ticket = int(state["seed"]) % _SEEDS, (t - 1) // group["update_proj_gap"]
        device.kernels.normal(ticket, 0.0, group["rank"] ** -0.5, out=room["projection"])
        return room["projection"]

    def move(self, device: Device, group: Group, p: Any, g: Any, projection: Any, state: Group, room: Group) -> None:
        kernels, lr, before = device.kernels, float(group["lr"]), state["norm"].array
        scale, length, lengths, limit = (room[name] for name in ("scale", "length", "lengths", "limit"))
        axes = (0,) if group["scale_type"] == "channel" else (0, 1)
        kernels.norm(room["direction"], axes, 2, out=scale)
        kernels.norm(room["gradient"], axes, 2, out=length)
        kernels.add(length, _EPS, out=length)
        kernels.divide(scale, length, out=scale)
        kernels.norm(g, axes, 2, out=lengths)
        kernels.multiply(lengths, scale, out=lengths)
        kernels.norm(lengths, (0, 1), 2, out=length[:, :1])
        kernels.growth_limit(length[:, :1], before, _GROWTH, out=limit)
        kernels.multiply(length[:, :1], limit, out=before)
        kernels.multiply(scale, limit, out=scale)
        rate = lr * group["scale"] * (-1 if group["maximize"] else 1)
        kernels.scaled_step(p, g, scale, rate, 1 - lr * group["weight_decay"])


def _draw_seed(group: dict[str, Any]) -> None:
    """Take a ticket for each parameter. The first is the group's seed; the others are at its parameters' places after it."""
    if group["params"] and "seed" not in group:
        (seed, calls), *_ = [p.device.generator.ticket() for p in group["params"]]
        group["seed"] = (seed + calls * _APART) % _SEEDS


class APOLLOMini(APOLLO):
    """:class:`APOLLO` of rank 1, with one scale for each matrix: little more memory than SGD.

    Memory: ``4 * (2 * m + 1)`` bytes for a float32 matrix of n rows and m >= n columns, or the reverse: 32 KiB for 4096 x 4096.
    All else as :class:`APOLLO`.
    Price: as :class:`APOLLO`. Do not use when: as :class:`APOLLO`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        rank: int = 1,
        update_proj_gap: int = 200,
        scale: float = 128**0.5,
        scale_type: str = "tensor",
        *,
        maximize: bool = False,
        master_weights: bool = False,
    ) -> None:
        super().__init__(params, **options(locals()))
