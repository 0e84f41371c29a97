"""Learning rates that rise and fall: warm restarts, one cycle, triangles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError, is_whole
from ..interrupts import uninterruptible
from . import loading
from .optimizer import Optimizer
from .schedule import LRScheduler, attributes_of, check_optimizer, per_group


def _open_momentum(optimizer: Optimizer, low: Any, high: Any, fresh: bool) -> bool:
    """Write the bounds and the first value of the momentum into the groups. Returns whether the momentum is Adam's first beta.

    Raises:
        ValueError: the optimizer has neither.
    """
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
    use_beta1 = "betas" in optimizer.defaults
    lows, highs = per_group("base_momentum", optimizer, low), per_group("max_momentum", optimizer, high)
    if fresh:
        for group, base, top in zip(optimizer.param_groups, lows, highs, strict=True):
            _set_momentum(group, top, use_beta1)
            group["max_momentum"], group["base_momentum"] = top, base
    return use_beta1


def _set_momentum(group: dict[str, Any], value: float, use_beta1: bool) -> None:
    if use_beta1:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


class CosineAnnealingWarmRestarts(LRScheduler):
    """Lowers the rate to ``eta_min`` along half a cosine over ``T_0`` epochs, then restarts; each cycle is ``T_mult`` times
    longer.

    Raises:
        ValueError: ``T_0`` or ``T_mult`` is not a positive integer.

    Source: Loshchilov and Hutter, *SGDR: stochastic gradient descent with warm restarts*, 2017.
    """

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if not is_whole(T_0):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if not is_whole(T_mult):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    @uninterruptible
    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to ``epoch``, which may be a fraction, and set the rates."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        elif epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())


class OneCycleLR(LRScheduler):
    """Raises the rate from ``max_lr / div_factor`` to ``max_lr``, then lowers it to the first rate over ``final_div_factor``.

    The momentum falls while the rate rises, and rises while it falls.

    Raises:
        ValueError: no number of steps, ``pct_start`` outside of [0, 1], an unknown strategy, an optimizer without
            momentum, or a step beyond the last.

    Source: Smith and Topin, *Super-convergence*, 2018.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if pct_start < 0 or pct_start > 1 or not isinstance(pct_start, float):
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self._anneal_func_type = anneal_strategy
        up = pct_start * self.total_steps - 1
        end = self.total_steps - 1
        # (last step, rate from, rate to, momentum from, momentum to), names of entries of the group
        self._phases = [(up, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            down = 2 * pct_start * self.total_steps - 2
            self._phases.append((down, "max_lr", "initial_lr", "base_momentum", "max_momentum"))
            self._phases.append((end, "initial_lr", "min_lr", "max_momentum", "max_momentum"))
        else:
            self._phases.append((end, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, per_group("max_lr", optimizer, max_lr), strict=True):
                group["initial_lr"], group["max_lr"] = top / div_factor, top
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _open_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def _anneal(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(f"Tried to step {step} times. The specified number of total steps is {self.total_steps}")
        start = 0.0
        for phase in self._phases[:-1]:
            if step <= phase[0]:
                break
            start = phase[0]
        else:
            phase = self._phases[-1]
        share = (step - start) / (phase[0] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._anneal(group[phase[1]], group[phase[2]], share))
            if self.cycle_momentum:
                _set_momentum(group, self._anneal(group[phase[3]], group[phase[4]], share), self.use_beta1)
        return rates


def _total_steps(total_steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total_steps is not None:
        given = {"total_steps": total_steps}
    elif epochs is not None and steps_per_epoch is not None:
        given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
    else:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    for name, value in given.items():
        if not is_whole(value):
            raise ValueError(f"Expected positive integer {name}, but got {value}")
    return math.prod(given.values())


class CyclicLR(LRScheduler):
    """Moves the rate up and down between ``base_lr`` and ``max_lr``; ``mode`` or ``scale_fn`` scales the height of each cycle.

    The momentum falls while the rate rises, and rises while it falls.

    Raises:
        ValueError: an unknown mode without ``scale_fn``, or an optimizer without momentum.

    Source: Smith, *Cyclical learning rates for training neural networks*, 2017.
    """

    _unsaved = ("optimizer", "_scale_fn_custom")

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        base_lrs = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                group["lr"] = rate
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode is invalid and scale_fn is None, found {mode!r}")
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _open_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
            self.base_momentums = per_group("base_momentum", optimizer, base_momentum)
            self.max_momentums = per_group("max_momentum", optimizer, max_momentum)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The factor of the height of a cycle, or of an iteration."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return {"triangular": 1.0, "triangular2": 1 / 2.0 ** (x - 1), "exp_range": self.gamma**x}[self.mode]

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in bounds:
                _set_momentum(group, high - (high - low) * height, self.use_beta1)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer and a plain function; of a callable object, the attributes."""
        kept = attributes_of(self._scale_fn_custom)
        return {**super().state_dict(), "_scale_fn_custom": None if kept is None else dict(kept)}

    def _check_state(self, state_dict: Any) -> None:
        super()._check_state(state_dict)
        if state_dict.get("_scale_fn_custom") is None:
            return
        loading.like("CyclicLR.load_state_dict: '_scale_fn_custom'", state_dict["_scale_fn_custom"], {})
        if self._scale_fn_custom is None:
            raise ArgumentError("CyclicLR.load_state_dict: the schedule that was saved has a scale_fn: give this one its own")

    def _parts(self) -> list[Any]:
        return [self, *[f for f in [self._scale_fn_custom] if attributes_of(f) is not None]]

    def _take(self, state_dict: dict[str, Any]) -> None:
        super()._take(state_dict)
        if kept := state_dict.get("_scale_fn_custom"):
            self._scale_fn_custom.__dict__.update(kept)
