"""Layers that change the resolution."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from . import functional as F
from .layer import FunctionLayer
from .module import Module

__all__ = ("ChannelShuffle", "PixelShuffle", "PixelUnshuffle", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d")


class Upsample(Module):
    """A larger (or smaller) image, by size or by factor; see ``F.interpolate``."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor
        if isinstance(scale_factor, tuple):
            self.scale_factor: Any = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None

    def forward(self, input: Tensor) -> Tensor:
        how = self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        return F.interpolate(input, *how)

    def extra_repr(self) -> str:
        how = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Each pixel repeated."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Bilinear interpolation of four pixels; corners stay corners (``align_corners``)."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


class PixelShuffle(FunctionLayer, function=F.pixel_shuffle):
    """Moves channels into space: (N, C r^2, H, W) -> (N, C, H r, W r)."""

    _shown = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(FunctionLayer, function=F.pixel_unshuffle):
    """Moves space into channels: (N, C, H r, W r) -> (N, C r^2, H, W)."""

    _shown = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class ChannelShuffle(FunctionLayer, function=F.channel_shuffle):
    """Interleaves the channels of the groups."""

    _shown = ("groups",)

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups
