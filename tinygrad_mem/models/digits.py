"""The small CNN of the ``train`` command."""

from __future__ import annotations

from .. import Tensor, nn


class DigitsCNN(nn.Module):
    """Two convolutions with batch norm, pooling, dropout, a linear layer: (N, channels, size, size) -> (N, num_classes)."""

    def __init__(self, num_classes: int = 10, channels: int = 1, size: int = 8, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        self.dropout = nn.Dropout(0.25)
        self.classifier = nn.Linear(2 * width * (size // 4) ** 2, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)  # N, 2 width, size / 4, size / 4
        return self.classifier(self.dropout(x.flatten(1)))
