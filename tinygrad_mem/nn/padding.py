"""Padding layers: (before, after) for each of the last dimensions, the last first."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ShapeError
from . import functional as F
from .module import Module
from .sizes import ntuple

__all__ = (
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
)  # fmt: skip


class _Pad(Module):
    """Attributes: the padded ``dimensions``, the ``mode`` of ``F.pad``, and the ``value`` if the mode is constant."""

    dimensions: int
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = ntuple(padding, 2 * self.dimensions)

    def forward(self, input: Tensor) -> Tensor:
        n = self.dimensions
        if self.mode != "constant" and input.ndim not in (n + 1, n + 2):
            raise ShapeError(f"{type(self).__name__}: expected {n + 1}D or {n + 2}D input (got {input.ndim}D input)")
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """One value around the last dimension."""

    dimensions = 1


class ConstantPad2d(_ConstantPad):
    """One value around the last two dimensions."""

    dimensions = 2


class ConstantPad3d(_ConstantPad):
    """One value around the last three dimensions."""

    dimensions = 3


class ZeroPad1d(_Pad):
    """0 around the last dimension."""

    dimensions, value = 1, 0.0


class ZeroPad2d(_Pad):
    """0 around the last two dimensions."""

    dimensions, value = 2, 0.0


class ZeroPad3d(_Pad):
    """0 around the last three dimensions."""

    dimensions, value = 3, 0.0


class ReflectionPad1d(_Pad):
    """Pads with the values inside the border, mirrored, without the border itself."""

    dimensions, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Pads with the values inside the border, mirrored, without the border itself."""

    dimensions, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """Pads with the values inside the border, mirrored, without the border itself."""

    dimensions, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The border, repeated."""

    dimensions, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The border, repeated."""

    dimensions, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The border, repeated."""

    dimensions, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """Pads with the values inside the opposite border."""

    dimensions, mode = 1, "circular"


class CircularPad2d(_Pad):
    """Pads with the values inside the opposite border."""

    dimensions, mode = 2, "circular"


class CircularPad3d(_Pad):
    """Pads with the values inside the opposite border."""

    dimensions, mode = 3, "circular"
