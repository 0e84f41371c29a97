"""LeNet-5, with ReLU and max pooling. Source: LeCun et al., *Gradient-based learning applied to document recognition*, 1998."""

from __future__ import annotations

from .. import Tensor, nn
from ..nn import functional as F


class LeNet(nn.Module):
    """(N, channels, 28, 28) -> (N, num_classes)."""

    def __init__(self, num_classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # N, 6, 14, 14
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # N, 16, 5, 5
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        return self.fc3(x)
