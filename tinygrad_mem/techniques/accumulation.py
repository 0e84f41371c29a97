"""Gradient accumulation: several small backwards, one step, and the gradient of the large batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any

from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..errors import ArgumentError, ArgumentTypeError, GraphError, ShapeError, is_whole, pins_nothing
from ..functional import creation
from ..interrupts import context
from ..nn.module import Module
from ..nn.utils.clip_grad import clip_grad_norm_
from ..optim.optimizer import Optimizer


class accumulate:
    """Gradient accumulation: windows of ``steps`` micro-batches, each with its own backward, and one optimizer step per window.

    Args:
        model: the model whose gradients are accumulated; :meth:`split` calls it.
        optimizer: makes one step per window; the gradients are freed after it.
        steps: the number of micro-batches in a window.
        max_norm: clip the window's gradient to this norm, once, after it is unscaled and averaged.
        scheduler: makes one step per window, unless the optimizer skipped its step.
        scaler: a ``GradScaler``: an inf in one micro-batch skips the whole window.

    Memory:
        Parameters, state, *all* gradients, and the activations of one micro-batch: one ``k``-th of those of a batch in ``k``
        parts. One graph is alive at a time; summing the losses first would keep all graphs and save nothing. From the second
        part on, the gradients exist while activations are at their peak: if weights outweigh activations, the peak *grows*.
    Price:
        More and smaller kernels. Batch norm uses the statistics of each micro-batch, and updates its running statistics
        ``steps`` times per window. So with batch norm the result is *not* that of the large batch.

    Do not use when:
        The network has batch norm and the result must be that of the large batch, or weights outweigh activations.

    What is equal: the window's gradient is ``sum(weight * gradient) / sum(weight)`` over its micro-batches, whose losses are
    means over ``weight`` samples (or tokens). Weights are taken relative to the first micro-batch's, and the sum is scaled once
    at the end. So, bit for bit, a window of one micro-batch is a plain step. Micro-batches of equal weight are added as plain
    ``backward()`` calls add them, and scaled by ``1 / k``; if k is a power of 2, this equals ``(loss / k).backward()``. A last,
    partial window is a window of fewer steps. The gradient of the large batch differs only by the rounding of sums.

    In a ``with`` block, the last, partial window ends with a step; elsewhere call :meth:`step`. After an exception the window's
    gradients are dropped, and the next micro-batch begins a new window: parameters and state are unchanged.

    Raises:
        ArgumentError: ``steps`` is not a positive whole number, ``max_norm`` not a positive number.
        GraphError: the optimizer steps in backward.

    >>> with accumulate(model, optimizer, steps=4) as window:
    ...     for x, y in loader:
    ...         window.backward(F.cross_entropy(model(x), y), weight=len(x))
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        steps: int,
        *,
        max_norm: float | None = None,
        scheduler: Any = None,
        scaler: Any = None,
    ) -> None:
        if not is_whole(steps):
            raise ArgumentError(
                f"accumulate: steps is the number of micro-batches in a step, expected 1 or more, found {steps!r}"
            )
        if max_norm is not None and not max_norm > 0:
            raise ArgumentError(f"accumulate: max_norm must be positive, or None for no clipping, found {max_norm!r}")
        optimizer.refuse_in_backward("accumulate")
        self.model, self.optimizer, self.steps = model, optimizer, steps
        self.max_norm, self.scheduler, self.scaler = max_norm, scheduler, scaler
        self._begin()

    def _begin(self) -> None:
        self._done = 0  # micro-batches of this window
        self._unit = self._total = 0.0  # the first weight, and the sum of all

    def _parameters(self) -> list[Tensor]:
        stepped = [p for group in self.optimizer.param_groups for p in group["params"]]
        return list(dict.fromkeys([*self.model.parameters(), *stepped]))

    def _forget_gradients(self) -> None:
        for p in self._parameters():
            p.grad = None

    @context
    def _whole(self) -> Iterator[None]:
        """Inside, an exception starts a new window: the optimizer must never use half a gradient."""
        try:
            yield
        except BaseException:
            self._forget_gradients()
            self._begin()
            raise

    @pins_nothing
    def backward(self, loss: Tensor, weight: float) -> bool:
        """Add the gradient of ``loss`` to the window's, and make the step if the window is full.

        Args:
            loss: one number, a mean over ``weight`` samples or tokens.
            weight: their number: ``len(x)``, or the number of targets that count. 0 skips the micro-batch, whose mean would be
                nan.

        Returns:
            Whether the optimizer made a step.

        Raises:
            ArgumentError: ``weight`` is negative, or not finite. GraphError: as ``loss.backward()``.
        """
        _check_weight(weight)
        self.optimizer.refuse_in_backward("accumulate")
        with self._whole():
            self._add(loss, weight)
        return self.step() if self._done == self.steps else False

    def _add(self, loss: Tensor, weight: float) -> None:
        if self._total == 0:
            self._forget_gradients()
        if weight > 0:
            self._unit = self._unit or float(weight)
            share = weight / self._unit
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            seed = None if share == 1 else creation.full(tuple(scaled.shape), share, dtype=scaled.dtype, device=scaled.device)
            scaled.backward(seed)
            self._total += weight
        self._done += 1

    @pins_nothing
    def step(self) -> bool:
        """End the window now, full or not: average, clip, step, free. Returns whether the optimizer made a step."""
        if self._total == 0:
            self._begin()
            return False
        made: list = []
        with self._whole(), self.optimizer.register_step_post_hook(lambda *_: made.append(True)):
            self._average()
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            if made and self.scheduler is not None:
                self.scheduler.step()
        self._forget_gradients()
        self._begin()
        return bool(made)

    def _average(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        share = self._unit / self._total
        with no_grad():
            for p in self._parameters() if share != 1 else []:
                if p.grad is not None:
                    p.grad.mul_(share)
        if self.max_norm is not None:
            clip_grad_norm_(self._parameters(), self.max_norm)

    @pins_nothing
    def split(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss: Callable[[Any, Tensor], Tensor],
        weight: Callable[[Tensor, Tensor], float] | None = None,
        region: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Tensor:
        """One window from one batch, which is split into ``steps`` parts: forward and backward of each before the next begins.

        Args:
            inputs: (N, ...); the model is called with parts of at most ``ceil(N / steps)`` samples.
            targets: (N, ...).
            loss: a function of the model's output and the targets; it returns a mean.
            weight: a function of a part's inputs and targets; it returns how many samples (or tokens) the mean is over. By
                default the part's number of samples.
            region: makes a context for the forward and the loss of each part, such as ``partial(autocast, "cuda")``.

        Returns:
            The loss of the batch, 0-d, without a graph: the weighted mean of the parts' losses.

        Raises:
            ShapeError: inputs and targets of different lengths, or empty. GraphError: a window of ``backward()`` calls is open.
        """
        if self._done:
            raise GraphError(f"accumulate.split: a window of {self._done} backward() calls is open; step() first")
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets) or not len(inputs):
            raise ShapeError(
                f"accumulate.split: expected inputs and targets of as many samples, found {list(inputs.shape)} and "
                f"{list(targets.shape)}"
            )
        self.optimizer.refuse_in_backward("accumulate")
        total: Any = 0.0
        with self._whole():
            for x, y in zip(inputs.chunk(self.steps), targets.chunk(self.steps), strict=True):
                counted = len(x) if weight is None else weight(x, y)
                _check_weight(counted)
                with region():
                    found = loss(self.model(x), y)
                self._add(found, counted)
                total = total + found.detach() * counted if counted else total
                del found  # frees its graph before the next part begins
            if self._total:
                total = total / self._total  # before the step, after which nothing may fail
            else:
                total = creation.full((), math.nan, device=inputs.device)
        self.step()
        return total

    def __enter__(self) -> accumulate:
        return self

    def __exit__(self, kind: type | None, *exc: object) -> None:
        if kind is None:
            self.step()
        else:
            self._forget_gradients()
            self._begin()


def _check_weight(weight: Any) -> None:
    if not isinstance(weight, Real) or isinstance(weight, bool):
        raise ArgumentTypeError(
            f"accumulate: weight is the number of samples or tokens in the mean of the loss, found {type(weight).__name__}"
        )
    number: Any = weight
    if not 0 <= number < math.inf:
        raise ArgumentError(f"accumulate: weight is the number of samples or tokens in the mean of the loss, found {weight}")
