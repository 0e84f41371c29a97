"""Dimensions of a batch that belong to one event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd import Tensor
from . import constraints
from .distribution import Distribution


class Independent(Distribution):
    """A distribution whose last batch dimensions belong to one event: their log-probabilities are added.

    ``Independent(Normal(loc, scale), 1)`` is a normal vector with a diagonal covariance.

    Args:
        reinterpreted_batch_ndims: how many dimensions.

    Raises:
        ValueError: the base has fewer.
    """

    def __init__(self, base_distribution: Any, reinterpreted_batch_ndims: int, validate_args: bool | None = None) -> None:
        batch = base_distribution.batch_shape
        if reinterpreted_batch_ndims > len(batch):
            raise ValueError(
                "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape), "
                f"actual {reinterpreted_batch_ndims} vs {len(batch)}"
            )
        kept = len(batch) - reinterpreted_batch_ndims
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        super().__init__(batch[:kept], (*batch[kept:], *base_distribution.event_shape), validate_args)

    def _expand(self, new: Any, batch_shape: tuple[int, ...]) -> None:
        joined = self.event_shape[: self.reinterpreted_batch_ndims]
        new.base_dist = self.base_dist.expand((*batch_shape, *joined))
        new.reinterpreted_batch_ndims = self.reinterpreted_batch_ndims

    @property
    def has_rsample(self) -> bool:  # type: ignore[override]
        """True if the base distribution has ``rsample``."""
        return self.base_dist.has_rsample

    @property
    def support(self) -> constraints.Constraint:
        """The base's, of whole events."""
        found = self.base_dist.support
        return constraints.independent(found, self.reinterpreted_batch_ndims) if self.reinterpreted_batch_ndims else found

    @property
    def mean(self) -> Tensor:
        """The base's."""
        return self.base_dist.mean

    @property
    def mode(self) -> Tensor:
        """The base's."""
        return self.base_dist.mode

    @property
    def variance(self) -> Tensor:
        """The base's."""
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, without a gradient."""
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws as a function of the parameters."""
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """The base's, added over the dimensions of an event."""
        return self._sum_events(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        """The base's, added over the dimensions of an event."""
        return self._sum_events(self.base_dist.entropy())

    def _sum_events(self, values: Tensor) -> Tensor:
        n = self.reinterpreted_batch_ndims
        return values.sum(tuple(range(-n, 0))) if n else values

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"
