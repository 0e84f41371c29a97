"""Residual networks, for 32 x 32 images (6 n + 2 layers) and for 224 x 224 images.

Source: He et al., *Deep residual learning for image recognition*, CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import Tensor, nn


def _start(network: nn.Module) -> None:
    """The first weights of convolutions: the variance of the backward stays."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class CifarBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or channels != width:
            projection = nn.Conv2d(channels, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class CifarResNet(nn.Module):
    """(N, 3, 32, 32) -> (N, num_classes): three stages of ``blocks`` blocks, 16, 32 and 64 channels wide."""

    def __init__(self, blocks: int, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self._stage(16, 16, 1, blocks)
        self.layer2 = self._stage(16, 32, 2, blocks)
        self.layer3 = self._stage(32, 64, 2, blocks)
        self.linear = nn.Linear(64, num_classes)
        _start(self)

    @staticmethod
    def _stage(channels: int, width: int, stride: int, blocks: int) -> nn.Sequential:
        first = CifarBlock(channels, width, stride)
        return nn.Sequential(first, *[CifarBlock(width, width, 1) for _ in range(blocks - 1)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))  # N, 16, 32, 32
        x = self.layer3(self.layer2(self.layer1(x)))  # N, 64, 8, 8
        return self.linear(x.mean((2, 3)))


class PreActivation(nn.Module):
    """Norm and ReLU before each of three convolutions (1 x 1, 3 x 3, 1 x 1): the shortcut is never touched.

    Source: He et al., *Identity mappings in deep residual networks*, ECCV 2016.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None if stride == 1 and channels == out else nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        y = self.conv2(self.relu(self.bn2(self.conv1(y))))
        return self.conv3(self.relu(self.bn3(y))) + shortcut


class PreActResNet(nn.Module):
    """(N, 3, 32, 32) -> (N, num_classes): three stages of ``blocks`` pre-activation blocks."""

    def __init__(self, blocks: int, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.layer1 = self._stage(16, 16, 1, blocks)
        self.layer2 = self._stage(64, 32, 2, blocks)
        self.layer3 = self._stage(128, 64, 2, blocks)
        self.bn = nn.BatchNorm2d(256)
        self.relu = nn.ReLU(inplace=True)
        self.linear = nn.Linear(256, num_classes)
        _start(self)

    @staticmethod
    def _stage(channels: int, width: int, stride: int, blocks: int) -> nn.Sequential:
        first = PreActivation(channels, width, stride)
        return nn.Sequential(first, *[PreActivation(4 * width, width, 1) for _ in range(blocks - 1)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))  # N, 256, 8, 8
        return self.linear(self.relu(self.bn(x)).mean((2, 3)))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 convolutions around a shortcut, four times as wide outside as inside."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """(N, 3, 224, 224) -> (N, num_classes): four stages, with ``layers`` blocks each."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], layers: Sequence[int], num_classes: int = 1000) -> None:
        super().__init__()
        self.channels = 64
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self._stage(block, 64, layers[0], 1)
        self.layer2 = self._stage(block, 128, layers[1], 2)
        self.layer3 = self._stage(block, 256, layers[2], 2)
        self.layer4 = self._stage(block, 512, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        _start(self)

    def _stage(self, block: type[BasicBlock] | type[Bottleneck], width: int, blocks: int, stride: int) -> nn.Sequential:
        out = width * block.expansion
        downsample = None
        if stride != 1 or self.channels != out:
            downsample = nn.Sequential(nn.Conv2d(self.channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        first = block(self.channels, width, stride, downsample)
        self.channels = out
        return nn.Sequential(first, *[block(out, width, 1, None) for _ in range(blocks - 1)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))  # N, 64, 56, 56
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # N, 512 expansion, 7, 7
        return self.fc(self.avgpool(x).flatten(1))


LAYERS: dict[int, tuple[type[BasicBlock] | type[Bottleneck], tuple[int, ...]]] = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
    152: (Bottleneck, (3, 8, 36, 3)),
}
"""Number of layers -> the kind of block, and how many of them each stage has."""


def resnet(depth: int, num_classes: int = 1000) -> ResNet:
    """18, 34, 50, 101 or 152 layers, for 224 x 224 images."""
    return ResNet(*LAYERS[depth], num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """50 layers, for 224 x 224 images."""
    return resnet(50, num_classes)


def resnet20(num_classes: int = 10) -> CifarResNet:
    """20 layers, for 32 x 32 images; ``CifarResNet(n)`` has 6 n + 2."""
    return CifarResNet(3, num_classes)


def resnet1202(num_classes: int = 10) -> CifarResNet:
    """1,202 layers, for 32 x 32 images."""
    return CifarResNet(200, num_classes)


def resnet1001(num_classes: int = 10) -> PreActResNet:
    """1,001 layers, for 32 x 32 images; 10.3 million parameters."""
    return PreActResNet(111, num_classes)
