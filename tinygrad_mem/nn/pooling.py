"""Pooling layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.tensor import Tensor
from . import functional as F
from .layer import FunctionLayer, ntuple
from .module import Module

__all__ = (
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "MaxUnpool2d",
)  # fmt: skip

Size = int | Sequence[int]


class _MaxPool(FunctionLayer):
    """The largest value of each window. Saves one byte per window (two or four if it has more than 256 values).

    Args:
        return_indices: also return the positions of the values.
        ceil_mode: windows may extend past the end.
    """

    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        sizes = (self.kernel_size, self.stride, self.padding, self.dilation)
        return self.function(input, *sizes, ceil_mode=self.ceil_mode, return_indices=self.return_indices)


class MaxPool1d(_MaxPool, function=F.max_pool1d):
    """The largest value of each window of (N, C, L)."""


class MaxPool2d(_MaxPool, function=F.max_pool2d):
    """The largest value of each window of (N, C, H, W)."""


class MaxPool3d(_MaxPool, function=F.max_pool3d):
    """The largest value of each window of (N, C, D, H, W)."""


class MaxUnpool2d(Module):
    """Puts values of (N, C, H, W) back at the indices that a max pooling returned; 0 elsewhere."""

    _shown = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = ntuple(kernel_size, 2)
        self.stride = self.kernel_size if stride is None else ntuple(stride, 2)
        self.padding = ntuple(padding, 2)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return F.max_unpool2d(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class AvgPool1d(Module):
    """The mean of each window of (N, C, L). Saves nothing."""

    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = ntuple(kernel_size, 1)
        self.stride = self.kernel_size if stride is None else ntuple(stride, 1)
        self.padding = ntuple(padding, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class _AvgPool(FunctionLayer):
    _shown = ("kernel_size", "stride", "padding")

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        sizes = (self.kernel_size, self.stride, self.padding)
        return self.function(input, *sizes, self.ceil_mode, self.count_include_pad, self.divisor_override)


class AvgPool2d(_AvgPool, function=F.avg_pool2d):
    """The mean of each window of (N, C, H, W). Saves nothing."""


class AvgPool3d(_AvgPool, function=F.avg_pool3d):
    """The mean of each window of (N, C, D, H, W). Saves nothing."""


class _AdaptiveAvgPool(FunctionLayer):
    """Average pooling with windows that give the output a fixed size; ``None`` keeps the input's size."""

    _shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size


class AdaptiveAvgPool1d(_AdaptiveAvgPool, function=F.adaptive_avg_pool1d):
    """Means of windows of (N, C, L), for a fixed output size. Saves nothing."""


class AdaptiveAvgPool2d(_AdaptiveAvgPool, function=F.adaptive_avg_pool2d):
    """Means of windows of (N, C, H, W), for a fixed output size. Saves nothing."""


class AdaptiveAvgPool3d(_AdaptiveAvgPool, function=F.adaptive_avg_pool3d):
    """Means of windows of (N, C, D, H, W), for a fixed output size. Saves nothing."""


class _AdaptiveMaxPool(_AdaptiveAvgPool):
    """Max pooling with windows as in :class:`_AdaptiveAvgPool`; ``return_indices`` also returns the positions."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return self.function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, function=F.adaptive_max_pool1d):
    """Largest values of windows of (N, C, L), for a fixed output size. Saves 8 bytes per value."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool, function=F.adaptive_max_pool2d):
    """Largest values of windows of (N, C, H, W), for a fixed output size. Saves 8 bytes per value."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool, function=F.adaptive_max_pool3d):
    """Largest values of windows of (N, C, D, H, W), for a fixed output size. Saves 8 bytes per value."""
