"""Convolution layers, over inputs (batch, channels, *size) or (channels, *size)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..autograd.tensor import Tensor
from ..functional import creation
from . import functional as F
from . import init
from .layer import FunctionLayer, ntuple
from .parameter import Parameter

__all__ = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Fold", "Unfold")

Size = int | Sequence[int]
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _ConvNd(FunctionLayer):
    """The base of all convolutions: weight (out, in / groups, *kernel), transposed (in, out / groups, *kernel), and bias (out).

    Saves x if the weight requires a gradient, and the weight if x does.

    Args:
        padding: zeros on both sides of each dimension, or "valid" (none), or "same" (the output has the input's size).
        groups: the number of parts of the channels; each part of the output is computed from one part of the input.
        padding_mode: "zeros", "reflect", "replicate" or "circular".

    Raises:
        ValueError: ``groups`` does not divide the channels, or a padding is unknown.
    """

    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        n = self.dimensions
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride, self.dilation = ntuple(kernel_size, n), ntuple(stride, n), ntuple(dilation, n)
        self.padding = padding if isinstance(padding, str) else ntuple(padding, n)
        self.output_padding = (0,) * n
        self._check()
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(creation.empty(first, second // groups, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(creation.empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def _check(self) -> None:
        if self.groups <= 0:
            raise ValueError(f"groups must be a positive integer, found {self.groups}")
        if self.in_channels % self.groups:
            raise ValueError(f"in_channels must be divisible by groups, found {self.in_channels} and {self.groups}")
        if self.out_channels % self.groups:
            raise ValueError(f"out_channels must be divisible by groups, found {self.out_channels} and {self.groups}")
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ValueError(f"Invalid padding string {self.padding!r}, should be one of 'same', 'valid'")
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f"padding='same' is not supported for strided convolutions, found stride {self.stride}")
        if self.padding_mode not in _PADDING_MODES:
            raise ValueError(f"padding_mode must be one of {_PADDING_MODES}, but got padding_mode='{self.padding_mode}'")
        if self.transposed and self.padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def _both_sides(self) -> list[int]:
        """The padding in the form of ``F.pad``: (before, after) of each dimension, the last dimension first."""
        sides: list[int] = []
        for i in reversed(range(self.dimensions)):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                sides += [total // 2, total - total // 2]
            else:
                sides += [0, 0] if self.padding == "valid" else [self.padding[i], self.padding[i]]  # type: ignore[list-item]
        return sides

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._both_sides(), mode=self.padding_mode), 0
        return self.function(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        zeros, ones = (0,) * self.dimensions, (1,) * self.dimensions
        text += self._shown_unless(padding=zeros, dilation=ones, output_padding=zeros, groups=1)
        text += ", bias=False" if self.bias is None else ""
        return text + self._shown_unless(padding_mode="zeros")


class Conv1d(_ConvNd, dimensions=1, function=F.conv1d):
    """Convolution over one dimension: (N, in_channels, L) -> (N, out_channels, L')."""


class Conv2d(_ConvNd, dimensions=2, function=F.conv2d):
    """Convolution over two dimensions: (N, in_channels, H, W) -> (N, out_channels, H', W')."""


class Conv3d(_ConvNd, dimensions=3, function=F.conv3d):
    """Convolution over three dimensions: (N, in_channels, D, H, W) -> (N, out_channels, D', H', W')."""


class _ConvTranspose(_ConvNd):
    """The gradient of a convolution with respect to its input, as a layer.

    Args:
        output_padding: added to the output's size on one side, because strided convolutions map several sizes to one.
    """

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (stride, padding, dilation, groups, bias, padding_mode, device, dtype)
        super().__init__(in_channels, out_channels, kernel_size, *options)
        self.output_padding = ntuple(output_padding, self.dimensions)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self._output_padding(input, output_size)
        return self.function(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding(self, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """The output padding for ``output_size``, one of the sizes that a strided convolution maps to this input."""
        if output_size is None:
            return self.output_padding
        n = self.dimensions
        wanted = list(output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[-n:]
        if len(wanted) != n:
            raise ValueError(
                f"{type(self).__name__}: for {input.ndim}D input, output_size must have {n} or {input.ndim} elements "
                f"(got {len(wanted)})"
            )
        extra = []
        for i, size in enumerate(wanted):
            least = (input.shape[i - n] - 1) * self.stride[i] - 2 * self.padding[i]  # type: ignore[operator]
            least += self.dilation[i] * (self.kernel_size[i] - 1) + 1
            if not least <= size <= least + self.stride[i] - 1:
                raise ValueError(
                    f"requested an output size of {wanted}, but valid sizes range from {least} to {least + self.stride[i] - 1} "
                    f"in dimension {i} (for an input of {list(input.shape[2:])})"
                )
            extra.append(size - least)
        return tuple(extra)


class ConvTranspose1d(_ConvTranspose, dimensions=1, function=F.conv_transpose1d):
    """The gradient of a 1d convolution with respect to its input, as a layer: (N, in_channels, L) -> (N, out_channels, L')."""


class ConvTranspose2d(_ConvTranspose, dimensions=2, function=F.conv_transpose2d):
    """The gradient of a 2d convolution with respect to its input, as a layer."""


class ConvTranspose3d(_ConvTranspose, dimensions=3, function=F.conv_transpose3d):
    """The gradient of a 3d convolution with respect to its input, as a layer."""


class Unfold(FunctionLayer, function=F.unfold):
    """Sliding blocks of an image as columns: (N, C, H, W) -> (N, C * kernel, blocks)."""

    _shown = ("kernel_size", "dilation", "padding", "stride")

    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride


class Fold(FunctionLayer, function=F.fold):
    """Columns added up at their places in an image: (N, C * kernel, blocks) -> (N, C, H, W)."""

    _shown = ("output_size", "kernel_size", "dilation", "padding", "stride")

    def __init__(self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride
