"""Dropout layers: nothing happens in evaluation."""

from __future__ import annotations

from ..autograd.tensor import Tensor
from . import functional as F
from .layer import FunctionLayer

__all__ = ("AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d")


class _Dropout(FunctionLayer):
    """The base of dropouts. They save nothing: backward draws the mask again.

    Args:
        p: the probability of a zero.
        inplace: write over the input.

    Raises:
        ValueError: ``p`` is not a probability.
    """

    _shown = ("p", "inplace")

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, self.p, self.training, self.inplace)


class Dropout(_Dropout, function=F.dropout):
    """Zeros with probability ``p``, the rest divided by ``1 - p``."""


class Dropout1d(_Dropout, function=F.dropout1d):
    """Whole channels of (N, C, L) or (C, L)."""


class Dropout2d(_Dropout, function=F.dropout2d):
    """Whole channels of (N, C, H, W)."""


class Dropout3d(_Dropout, function=F.dropout3d):
    """Whole channels of (N, C, D, H, W) or (C, D, H, W)."""


class AlphaDropout(_Dropout):
    """Dropout for SELU: it keeps mean 0 and variance 1."""

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training)
