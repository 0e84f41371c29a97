"""Optimizer in backward: each parameter is updated as soon as its gradient is complete, and the gradient is freed at once."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

from .. import scope
from ..autograd.gradients import SparseTensor, copy, parts
from ..autograd.graph import leaves
from ..autograd.tensor import Tensor
from ..dtypes import arithmetic
from ..errors import ArgumentError, GraphError, NotOfferedError
from ..functional import choose, compare, creation
from ..interrupts import uninterrupted
from ..optim.loading import is_number
from ..optim.optimizer import Optimizer


class optimizer_in_backward:
    """From here on ``loss.backward()`` makes the optimizer's step; ``optimizer.step()`` and ``zero_grad()`` are not needed.

    Memory:
        One gradient exists at a time instead of all: a step's peak falls by up to the bytes of the parameters, less the largest
        of them. It falls less if the peak is where activations are highest, because no gradient exists there yet.
    Price:
        A call of the optimizer for each parameter: tens of microseconds. The updates are the same, in another order.
        Parameters, state and losses are bit for bit those of a plain step, for every optimizer that updates a parameter from
        that parameter's gradient alone (all of ``tinygrad_mem.optim``).
    Do not use when:
        Gradients are needed after backward: to accumulate over micro-batches, or to inspect. ``optimizer.step()``,
        ``clip_grad_norm_``, ``clip_grad_value_``, ``accumulate`` and ``GradScaler.scale`` raise while it is on. Nor can a step
        be undone: if backward fails halfway, the parameters whose gradients had arrived are updated.

    **The norm of all gradients, and a loss scale.** The norm, and whether a gradient overflowed, are known only when all
    gradients have come, and none is kept. So with ``max_norm`` or ``scaler`` call :meth:`backward` in place of
    ``loss.backward()``: it goes back twice, as LOMO does. The first time adds up the norm, and drops each gradient; the second
    time scales each, and updates.
    Memory: what was saved for backward stays through the first time; two numbers more. A gradient of half precision is
    scaled in float32, in a copy. A prediction takes every gradient for finite. Price: a second backward.

    Args:
        optimizer: its parameters are updated.
        max_norm: scale all gradients so that their common norm is at most this, as ``clip_grad_norm_``.
        scaler: a :class:`~tinygrad_mem.amp.GradScaler`: losses are scaled, gradients unscaled, and a step whose gradients
            overflowed is skipped. Call its ``update()`` after each step, as usual.

    It lasts until ``remove()``, or until the end of a ``with`` block. Keep the returned object or the optimizer while you
    train: if both are freed, the next backward raises, and later ones keep their gradients.

    Raises:
        NotOfferedError: the optimizer needs a closure; or with ``max_norm`` or ``scaler``, a parameter is divided over ranks.
        ValueError: ``max_norm`` is not above 0.
        GraphError: the optimizer steps in backward already; a parameter has a gradient, or another such optimizer. In backward:
            the optimizer was freed; or ``max_norm`` or ``scaler`` was given, and this is not :meth:`backward`.

    Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023.

    >>> optimizer = tm.optim.Adam(model.parameters())
    >>> with optimizer_in_backward(optimizer):
    ...     for x, y in loader:
    ...         F.cross_entropy(model(x), y).backward()
    >>> with optimizer_in_backward(optimizer, max_norm=1.0) as steps:
    ...     for x, y in loader:
    ...         steps.backward(F.cross_entropy(model(x), y))
    """

    def __init__(self, optimizer: Optimizer, max_norm: float | None = None, scaler: Any = None) -> None:
        if max_norm is not None and not (is_number(max_norm) and max_norm > 0):
            raise ArgumentError(f"optimizer_in_backward: max_norm should be above 0, or None, found {max_norm!r:.60}")
        if optimizer._in_backward is not None:
            raise GraphError("optimizer_in_backward: this optimizer steps in backward already; remove() that first")
        if optimizer.needs_closure:
            raise NotOfferedError(
                f"optimizer_in_backward: {type(optimizer).__name__} evaluates the loss several times a step, so it cannot "
                "update each parameter in one backward; use another optimizer"
            )
        chosen = [(i, p) for i, group in enumerate(optimizer.param_groups) for p in group["params"] if p.requires_grad]
        for _, p in chosen:
            if p._shard is not None and not (max_norm is None and scaler is None):
                raise NotOfferedError(
                    f"optimizer_in_backward: {p._shard.name} is divided over ranks, and the norm of what one rank has is not "
                    "that of the whole: leave max_norm and scaler out, or use a plain step with clip_grad_norm_"
                )
            if p._grad is not None:
                raise GraphError(
                    f"optimizer_in_backward: a parameter of shape {list(p.shape)} has a gradient from before, which the first "
                    "backward would add to; step() or zero_grad() first"
                )
            if p._stepped_in_backward is not None:
                p._stepped_in_backward.leave_to_another(p)
        self._optimizer: Optimizer | None = optimizer
        self._max_norm, self._scaler = max_norm, scaler
        self._steps = optimizer._in_backward = _Steps(optimizer, chosen, twice=not (max_norm is None and scaler is None))

    def backward(self, loss: Tensor) -> Tensor:
        """Go back from ``loss`` twice: for the norm of all gradients, and to update. For ``max_norm`` or ``scaler``.

        Returns:
            The norm of all gradients, unscaled, before it was clipped: 0-d, as of ``clip_grad_norm_``. It is inf or nan where
            the step was skipped.

        Raises:
            GraphError: neither was given, so that ``loss.backward()`` does it; or this was removed; or the loss depends on a
                tensor that requires a gradient and is not the optimizer's.
            RuntimeError: the scaler's ``update()`` was not called since the last step.
        """
        steps, optimizer, scaler, window, scale = self._steps, self._optimizer, self._scaler, None, 1.0
        if optimizer is None or not steps.twice:
            raise GraphError(
                "optimizer_in_backward.backward: it needs max_norm or scaler, and no remove(); call loss.backward() instead"
            )
        for leaf in leaves(loss):
            if leaf._stepped_in_backward is not steps:
                raise GraphError(
                    f"optimizer_in_backward.backward: a tensor of shape {list(leaf.shape)} under this loss requires a gradient "
                    "and is not updated by this optimizer. Going back twice would add to its gradient twice: call "
                    "requires_grad_(False) or detach() on it, or give it to the optimizer"
                )
        if scaler is not None and scaler.is_enabled():
            window, loss, scale = scaler._fresh_window(optimizer), scaler._scaled(loss), scaler.get_scale()
        total = steps.measured(loss)
        if window is not None:
            window.found = {total.device: compare.logical_not(compare.isfinite(total)).array}
        total /= scale
        factor = creation.full_like(total, 1 / scale)
        if self._max_norm is not None:
            factor *= choose.clamp(float(self._max_norm) / (total + 1e-6), max=1.0)
        made = window is None or not window.overflowed()
        if made:
            steps.updated(loss, factor)
        if window is not None:
            window.close(scaler, made)
        elif scaler is not None:
            scaler._note(optimizer, made)
        return total

    @property
    def count(self) -> int:
        """The number of parameters that are updated in backward."""
        return len(self._steps.hooked)

    def remove(self) -> None:
        """Switch back to ``optimizer.step()``. A second call does nothing."""
        self._steps.end()
        if self._optimizer is not None and self._optimizer._in_backward is self._steps:
            self._optimizer._in_backward = None
        self._optimizer = None

    def __enter__(self) -> optimizer_in_backward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class _Steps:
    """The hooks on an optimizer's parameters.

    Its references are weak: otherwise the optimizer, its parameters and their hooks would be a reference cycle.
    """

    def __init__(self, optimizer: Optimizer, chosen: list[tuple[int, Tensor]], twice: bool) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.twice = twice  # whether a first backward finds the norm
        self.total: Tensor | None = None  # in the first one: the norm of the gradients that have come
        self.factor: Tensor | None = None  # in the second one: what gradients are multiplied by
        self.hooked: list[tuple[weakref.ref[Tensor], int]] = []
        for group, p in chosen:
            handle = p.register_post_accumulate_grad_hook(partial(self.step, group))
            self.hooked.append((weakref.ref(p), handle.key))
            p._stepped_in_backward = self
        scope.stepping_in_backward.add(self)

    def end(self) -> None:
        """Remove the hooks."""
        for reference, key in self.hooked:
            parameter = reference()
            if parameter is not None:
                parameter._post_accumulate.pop(key, None)  # type: ignore[union-attr]
                parameter._stepped_in_backward = None
        self.hooked = []
        scope.stepping_in_backward.discard(self)

    def leave_to_another(self, parameter: Tensor) -> None:
        """Give up the hooks for another optimizer, if this one's optimizer was freed; else raise."""
        if self.optimizer() is not None:
            raise GraphError(
                f"optimizer_in_backward: a parameter of shape {list(parameter.shape)} is updated in backward by another "
                "optimizer; one of the two would find no gradient"
            )
        self.end()

    def measured(self, loss: Tensor) -> Tensor:
        """The norm of all gradients of ``loss``, none of which is kept."""
        self.total = creation.zeros((), dtype=arithmetic(loss.dtype), device=loss.device)
        try:
            loss.backward(retain_graph=True)
            return self.total
        finally:
            self.total = None

    def updated(self, loss: Tensor, factor: Tensor) -> None:
        """Update all parameters by their gradients times ``factor``."""
        self.factor = factor
        try:
            loss.backward()
        finally:
            self.factor = None

    def _measure(self, parameter: Tensor) -> None:
        """Add to the norm, and free the gradient."""
        grad, parameter.grad = parameter.grad, None
        assert grad is not None
        assert self.total is not None
        grad = grad.summed() if isinstance(grad, SparseTensor) else grad
        device, shape = grad.device, grad.array.shape
        norm = device.empty((1,) * len(shape), arithmetic(grad.dtype))
        with device.current():
            scope.run(device.kernels.norm, grad.array, tuple(range(len(shape))), 2, norm)
        del grad
        size = Tensor._wrap(norm.reshape(()), device).to(self.total.device)
        self.total.mul_(self.total).add_(size.mul_(size)).sqrt_()

    def _scale(self, parameter: Tensor) -> None:
        """Multiply the gradient by the factor: one of half precision in float32, in which small numbers stay."""
        grad, factor = parameter.grad, self.factor
        assert grad is not None
        assert factor is not None
        wide = arithmetic(grad.dtype)
        if not isinstance(grad, SparseTensor) and grad.dtype != wide:
            parameter._take_grad(copy(grad.device, grad.array, wide))
            grad = parameter.grad
        parts(grad)[-1].mul_(factor.to(parameter.device))

    def step(self, group: int, parameter: Tensor) -> None:
        """The hook of a parameter of the ``group``-th group: update it, and free its gradient."""
        if self.total is not None:
            self._measure(parameter)
            return
        optimizer = self.optimizer()
        if optimizer is None:
            self.end()
            raise GraphError(
                "optimizer_in_backward: the optimizer that updated these parameters in backward is gone, so this backward has "
                "updated nothing. Keep it, or what optimizer_in_backward returned, while you train, and remove() that at the "
                "end. From the next backward on gradients are kept."
            )
        if self.twice and self.factor is None:
            raise GraphError(
                "optimizer_in_backward: with max_norm or scaler a first backward finds the norm of all gradients: call "
                "backward(loss) of what optimizer_in_backward returned, not loss.backward(). Nothing was updated."
            )
        local = scope.local
        before = local.module, local.line  # of the op whose backward is running; the update belongs to the optimizer
        local.module = local.line = ""
        try:
            if self.twice:
                self._scale(parameter)
            uninterrupted(self._update, optimizer, optimizer.param_groups[group], parameter)
        finally:
            local.module, local.line = before

    @staticmethod
    def _update(optimizer: Optimizer, group: dict, parameter: Tensor) -> None:
        """Update and free the gradient, both or neither: else the next backward would add to a gradient that was used."""
        optimizer._step([(group, parameter)])
        optimizer._opt_called = True
        parameter.grad = None
