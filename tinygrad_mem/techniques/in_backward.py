"""Optimizer in backward: each parameter is updated the moment its gradient is complete, and the gradient is freed at once."""

from __future__ import annotations

import weakref
from typing import Any

from .. import scope
from ..autograd.hooks import RemovableHandle
from ..autograd.tensor import Tensor
from ..errors import GraphError
from ..optim.optimizer import Optimizer


class optimizer_in_backward:
    """From here on ``loss.backward()`` is the step: no call of ``optimizer.step()``, and nothing for ``zero_grad()`` to free.

    Memory:
        One gradient at a time instead of all: a step's peak falls by up to the bytes of the parameters, less their largest. How
        much it falls depends on where the peak was: where activations are highest no gradient has been made yet.
    Price:
        None; the same updates in another order. Parameters, state and losses are bit for bit those of a plain step, for every
        optimizer whose update of a parameter looks at that parameter alone (all of ``tinygrad_mem.optim``).
    Do not use when:
        Gradients are wanted after backward: to clip by the norm of all, to accumulate over micro-batches, to unscale
        (``GradScaler``), to look at. ``optimizer.step()``, ``clip_grad_norm_``, ``clip_grad_value_``, ``accumulate`` and
        ``GradScaler.scale`` raise while it is on. There is no way back either: when backward fails half-way, the parameters
        whose gradients had arrived have been updated.

    It lasts until ``remove()``, until a ``with`` block around it ends, or as long as the optimizer lives.

    Raises:
        GraphError: the optimizer steps in backward already; a parameter has a gradient from before, or another such optimizer.

    Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023.

    >>> optimizer = tm.optim.Adam(model.parameters())
    >>> with optimizer_in_backward(optimizer):
    ...     for x, y in loader:
    ...         F.cross_entropy(model(x), y).backward()
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._handles: list[RemovableHandle] = []
        self._optimizer = weakref.ref(optimizer)
        if optimizer._in_backward is not None:
            raise GraphError("optimizer_in_backward: this optimizer steps in backward already; remove() that first")
        chosen = [(i, p) for i, group in enumerate(optimizer.param_groups) for p in group["params"] if p.requires_grad]
        for _, p in chosen:
            if p._grad is not None:
                raise GraphError(
                    f"optimizer_in_backward: a parameter of shape {list(p.shape)} has a gradient from before, which the first "
                    "backward would add to; step() or zero_grad() first"
                )
            if p._stepped_in_backward:
                raise GraphError(
                    f"optimizer_in_backward: a parameter of shape {list(p.shape)} is updated in backward by another optimizer; "
                    "one of the two would find no gradient"
                )
        for index, p in chosen:
            self._handles.append(p.register_post_accumulate_grad_hook(_Update(self._optimizer, index)))
            p._stepped_in_backward = True
        self._parameters = [weakref.ref(p) for _, p in chosen]
        optimizer._in_backward = self

    def remove(self) -> None:
        """Steps are made by ``optimizer.step()`` again; a second time does nothing."""
        for handle, parameter in zip(self._handles, map(_called, self._parameters), strict=True):
            handle.remove()
            if parameter is not None:
                parameter._stepped_in_backward = False
        self._handles, self._parameters = [], []
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._in_backward is self:
            optimizer._in_backward = None

    def __enter__(self) -> optimizer_in_backward:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def __del__(self) -> None:
        if getattr(self, "_parameters", None):  # the optimizer is gone: gradients are kept again
            self.remove()


def _called(reference: weakref.ref) -> Any:
    return reference()


class _Update:
    """The hook of one parameter; it refers to the optimizer weakly, since the optimizer refers to the parameter."""

    __slots__ = ("group", "optimizer")

    def __init__(self, optimizer: weakref.ref, group: int) -> None:
        self.optimizer, self.group = optimizer, group

    def __call__(self, parameter: Tensor) -> None:
        optimizer = self.optimizer()
        if optimizer is None:
            return
        local = scope.local
        before = local.module, local.line  # of the op whose backward is running: the update is nobody's but the optimizer's
        local.module = local.line = ""
        try:
            optimizer._step([(optimizer.param_groups[self.group], parameter)])
            optimizer._opt_called = True
            parameter.grad = None
        finally:
            local.module, local.line = before
