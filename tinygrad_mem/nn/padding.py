"""Padding layers: (before, after) for each of the last dimensions, the last first."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ShapeError
from . import functional as F
from .layer import FunctionLayer, ntuple

__all__ = (
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d",
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
)  # fmt: skip


class _Pad(FunctionLayer):
    """Attributes: the padded ``dimensions``, the ``mode`` of ``F.pad``, and the ``value`` if the mode is constant."""

    _shown = ("*padding",)
    mode = "constant"
    value: float | None = None

    def __init_subclass__(cls, *, mode: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.mode = mode or cls.mode

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = ntuple(padding, 2 * self.dimensions)

    def forward(self, input: Tensor) -> Tensor:
        n = self.dimensions
        if self.mode != "constant" and input.ndim not in (n + 1, n + 2):
            raise ShapeError(f"{type(self).__name__}: expected {n + 1}D or {n + 2}D input (got {input.ndim}D input)")
        return F.pad(input, self.padding, self.mode, self.value)


class _ConstantPad(_Pad):
    _shown = ("padding", "value")

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad1d(_ConstantPad, dimensions=1):
    """One value around the last dimension."""


class ConstantPad2d(_ConstantPad, dimensions=2):
    """One value around the last two dimensions."""


class ConstantPad3d(_ConstantPad, dimensions=3):
    """One value around the last three dimensions."""


class _ZeroPad(_Pad):
    value = 0.0


class ZeroPad1d(_ZeroPad, dimensions=1):
    """0 around the last dimension."""


class ZeroPad2d(_ZeroPad, dimensions=2):
    """0 around the last two dimensions."""


class ZeroPad3d(_ZeroPad, dimensions=3):
    """0 around the last three dimensions."""


class ReflectionPad1d(_Pad, dimensions=1, mode="reflect"):
    """Pads with the values inside the border, mirrored, without the border itself."""


class ReflectionPad2d(_Pad, dimensions=2, mode="reflect"):
    """Pads with the values inside the border, mirrored, without the border itself."""


class ReflectionPad3d(_Pad, dimensions=3, mode="reflect"):
    """Pads with the values inside the border, mirrored, without the border itself."""


class ReplicationPad1d(_Pad, dimensions=1, mode="replicate"):
    """The border, repeated."""


class ReplicationPad2d(_Pad, dimensions=2, mode="replicate"):
    """The border, repeated."""


class ReplicationPad3d(_Pad, dimensions=3, mode="replicate"):
    """The border, repeated."""


class CircularPad1d(_Pad, dimensions=1, mode="circular"):
    """Pads with the values inside the opposite border."""


class CircularPad2d(_Pad, dimensions=2, mode="circular"):
    """Pads with the values inside the opposite border."""


class CircularPad3d(_Pad, dimensions=3, mode="circular"):
    """Pads with the values inside the opposite border."""
