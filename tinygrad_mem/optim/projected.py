"""The base of GaLore and APOLLO, which keep Adam's moments of a projected gradient: of a few rows instead of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..dtypes import arithmetic
from ..errors import ArgumentError, is_whole
from .adam import adamw_update
from .optimizer import Optimizer
from .state import StateArray, bytes_of, cut, has_master, tick

Group = dict[str, Any]
"""Values by their names: a group's options, a parameter's state, arrays of the workspace."""
MOMENTS = ("exp_avg", "exp_avg_sq")
_TILE = 1024
"""Columns of a gradient that are copied at a time, where products cannot read it."""


class Projected(Optimizer):
    """The base of both: matrices of more than ``rank`` rows and columns are projected, and AdamW updates all others.

    Each matrix is looked at with its n rows not longer than its m columns: as it is, or turned.
    """

    needs_whole = True
    arrays: tuple[str, ...] = MOMENTS

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        for name in ("rank", "update_proj_gap"):
            if not is_whole(group[name]):
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

    def copied(self, shape: tuple[int, ...], due: bool) -> tuple[int]:
        """The size of the copy of a gradient that products cannot read, in numbers: some columns at a time."""
        n, m = sorted(shape)
        return (n * min(m, _TILE),)

    def workspace(self, device: Device, group: dict[str, Any], p: Tensor) -> int:
        if not is_projected(group, p):
            return 0
        state, wide = self.state.get(p, {}), arithmetic(p.dtype)
        first = any(state.get(name) is None for name in self.arrays)
        due = _is_due(group, first, state.get("step", 0))
        shapes = self.rooms(device, group, p.array.shape, wide, due)
        assert isinstance(p._grad, Tensor)
        written = None if has_master(group, p) else p.array
        copied = [] if self.reads(written, p._grad.array, wide) else [self.copied(p.array.shape, due)]
        return bytes_of(wide, *shapes.values(), *copied)

    def update(self, device: Device, group: dict[str, Any], p: Any, g: Any, state: dict[str, Any], first: bool) -> None:
        t = tick(state)
        moments = [state[name].array for name in MOMENTS]
        rates = t, group["betas"], group["eps"], group["maximize"]
        if not is_projected(group, p):
            adamw_update(device, p, g, moments, float(group["lr"]), group["weight_decay"], *rates)
            return
        due, turned = _is_due(group, first, t - 1), p.shape[0] > p.shape[1]
        wide = moments[0].dtype
        shapes = self.rooms(device, group, p.shape, wide, due)
        if not self.reads(p, g, wide):
            shapes["copy"] = self.copied(p.shape, due)
        room = dict(zip(shapes, cut(self.work, wide, *shapes.values()), strict=True))
        p, g = (a.T if turned else a for a in (p, g))
        projection = self.projection(device, group, g, state, room, t, due)
        if "copy" not in room:
            device.kernels.matmul(projection, g, None, out=room["gradient"])
        for columns, tile in tiles(room, g):
            device.kernels.copy(g[:, columns], out=tile)
            device.kernels.matmul(projection, tile, None, out=room["gradient"][:, columns])
        device.kernels.fill(0, out=room["direction"])
        adamw_update(device, room["direction"], room["gradient"], moments, 1.0, 0.0, *rates)  # minus Adam's step
        self.move(device, group, p, g, projection, state, room)

    def projection(self, device: Device, group: Group, g: Any, state: Group, room: Group, t: int, due: bool) -> Any:
        """The matrix of (rank, n) that projects the gradient ``g`` of (n, m)."""
        raise NotImplementedError

    def move(self, device: Device, group: Group, p: Any, g: Any, projection: Any, state: Group, room: Group) -> None:
        """Update ``p``, of (n, m), by the direction in the room, of (rank, m)."""
        raise NotImplementedError


def tiles(room: Group, matrix: Any) -> Iterator[tuple[slice, Any]]:
    """(columns, room for them) of a matrix, as many at a time as ``copy`` has room for, in its order; none without it."""
    n, m = matrix.shape
    width = room["copy"].size // n if "copy" in room else m
    for j in range(0, m if "copy" in room else 0, width):
        columns = slice(j, min(j + width, m))
        count = columns.stop - j
        part = room["copy"][: n * count]
        yield columns, part.reshape(count, n).T if matrix.strides[0] < matrix.strides[1] else part.reshape(n, count)


def is_projected(group: dict[str, Any], p: Any) -> bool:
    return p.ndim == 2 and min(p.shape) > group["rank"]


def _is_due(group: dict[str, Any], first: bool, steps: int) -> bool:
    return first or steps % group["update_proj_gap"] == 0


def is_plain(a: Any, wide: Any) -> bool:
    return a.dtype == wide and a.flags.c_contiguous
