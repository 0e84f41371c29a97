"""The base of GaLore and APOLLO, which keep Adam's moments of a projected gradient: of a few rows instead of all."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError
from .adam import adamw_update
from .optimizer import Optimizer
from .state import StateArray, bytes_of, cut, has_master, tick

Group = dict[str, Any]
"""Values by their names: a group's options, a parameter's state, arrays of the workspace."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Projected(Optimizer):
    """The base of both: matrices of more than ``rank`` rows and columns are projected, and AdamW updates all others.

    Each matrix is looked at with its n rows not longer than its m columns: as it is, or turned.
    """

    needs_whole = True
    arrays: tuple[str, ...] = MOMENTS

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        for name in ("rank", "update_proj_gap"):
            if not (isinstance(group[name], int) and group[name] > 0):
                raise ArgumentError(f"{type(self).__name__}: {name} should be a whole number above 0, found {group[name]!r}")

    def kept(self, group: dict[str, Any], p: Tensor) -> dict[str, StateArray]:
        if not is_projected(group, p):
            kept = super().kept(group, p)
            return {name: kept[name] for name in MOMENTS}
        return {name: StateArray((group["rank"], max(p.array.shape)), arithmetic(p.dtype)) for name in MOMENTS}

    def rooms(self, device: Device, group: Group, shape: tuple[int, ...], wide: Any, due: bool) -> Group:
        """The shapes of what a step on a matrix needs, by name; ``due``: it renews the projection."""
        few = group["rank"], max(shape)
        return {"gradient": few, "direction": few}

    def reads(self, p: Any, g: Any, wide: Any) -> bool:
        """True if products can take the gradient, and write the parameter, where they are."""
        return is_plain(g, wide)

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        if not is_projected(group, p):
            return 0
        state, wide = self.state.get(p, {}), arithmetic(p.dtype)
        first = any(state.get(name) is None for name in self.arrays)
        shapes = self.rooms(device, group, p.array.shape, wide, _is_due(group, first, state.get("step", 0)))
        assert isinstance(p._grad, Tensor)
        written = None if has_master(group, p) else p.array
        copied = [] if self.reads(written, p._grad.array, wide) else [p.array.shape]
        return bytes_of(wide, *shapes.values(), *copied)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        m, v = (state[name].array for name in MOMENTS)
        rates = t, group["betas"], group["eps"], group["maximize"]
        if not is_projected(group, p):
            adamw_update(device, p, g, m, v, float(group["lr"]), group["weight_decay"], *rates)
            return
        due, turned = _is_due(group, first, t - 1), p.shape[0] > p.shape[1]
        shapes = self.rooms(device, group, p.shape, m.dtype, due)
        if not self.reads(p, g, m.dtype):
            shapes["copy"] = p.shape
        room = dict(zip(shapes, cut(self.work, m.dtype, *shapes.values()), strict=True))
        if "copy" in room:
            device.kernels.copy(g, out=room["copy"])
        matrix = room.get("copy", g)
        p, g, matrix = (a.T if turned else a for a in (p, g, matrix))
        projection = self.projection(device, group, matrix, state, room, t, due)
        device.kernels.matmul(projection, matrix, None, out=room["gradient"])
        device.kernels.fill(0, out=room["direction"])
        adamw_update(device, room["direction"], room["gradient"], m, v, 1.0, 0.0, *rates)  # minus Adam's step
        self.move(device, group, p, g, projection, state, room)

    def projection(self, device: Device, group: Group, g: Any, state: Group, room: Group, t: int, due: bool) -> Any:
        """The matrix of (rank, n) that projects the gradient ``g`` of (n, m)."""
        raise NotImplementedError

    def move(self, device: Device, group: Group, p: Any, g: Any, projection: Any, state: Group, room: Group) -> None:
        """Update ``p``, of (n, m), by the direction in the room, of (rank, m)."""
        raise NotImplementedError


def is_projected(group: dict[str, Any], p: Any) -> bool:
    return p.ndim == 2 and min(p.shape) > group["rank"]


def _is_due(group: dict[str, Any], first: bool, steps: int) -> bool:
    return first or steps % group["update_proj_gap"] == 0


def is_plain(a: Any, wide: Any) -> bool:
    return a.dtype == wide and a.flags.c_contiguous
