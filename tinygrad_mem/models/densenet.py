"""DenseNet: every layer reads the maps of all before it.

Source: Huang et al., *Densely connected convolutional networks*, CVPR 2017.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .. import Tensor, cat, nn


class DenseLayer(nn.Module):
    """Norm, ReLU, 1 x 1 to four times the growth, norm, ReLU, 3 x 3 to the growth."""

    def __init__(self, channels: int, growth: int, widen: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(channels, widen * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(widen * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(widen * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        x = self.conv1(self.relu1(self.norm1(cat(list(maps), 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Layers that read the block's input and each other's output."""

    def __init__(self, layers: int, channels: int, growth: int, widen: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(channels + i * growth, growth, widen))

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.values():
            maps.append(layer(maps))
        return cat(maps, 1)


class Transition(nn.Sequential):
    """Halves the channels and the resolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.pool = nn.AvgPool2d(2, 2)


class DenseNet(nn.Module):
    """(N, 3, 224, 224) -> (N, num_classes)."""

    def __init__(self, layers: Sequence[int], growth: int = 32, widen: int = 4, num_classes: int = 1000) -> None:
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential(
            OrderedDict(
                conv0=nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
                norm0=nn.BatchNorm2d(channels),
                relu0=nn.ReLU(inplace=True),
                pool0=nn.MaxPool2d(3, stride=2, padding=1),
            )
        )
        for i, count in enumerate(layers, 1):
            self.features.add_module(f"denseblock{i}", DenseBlock(count, channels, growth, widen))
            channels += count * growth
            if i < len(layers):
                self.features.add_module(f"transition{i}", Transition(channels))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu(self.features(x), inplace=True)  # N, channels, 7, 7
        return self.classifier(x.mean((2, 3)))


def densenet121(num_classes: int = 1000) -> DenseNet:
    """7,978,856 parameters."""
    return DenseNet((6, 12, 24, 16), num_classes=num_classes)
