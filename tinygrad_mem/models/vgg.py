"""VGG, for 224 x 224 and for 32 x 32 images.

Source: Simonyan & Zisserman, *Very deep convolutional networks for large-scale image recognition*, ICLR 2015.
"""

from __future__ import annotations

from .. import Tensor, nn

# widths of the 3 x 3 convolutions of each resolution; the number is that of layers with weights
CONVOLUTIONS = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    13: ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
    19: ((64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512)),
}


def _features(depth: int, batch_norm: bool, bias: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for stage in CONVOLUTIONS[depth]:
        for width in stage:
            layers.append(nn.Conv2d(channels, width, 3, padding=1, bias=bias))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


def _start(network: nn.Module) -> None:
    """The first weights that VGGs are usually trained from."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.constant_(module.bias, 0)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.constant_(module.bias, 0)


class VGG(nn.Module):
    """(N, 3, 224, 224) -> (N, num_classes): convolutions, and three linear layers that hold most of the parameters."""

    def __init__(self, depth: int = 16, batch_norm: bool = False, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        self.features = _features(depth, batch_norm, bias=True)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, num_classes),
        )
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))  # N, 512, 7, 7
        return self.classifier(x.flatten(1))


class CifarVGG(nn.Module):
    """(N, 3, 32, 32) -> (N, num_classes): one linear layer; convolutions have no bias where batch norm follows.

    With 16 layers and batch norm 14,724,042 parameters.
    """

    def __init__(self, depth: int = 16, batch_norm: bool = True, num_classes: int = 10) -> None:
        super().__init__()
        self.features = _features(depth, batch_norm, bias=not batch_norm)
        self.classifier = nn.Linear(512, num_classes)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def vgg16(num_classes: int = 1000) -> VGG:
    """VGG with 16 layers: 138,357,544 parameters."""
    return VGG(16, False, num_classes)


def vgg16_cifar(num_classes: int = 10) -> CifarVGG:
    """VGG with 16 layers for 32 x 32 images."""
    return CifarVGG(16, False, num_classes)
