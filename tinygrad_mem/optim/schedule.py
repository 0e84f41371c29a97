"""The base of every learning-rate schedule, and the schedules made of others or of a metric."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..interrupts import all_or_nothing, uninterruptible
from . import loading
from .optimizer import Optimizer


def check_optimizer(optimizer: Any) -> None:
    """Check that ``optimizer`` is an :class:`Optimizer`."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def per_group(name: str, optimizer: Optimizer, value: Any) -> list:
    """One value for each parameter group, from one number for all of them or from a list."""
    if not isinstance(value, (list, tuple)):
        return [value] * len(optimizer.param_groups)
    if len(value) != len(optimizer.param_groups):
        raise ValueError(f"{name} must have the same length as optimizer.param_groups: {len(value)}")
    return list(value)


class LRScheduler:
    """Sets each group's ``lr`` when it is made and at every :meth:`step`, which comes after the optimizer's.

    A subclass computes in :meth:`get_lr` the rates at ``last_epoch``, either from the rates before (so that schedules can be
    chained) or from ``base_lrs``.

    Raises:
        TypeError: ``optimizer`` is not an optimizer.
        KeyError: ``last_epoch`` says that training resumes, but the groups have no ``initial_lr``.
    """

    optimizer: Optimizer
    last_epoch: int
    base_lrs: list[float]
    _step_count = 0
    _is_initial = False  # True only in the first step, which a schedule takes when it is made
    _last_lr: list[float]
    _unsaved: tuple[str, ...] = ("optimizer",)  # attributes that a state dict does not have

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with last_epoch >= 0: "
                    "load the optimizer's state dict first"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count, self._is_initial = 0, True
        try:
            self.step()
        finally:
            self._is_initial = False

    @uninterruptible
    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, and set the rates."""
        optimizer = self.optimizer
        ahead = self._step_count == 1 and epoch is None and type(optimizer).step is Optimizer.step
        if ahead and not optimizer._opt_called:
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first value of the schedule is skipped. "
                "Call them in the opposite order.",
                stacklevel=4,
            )
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed = getattr(self, "_get_closed_form_lr", None)
        self._set(self.get_lr() if epoch is None or closed is None else closed())

    def _set(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """The rates at ``last_epoch``, one for each group."""
        raise NotImplementedError(f"{type(self).__name__} does not define its rates: write get_lr()")

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self._last_lr

    def _rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key not in self._unsaved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a schedule of the same class. The rates themselves are in the optimizer's state.

        Raises:
            TypeError: it is not a dict, or a value has another type than the schedule's; nothing was changed.
            ValueError: a list has another length, or a key of a composed schedule is missing; nothing was changed.
        """
        self._check_state(state_dict)
        with all_or_nothing(*self._parts()):  # a user's subclass may raise
            self._take(state_dict)

    def _parts(self) -> list[Any]:
        """The attributes that :meth:`load_state_dict` changes."""
        return [self]

    def _check_state(self, state_dict: Any) -> None:
        known = type(self).__module__.startswith(f"{__package__}.")  # classes of others may keep anything
        loading.of_schedule(type(self).__name__, state_dict, LRScheduler.state_dict(self) if known else {})

    def _take(self, state_dict: dict[str, Any]) -> None:
        for key, value in state_dict.items():
            if key not in self._unsaved:  # milestones are a Counter, and a file gives a dict
                self.__dict__[key] = Counter(value) if isinstance(self.__dict__.get(key), Counter) else value


def attributes_of(f: Any) -> dict[str, Any] | None:
    """The attributes of a callable object, which are saved; ``None`` for a plain function, which is not."""
    return None if hasattr(f, "__code__") else getattr(f, "__dict__", None)


