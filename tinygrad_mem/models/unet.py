"""U-Net: maps of every resolution on the way down are kept for the way up.

Source: Ronneberger, Fischer and Brox, *U-Net: Convolutional networks for biomedical image segmentation*, 2015; with padding, so
that the output is as large as the input, and batch norm, as it is mostly used today.
"""

from __future__ import annotations

from itertools import pairwise

from .. import Tensor, cat, nn


def _double(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """(N, channels, H, W) -> (N, num_classes, H, W); H and W are multiples of 2 to the ``depth``."""

    def __init__(self, channels: int = 3, num_classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.inc = _double(channels, width)
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise(widths))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in reversed(widths[:-1]))
        self.join = nn.ModuleList(_double(2 * a, a) for a in reversed(widths[:-1]))
        self.outc = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inc(x)
        kept = []
        for down in self.down:
            kept.append(x)
            x = down(self.pool(x))
        for up, join in zip(self.up, self.join, strict=True):
            x = join(cat([kept.pop(), up(x)], 1))
        return self.outc(x)


def unet(num_classes: int = 2) -> UNet:
    """31,037,698 parameters."""
    return UNet(num_classes=num_classes)
