"""The normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from ..autograd import Tensor, no_grad
from ..functional import random
from . import constraints
from .distribution import HALF_LOG_TWO_PI, Distribution, broadcast_all


class Normal(Distribution):
    """Normal variables.

    Args:
        loc: the means; a tensor or a number, which broadcast.
        scale: the standard deviations.

    :meth:`rsample` saves the noise for the gradient of ``scale``; :meth:`log_prob` saves what its sums and products save.

    Raises:
        ValueError: ``loc`` is nan, or ``scale`` is not positive.

    >>> Normal(0.0, 2.0).entropy()
    tensor(2.1121)
    """

    arg_constraints: ClassVar = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real  # type: ignore[assignment]
    has_rsample = True
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        """``loc``."""
        return self.loc

    mode = mean

    @property
    def stddev(self) -> Tensor:
        """``scale``."""
        return self.scale

    @property
    def variance(self) -> Tensor:
        """``scale ** 2``."""
        return self.scale**2

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, without a gradient."""
        shape = self._extended_shape(sample_shape)
        with no_grad():
            return random.normal(self.loc.expand(shape), self.scale.expand(shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """``loc + noise * scale``: gradients reach both."""
        shape = self._extended_shape(sample_shape)
        noise = random.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + noise * self.scale

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density of each value."""
        self._validate_sample(value)
        return -((value - self.loc) ** 2) / (2 * self.scale**2) - self.scale.log() - HALF_LOG_TWO_PI

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of less than each value."""
        self._validate_sample(value)
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`cdf`: less than this has the probability ``value``."""
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        """``0.5 + 0.5 * log(2 * pi) + log(scale)``."""
        return 0.5 + HALF_LOG_TWO_PI + self.scale.log()
