"""The Bernoulli distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from ..autograd import Tensor, no_grad
from ..functional import creation, random
from ..functional.loss import binary_cross_entropy_with_logits
from . import constraints
from .distribution import Discrete, broadcast_all, inside, one_of


class Bernoulli(Discrete):
    """Variables that are 1 with a probability, else 0.

    Args:
        probs: the probabilities of 1; or
        logits: their log-odds.

    Raises:
        ValueError: both or none is given; ``probs`` is outside of [0, 1], or ``logits`` is nan.
    """

    arg_constraints: ClassVar = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.boolean  # type: ignore[assignment]

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        given = one_of("Bernoulli", probs, logits)
        self.__dict__["logits" if probs is None else "probs"] = given
        super().__init__(given.shape, validate_args=validate_args)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities of 1."""
        return self.logits.sigmoid()

    @cached_property
    def logits(self) -> Tensor:
        """The log-odds of 1, finite."""
        p = inside(self.probs)
        return p.log() - (-p).log1p()

    @property
    def mode(self) -> Tensor:
        """1 if the probability is above one half, 0 if below, nan if equal."""
        return (self.probs >= 0.5).to(self.probs.dtype).masked_fill(self.probs.eq(0.5), float("nan"))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, without a gradient."""
        with no_grad():
            return random.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of each value. Saves: the logits and the value."""
        self._validate_sample(value)
        logits, value = broadcast_all(self.logits, value.to(self.logits.dtype))
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        """``-p * log(p) - (1 - p) * log(1 - p)``."""
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def _values(self) -> Tensor:
        return creation.arange(2, dtype=self._logits_or_probs.dtype, device=self._logits_or_probs.device)
