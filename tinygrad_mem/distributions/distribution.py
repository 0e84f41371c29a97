"""The base of all distributions: shapes of a batch and of an event, validation, drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Number
from typing import Any, ClassVar, Self

from ..autograd import Size, Tensor, no_grad
from ..dtypes import finfo, get_default_dtype
from ..functional import creation
from ..functional.join import broadcast_tensors
from .constraints import Constraint


class Distribution:
    """A random variable, or a batch of independent ones.

    A sample has the shape ``sample_shape + batch_shape + event_shape``.

    Args:
        validate_args: check parameters, and the values given to :meth:`log_prob`; by default on, see
            :meth:`set_default_validate_args`. On device ``meta`` the check takes its bytes, and refuses nothing.

    Raises:
        ValueError: a parameter does not satisfy its constraint.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample = False
    has_enumerate_support = False
    _validate_args = __debug__

    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        self._batch_shape, self._event_shape = Size(batch_shape), Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            for name, constraint in self.arg_constraints.items():
                if name in self.__dict__:  # probs or logits, whichever was given
                    self._check_parameter(name, self.__dict__[name], constraint)

    def _check_parameter(self, name: str, value: Tensor, constraint: Constraint) -> None:
        if _breaks(constraint, value):
            raise ValueError(
                f"Expected parameter {name} (Tensor of shape {tuple(value.shape)}) of distribution {self!r} to satisfy the "
                f"constraint {constraint!r}, but found invalid values:\n{value}"
            )

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Set whether distributions check their arguments by default."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: expected True or False, found {value!r}")
        Distribution._validate_args = value

    @property
    def batch_shape(self) -> Size:
        """The shape of the parameters: one independent variable for each element."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one draw of one variable."""
        return self._event_shape

    @property
    def support(self) -> Constraint:
        """The values that can be drawn."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The expected value."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The expected squared distance from the mean."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw as a function of the parameters, so that gradients reach them."""
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of each value."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of less than each value."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`cdf`."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a first dimension."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """The expected ``-log_prob``, in nats."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """``exp(entropy)``."""
        return self.entropy().exp()

    def expand(self, batch_shape: Sequence[int]) -> Self:
        """The same variables, expanded to a larger batch without memory."""
        new: Any = object.__new__(type(self))
        new._validate_args, new._event_shape = self._validate_args, self._event_shape
        new._batch_shape = Size(batch_shape)
        self._expand(new, tuple(batch_shape))
        return new

    def _expand(self, new: Any, batch_shape: tuple[int, ...]) -> None:
        """Give ``new`` the parameters of this one, expanded to ``batch_shape``."""
        for name, constraint in self.arg_constraints.items():
            if name in self.__dict__:
                value = self.__dict__[name]
                event = value.shape[value.ndim - constraint.event_dim :]
                new.__dict__[name] = value.expand((*batch_shape, *event))

    def _extended_shape(self, sample_shape: Sequence[int] = ()) -> Size:
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _validate_sample(self, value: Any) -> None:
        """Refuse values outside of the support, if arguments are checked.

        Raises:
            ValueError: it is no tensor, does not broadcast to the batch, or has values outside of the support.
        """
        if not self._validate_args:
            return
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        first = value.ndim - len(self.event_shape)
        if first < 0 or tuple(value.shape[first:]) != tuple(self.event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: found {list(value.shape)}, {list(self.event_shape)}"
            )
        expected = (*self.batch_shape, *self.event_shape)
        for found, wanted in zip(reversed(value.shape), reversed(expected), strict=False):
            if 1 not in (found, wanted) and found != wanted:
                raise ValueError(
                    f"Value is not broadcastable with batch_shape+event_shape: {list(value.shape)} vs {list(expected)}"
                )
        if _breaks(self.support, value):
            raise ValueError(
                f"Expected value argument (Tensor of shape {tuple(value.shape)}) to be within the support ({self.support!r}) "
                f"of the distribution {self!r}, but found invalid values:\n{value}"
            )

    def __repr__(self) -> str:
        given = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        text = ", ".join(f"{n}: {p if p.numel() == 1 and not p.is_meta else p.shape}" for n, p in given.items())
        return f"{type(self).__name__}({text})"


class Discrete(Distribution):
    """A distribution over a few values, with either their probabilities (``probs``) or their logarithms (``logits``) given."""

    has_enumerate_support = True
    probs: Any

    @property
    def mean(self) -> Tensor:
        """``probs``."""
        return self.probs

    @property
    def variance(self) -> Tensor:
        """``probs * (1 - probs)``."""
        return self.probs * (1 - self.probs)

    @property
    def _logits_or_probs(self) -> Tensor:
        return self.__dict__["logits"] if "logits" in self.__dict__ else self.__dict__["probs"]

    @property
    def param_shape(self) -> Size:
        """The shape of the parameter that was given."""
        return self._logits_or_probs.shape

    def _values(self) -> Tensor:
        """All values, along a first dimension."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values, along a first dimension; ``expand`` repeats them over the batch."""
        values = self._values()
        count, *event = values.shape
        values = values.view(count, *[1] * len(self.batch_shape), *event)
        return values.expand(count, *self.batch_shape, *event) if expand else values


def _breaks(constraint: Constraint, value: Tensor) -> bool:
    with no_grad():
        allowed = constraint.check(value).all()
    return not value.is_meta and not bool(allowed)


def broadcast_all(*values: Any) -> list[Tensor]:
    """Broadcast tensors and numbers to one shape; numbers take the dtype and device of the first tensor.

    Raises:
        ValueError: one is neither.
    """
    if not all(isinstance(v, (Tensor, Number)) for v in values):
        raise ValueError("Input arguments must all be instances of Number, Tensor or objects implementing __torch_function__.")
    tensors = [v for v in values if isinstance(v, Tensor)]
    dtype = tensors[0].dtype if tensors else get_default_dtype()
    device = tensors[0].device if tensors else None
    made = [v if isinstance(v, Tensor) else creation.tensor(v, dtype=dtype, device=device) for v in values]
    return list(broadcast_tensors(*made)) if tensors else made


def one_of(name: str, probs: Any, logits: Any) -> Any:
    """The one of the two that was given, as a tensor. Raises: ValueError: both or none was given."""
    if (probs is None) == (logits is None):
        raise ValueError(f"{name}: Either `probs` or `logits` must be specified, but not both.")
    return broadcast_all(logits if probs is None else probs)[0]


def inside(probs: Tensor) -> Tensor:
    """Probabilities moved away from 0 and 1 by the dtype's eps, so that they have logarithms."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
