"""MobileNetV2: depthwise convolutions between narrow maps.

Source: Sandler et al., *MobileNetV2: Inverted residuals and linear bottlenecks*, CVPR 2018.
"""

from __future__ import annotations

from .. import Tensor, nn

# (times wider inside, channels, blocks, stride of the first)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _conv(channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Widen (1 x 1), filter each channel (3 x 3), narrow (1 x 1); the shortcut joins the narrow maps."""

    def __init__(self, channels: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        inside = channels * expand
        self.shortcut = stride == 1 and channels == width
        layers: list[nn.Module] = [] if expand == 1 else [_conv(channels, inside, 1)]
        layers += [_conv(inside, inside, 3, stride, inside), nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """(N, 3, 224, 224) -> (N, num_classes)."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv(3, 32, 3, 2)]
        channels = 32
        for expand, width, blocks, stride in STAGES:
            for i in range(blocks):
                layers.append(InvertedResidual(channels, width, stride if i == 0 else 1, expand))
                channels = width
        layers.append(_conv(channels, 1280, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(1280, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)  # N, 1280, 7, 7
        return self.classifier(x.mean((2, 3)))


def mobilenet_v2(num_classes: int = 1000) -> MobileNetV2:
    """3,504,872 parameters."""
    return MobileNetV2(num_classes)
