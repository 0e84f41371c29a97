"""Optimizer in backward: each parameter is updated as soon as its gradient is complete, and the gradient is freed at once."""

from __future__ import annotations

import weakref
from functools import partial

from .. import scope
from ..autograd.tensor import Tensor
from ..errors import GraphError, NotOfferedError
from ..interrupts import uninterrupted
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
        Gradients are needed after backward: to clip by their common norm, to accumulate over micro-batches, to unscale
        (``GradScaler``), or to inspect. ``optimizer.step()``, ``clip_grad_norm_``, ``clip_grad_value_``, ``accumulate`` and
        ``GradScaler.scale`` raise while it is on. Nor can a step be undone: if backward fails halfway, the parameters whose
        gradients had arrived are updated.

    It lasts until ``remove()``, or until the end of a ``with`` block. Keep the returned object or the optimizer while you
    train: if both are freed, the next backward raises, and later ones keep their gradients.

    Raises:
        NotOfferedError: the optimizer needs a closure.
        GraphError: the optimizer steps in backward already; a parameter has a gradient, or another such optimizer. In backward:
            the optimizer was freed.

    Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023.

    >>> optimizer = tm.optim.Adam(model.parameters())
    >>> with optimizer_in_backward(optimizer):
    ...     for x, y in loader:
    ...         F.cross_entropy(model(x), y).backward()
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if optimizer._in_backward is not None:
            raise GraphError("optimizer_in_backward: this optimizer steps in backward already; remove() that first")
        if optimizer.needs_closure:
            raise NotOfferedError(
                f"optimizer_in_backward: {type(optimizer).__name__} evaluates the loss several times a step, so it cannot "
                "update each parameter in one backward; use another optimizer"
            )
        chosen = [(i, p) for i, group in enumerate(optimizer.param_groups) for p in group["params"] if p.requires_grad]
        for _, p in chosen:
            if p._grad is not None:
                raise GraphError(
                    f"optimizer_in_backward: a parameter of shape {list(p.shape)} has a gradient from before, which the first "
                    "backward would add to; step() or zero_grad() first"
                )
            if p._stepped_in_backward is not None:
                p._stepped_in_backward.leave_to_another(p)
        self._optimizer: Optimizer | None = optimizer
        self._steps = optimizer._in_backward = _Steps(optimizer, chosen)

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

    def __init__(self, optimizer: Optimizer, chosen: list[tuple[int, Tensor]]) -> None:
        self.optimizer = weakref.ref(optimizer)
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

    def step(self, group: int, parameter: Tensor) -> None:
        """The hook of a parameter of the ``group``-th group: update it, and free its gradient."""
        optimizer = self.optimizer()
        if optimizer is None:
            self.end()
            raise GraphError(
                "optimizer_in_backward: the optimizer that updated these parameters in backward is gone, so this backward has "
                "updated nothing. Keep it, or what optimizer_in_backward returned, while you train, and remove() that at the "
                "end. From the next backward on gradients are kept."
            )
        local = scope.local
        before = local.module, local.line  # of the op whose backward is running; the update belongs to the optimizer
        local.module = local.line = ""
        try:
            uninterrupted(self._update, optimizer, optimizer.param_groups[group], parameter)
        finally:
            local.module, local.line = before

    @staticmethod
    def _update(optimizer: Optimizer, group: dict, parameter: Tensor) -> None:
        """Update and free the gradient, both or neither: else the next backward would add to a gradient that was used."""
        optimizer._step([(group, parameter)])
        optimizer._opt_called = True
        parameter.grad = None
