"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from .. import Tensor, nn


class MLP(nn.Module):
    """Linear layers with ReLU between them: (N, ...) -> (N, sizes[-1]); everything but the first dimension is flattened."""

    def __init__(self, sizes: Sequence[int] = (784, 1024, 1024, 10)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(len(sizes) - 1):
            if i:
                layers.append(nn.ReLU())
            layers.append(nn.Linear(sizes[i], sizes[i + 1]))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))
