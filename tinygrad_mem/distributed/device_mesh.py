"""A mesh: the ranks as a grid with named dimensions, and a process group along each line of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autograd.shape import normalize_dim
from ..errors import ArgumentError, MissingKeyError, NotOfferedError
from .fake import note_mesh
from .group import ProcessGroup
from .groups import own_group


def init_device_mesh(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> DeviceMesh:
    """Put all ranks into a grid. Every process must call it.

    Args:
        device_type: of the tensors: ``"cpu"``, ``"cuda"`` or ``"meta"``.
        mesh_shape: the sizes of the dimensions; the last one has neighbouring ranks.
        mesh_dim_names: names of the dimensions, for ``mesh["dp"]``.

    Raises:
        ArgumentError: the grid does not have as many places as there are ranks; names are missing or come twice.

    >>> mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    >>> mesh["tp"].get_group()
    """
    shape = tuple(mesh_shape)
    if mesh_dim_names is not None and len(set(mesh_dim_names)) != len(mesh_dim_names):
        raise ArgumentError(f"Each mesh_dim_name must be unique. Found repeated mesh_dim_name in {mesh_dim_names}")
    if mesh_dim_names is not None and len(mesh_dim_names) != len(shape):
        raise ArgumentError(
            f"mesh_shape and mesh_dim_names should have same length! Found len(mesh_dim_names): {len(mesh_dim_names)} and "
            f"len(mesh_shape): {len(shape)}."
        )
    world = own_group("init_device_mesh")
    if math.prod(shape) != world.size():
        raise ArgumentError(f"init_device_mesh: a mesh of {shape} has {math.prod(shape)} places, the world has {world.size()}")
    return DeviceMesh(device_type, np.arange(world.size()).reshape(shape), mesh_dim_names=mesh_dim_names)


class DeviceMesh:
    """A grid of ranks. The part of it along one dimension, through this rank, is ``mesh["name"]``.

    Attributes:
        mesh: the ranks, a NumPy array.
        mesh_dim_names: the names of its dimensions, if they have names.
    """

    def __init__(
        self, device_type: str, mesh: Any, *, mesh_dim_names: tuple[str, ...] | None = None, _groups: list | None = None
    ) -> None:
        self.device_type, self.mesh = device_type, np.asarray(mesh)
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        world = own_group("DeviceMesh")
        self._rank, self._world = world._rank, world
        if _groups is None:
            note_mesh(self.mesh_dim_names or tuple(f"dimension {axis}" for axis in range(self.ndim)), self.mesh)
        self._groups = [self._along(world, axis) for axis in range(self.ndim)] if _groups is None else _groups

    def _along(self, world: ProcessGroup, axis: int) -> ProcessGroup | None:
        """This rank's group along a dimension. All ranks make the groups of all lines, at once."""
        lines = np.moveaxis(self.mesh, axis, -1).reshape(-1, self.mesh.shape[axis])
        return world if len(lines) == 1 and lines.size == world.size() else world.split(lines.tolist())

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.mesh.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return self.mesh.shape

    def size(self, mesh_dim: int | None = None) -> int:
        """The number of its ranks; with ``mesh_dim``, of those along that dimension."""
        return self.mesh.size if mesh_dim is None else self.mesh.shape[mesh_dim]

    def get_rank(self) -> int:
        """The rank of this process among all."""
        return self._world.rank()

    def get_coordinate(self) -> list[int] | None:
        """This rank's place along each dimension; ``None`` if it is not in the mesh."""
        return None if self._coordinates() is None else [self.get_local_rank(axis) for axis in range(self.ndim)]

    def _coordinates(self) -> list[int] | None:
        found = np.argwhere(self.mesh == self._rank)
        return found[0].tolist() if len(found) else None

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's place along a dimension, which must be named if there are several."""
        return self.get_group(mesh_dim).rank()

    def get_group(self, mesh_dim: int | str | None = None) -> Any:
        """The process group along a dimension, which must be named if there are several.

        Raises:
            ArgumentError: there are several dimensions and none is named, or this rank is not in the mesh.
            DimensionError, MissingKeyError: the mesh has no such dimension.
        """
        if mesh_dim is None and self.ndim > 1:
            raise ArgumentError(
                f"Found the DeviceMesh have {self.ndim} dimensions. Optional kwarg `mesh_dim` needs to be specified when "
                "device_mesh.ndim > 1. get_all_groups() gives all of them."
            )
        group = self._groups[self._axis(mesh_dim or 0)]
        if group is None:
            raise ArgumentError(f"get_group: rank {self._rank} is not in the mesh {self.mesh.tolist()}")
        return group

    def get_all_groups(self) -> list:
        """The process group along each dimension."""
        return [self.get_group(axis) for axis in range(self.ndim)]

    def _axis(self, dim: int | str) -> int:
        if not isinstance(dim, str):
            return normalize_dim(dim, self.ndim)
        if dim not in (self.mesh_dim_names or ()):
            raise MissingKeyError(
                f"Invalid mesh_dim_name {dim!r} specified. Valid mesh_dim_names are {list(self.mesh_dim_names or ())}."
            )
        return (self.mesh_dim_names or ()).index(dim)

    def __getitem__(self, names: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh along the named dimensions, through this rank."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        axes, here = [self._axis(name) for name in chosen], self._coordinates()
        if here is None:
            raise NotOfferedError(f"mesh[{names!r}]: rank {self._rank} is not in the mesh {self.mesh.tolist()}")
        part = self.mesh[tuple(slice(None) if axis in axes else here[axis] for axis in range(self.ndim))]
        part = part.transpose(np.argsort(np.argsort(axes)))
        return DeviceMesh(self.device_type, part, mesh_dim_names=chosen, _groups=[self._groups[axis] for axis in axes])

    def __repr__(self) -> str:
        return f"DeviceMesh({self.device_type!r}, {self.mesh.tolist()}, mesh_dim_names={self.mesh_dim_names})"
