"""``torch.distributions.constraints``: which values a parameter or a sample may have."""

from __future__ import annotations

from typing import Any


class Constraint:
    """``check(value)`` is a bool tensor: whether each value is allowed; the last ``event_dim`` dimensions go together."""

    event_dim = 0
    is_discrete = False

    def check(self, value: Any) -> Any:
        """bool: True where a value is allowed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__[1:] + "()"


class _Real(Constraint):
    def check(self, value: Any) -> Any:
        return value == value  # not nan


class _GreaterThan(Constraint):
    def __init__(self, lower_bound: float) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Any) -> Any:
        return value > self.lower_bound

    def __repr__(self) -> str:
        return f"GreaterThan(lower_bound={self.lower_bound})"


class _Interval(Constraint):
    def __init__(self, lower_bound: float, upper_bound: float) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)

    def __repr__(self) -> str:
        return f"{type(self).__name__[1:]}(lower_bound={self.lower_bound}, upper_bound={self.upper_bound})"


class _IntegerInterval(_Interval):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class _Boolean(Constraint):
    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value == 0) | (value == 1)


class _Simplex(Constraint):
    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & ((value.sum(-1) - 1).abs() < 1e-6)


class _OneHot(Constraint):
    event_dim, is_discrete = 1, True

    def check(self, value: Any) -> Any:
        return ((value == 0) | (value == 1)).all(-1) & (value.sum(-1) == 1)


class independent(Constraint):
    """A constraint whose last ``reinterpreted_batch_ndims`` dimensions go together."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims  # type: ignore[misc]
        self.is_discrete = base_constraint.is_discrete  # type: ignore[misc]

    def check(self, value: Any) -> Any:
        found = self.base_constraint.check(value)
        return found.reshape(*found.shape[: found.ndim - self.reinterpreted_batch_ndims], -1).all(-1)

    def __repr__(self) -> str:
        return f"IndependentConstraint({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


real, boolean, simplex, one_hot = _Real(), _Boolean(), _Simplex(), _OneHot()
positive, unit_interval = _GreaterThan(0.0), _Interval(0.0, 1.0)
real_vector = independent(real, 1)
greater_than, interval, integer_interval = _GreaterThan, _Interval, _IntegerInterval