class _Composed(LRScheduler):
    """A schedule made of others. Its state includes theirs."""

    _schedulers: Sequence[Any]
    _unsaved = ("optimizer", "_schedulers")

    def _check(self, optimizer: Optimizer, schedulers: Sequence[Any], what: str) -> None:
        name = type(self).__name__
        if not schedulers:
            raise ValueError(f"{name} expects at least one scheduler{what}, but got no scheduler.")
        for index, scheduler in enumerate(schedulers):
            if not hasattr(scheduler, "optimizer"):
                raise TypeError(f"{name} at index {index} should have `optimizer` as its attribute.")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{name} does not support `ReduceLROnPlateau` scheduler as it requires additional kwargs to be specified "
                    f"when calling `step`, but got one at index {index} in the given schedulers sequence."
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{name} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {index}, which has another"
                )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def _check_state(self, state_dict: Any) -> None:
        super()._check_state(state_dict)
        loading.mapping(f"{type(self).__name__}.load_state_dict", state_dict, ("_schedulers",))
        loading.like(
            f"{type(self).__name__}.load_state_dict: '_schedulers'", state_dict["_schedulers"], [{}] * len(self._schedulers)
        )
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler._check_state(state)

    def _parts(self) -> list[Any]:
        return [self, *[part for scheduler in self._schedulers for part in scheduler._parts()]]

    def _take(self, state_dict: dict[str, Any]) -> None:
        super()._take(state_dict)
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_Composed):
    """One schedule after the other: at each milestone the next one begins, at its own epoch 0.

    Raises:
        ValueError: no schedulers, of other optimizers, or not one more than milestones.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self._check(optimizer, schedulers, "")
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of milestone "
                f"points, but got number of schedulers {len(schedulers)} and the number of milestones to be equal to "
                f"{len(milestones)}"
            )
        self.optimizer = optimizer
        self._schedulers, self._milestones = schedulers, milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:  # each schedule set its first rate when it was made: take that back
            group["lr"] = group["initial_lr"]
        _undo(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    @uninterruptible
    def step(self) -> None:  # type: ignore[override]
        """Go to the next epoch and set the rates."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo(scheduler: Any) -> None:
    """Take back the first step of a schedule, or of all schedules that it is made of."""
    if isinstance(scheduler, _Composed):
        for each in scheduler._schedulers:
            _undo(each)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_Composed):
    """Several schedules at once: every step steps each, in order.

    Raises:
        ValueError: no schedulers, or of different optimizers.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self._check(optimizer or (schedulers[0].optimizer if schedulers else None), schedulers, " to be chained")  # type: ignore[arg-type]
        self.optimizer = optimizer or schedulers[0].optimizer
        self._schedulers = schedulers
        self._last_lr = self._rates()

    @uninterruptible
    def step(self) -> None:  # type: ignore[override]
        """Step every schedule."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._rates()


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rates by ``factor`` when ``step(metric)`` saw no improvement for more than ``patience`` epochs.

    Raises:
        ValueError: ``factor`` is not below 1, or the mode is unknown.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError(f"Factor should be < 1.0, found {factor}.")
        check_optimizer(optimizer)
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown! Use 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown! Use 'rel' or 'abs'")
        if isinstance(min_lr, (list, tuple)) and len(min_lr) != len(optimizer.param_groups):
            raise ValueError(f"expected {len(optimizer.param_groups)} min_lrs, got {len(min_lr)}")
        self.optimizer, self.factor, self.patience = optimizer, factor, patience
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.cooldown, self.eps, self.last_epoch = cooldown, eps, 0
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self._last_lr = self._rates()
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = 0

    @property
    def in_cooldown(self) -> bool:
        """True if a reduction was so recent that bad epochs are not counted yet."""
        return self.cooldown_counter > 0

    def _is_better(self, found: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            bound = self.best * (1 + sign * self.threshold)
        else:
            bound = self.best + sign * self.threshold
        return found > bound if self.mode == "max" else found < bound

    @uninterruptible
    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Give it the metric of one more epoch: a number, or a tensor of one element."""
        found = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(found):
            self.best, self.num_bad_epochs = found, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._rates()

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"The number of param groups in the `optimizer` ({len(groups)}) differs from when `ReduceLROnPlateau` was "
                    f"initialized ({len(self.min_lrs)}). Set the `min_lrs` field to one rate a group."
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, low in zip(groups, self.min_lrs, strict=True):
            before = float(group["lr"])
            after = max(before * self.factor, low)
            if before - after > self.eps:
                group["lr"] = after
