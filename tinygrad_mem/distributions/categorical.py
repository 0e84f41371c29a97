"""The categorical distribution, of numbers and of one-hot rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

from ..autograd import Size, Tensor, no_grad
from ..dtypes import finfo
from ..functional import creation, random
from ..functional.gather import one_hot
from ..functional.join import broadcast_tensors
from ..functional.reduce import logsumexp
from ..functional.softmax import softmax
from . import constraints
from .distribution import Discrete, inside, one_of


class Categorical(Discrete):
    """Variables that are one of 0 to K - 1.

    Args:
        probs: (..., K) weights, which are divided by their sum; or
        logits: (..., K) unnormalised logarithms of them.

    Raises:
        ValueError: both or none is given; it has no dimension; a weight is negative, a logit is nan.
    """

    arg_constraints: ClassVar = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        given = one_of("Categorical", probs, logits)
        if given.ndim < 1:
            raise ValueError(f"`{'logits' if probs is None else 'probs'}` parameter must be at least one-dimensional.")
        if probs is None:
            self.__dict__["logits"] = given - logsumexp(given, -1, True)
        else:
            self.__dict__["probs"] = given / given.sum(-1, True)
        super().__init__(given.shape[:-1], validate_args=validate_args)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities, which sum to 1."""
        return softmax(self.logits, -1)

    @cached_property
    def logits(self) -> Tensor:
        """The logarithms of the probabilities, finite where they are made of them."""
        return inside(self.probs).log()

    @property
    def _num_events(self) -> int:
        return self._logits_or_probs.shape[-1]

    @property
    def support(self) -> constraints.Constraint:
        """0 to K - 1."""
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def mean(self) -> Tensor:
        """nan: categories have no order."""
        return creation.full(
            self._extended_shape(), math.nan, dtype=self._logits_or_probs.dtype, device=self._logits_or_probs.device
        )

    variance = mean

    @property
    def mode(self) -> Tensor:
        """The most probable category."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, int64, without a gradient."""
        with no_grad():
            drawn = random.multinomial(self.probs.reshape(-1, self._num_events), math.prod(sample_shape), True)
            return drawn.t().reshape((*sample_shape, *self.batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of each category. Saves: the categories."""
        self._validate_sample(value)
        places, logits = broadcast_tensors(value.long().unsqueeze(-1), self.logits)
        return logits.gather(-1, places[..., :1]).squeeze(-1)

    def entropy(self) -> Tensor:
        """``-(probs * logits).sum(-1)``; impossible categories count 0."""
        logits = self.logits.clamp(min=finfo(self.logits.dtype).min)
        return -(logits * self.probs).sum(-1)

    def _values(self) -> Tensor:
        return creation.arange(self._num_events, device=self._logits_or_probs.device)


class OneHotCategorical(Categorical):
    """Variables that are one of K rows with a single 1; arguments as :class:`Categorical`."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(probs, logits, validate_args)
        self._event_shape = Size((self._num_events,))

    support = constraints.one_hot  # type: ignore[assignment]
    mean, variance = Discrete.mean, Discrete.variance  # not nan: a row has a mean

    @property
    def mode(self) -> Tensor:
        """The most probable row."""
        return one_hot(super().mode, self._num_events).to(self._logits_or_probs.dtype)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws, without a gradient."""
        return one_hot(super().sample(sample_shape), self._num_events).to(self._logits_or_probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the probability of each row."""
        self._validate_sample(value)
        rows, logits = broadcast_tensors(value, self.logits)
        return logits.gather(-1, rows.max(-1)[1].unsqueeze(-1)).squeeze(-1)

    def _values(self) -> Tensor:
        return creation.eye(self._num_events, dtype=self._logits_or_probs.dtype, device=self._logits_or_probs.device)
