"""Pooling layers: one class a kind; the last letters of a subclass's name choose the function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.tensor import Tensor
from . import functional as F
from .module import Module
from .sizes import ntuple

Size = int | Sequence[int]


class _MaxPool(Module):
    """The largest value of each window.

    Args:
        return_indices: also where it was.
        ceil_mode: windows may hang over the end.
    """

    function: Any

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

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest value of each window of (N, C, L)."""

    function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest value of each window of (N, C, H, W)."""

    function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest value of each window of (N, C, D, H, W)."""

    function = staticmethod(F.max_pool3d)


class _MaxUnpool(Module):
    """The way back from a max pooling that returned its indices."""

    dimensions: int
    function: Any

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        self.kernel_size = ntuple(kernel_size, self.dimensions)
        self.stride = self.kernel_size if stride is None else ntuple(stride, self.dimensions)
        self.padding = ntuple(padding, self.dimensions)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return self.function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """Values of (N, C, L) where they came from, 0 elsewhere."""

    dimensions, function = 1, staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """Values of (N, C, H, W) where they came from, 0 elsewhere."""

    dimensions, function = 2, staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """Values of (N, C, D, H, W) where they came from, 0 elsewhere."""

    dimensions, function = 3, staticmethod(F.max_unpool3d)


class AvgPool1d(Module):
    """The mean of each window of (N, C, L)."""

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

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    function: Any

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

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of (N, C, H, W)."""

    function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of (N, C, D, H, W)."""

    function = staticmethod(F.avg_pool3d)


class _LPPool(Module):
    """The ``norm_type``-norm of each window."""

    function: Any

    def __init__(self, norm_type: float, kernel_size: Size, stride: Size | None = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """The norm of each window of (N, C, L)."""

    function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The norm of each window of (N, C, H, W)."""

    function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The norm of each window of (N, C, D, H, W)."""

    function = staticmethod(F.lp_pool3d)


class _AdaptiveAvgPool(Module):
    """Windows chosen so that the output has a given size; ``None`` keeps the input's."""

    function: Any

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means of (N, C, L), as many as asked."""

    function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means of (N, C, H, W), as many as asked."""

    function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means of (N, C, D, H, W), as many as asked."""

    function = staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_AdaptiveAvgPool):
    """The same windows; ``return_indices`` also says where the largest was."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return self.function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """Largest values of (N, C, L), as many as asked."""

    function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """Largest values of (N, C, H, W), as many as asked."""

    function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """Largest values of (N, C, D, H, W), as many as asked."""

    function = staticmethod(F.adaptive_max_pool3d)
