"""Optimizer in backward: each parameter is updated the moment its gradient is complete, and the gradient is freed at once."""

from __future__ import annotations

import weakref
from functools import partial

from .. import scope
from ..autograd.tensor import Tensor
from ..errors import GraphError
from ..interrupts import whole
from ..optim.optimizer import Optimizer


class optimizer_in_backward:
    """From here on ``loss.backward()`` is the step: no call of ``optimizer.step()``, and nothing for ``zero_grad()`` to free.

    Memory:
        One gradient at a time instead of all: a step's peak falls by up to the bytes of the parameters, less their largest. How
        much it falls depends on where the peak was: where activations are highest no gradient has been made yet.
    Price:
        A call of the optimizer for each parameter: tens of microseconds. Else none; the same updates in another order.
        Parameters, state and losses are bit for bit those of a plain step, for every optimizer whose update of a parameter
        looks at that parameter alone (all of ``tinygrad_mem.optim``).
    Do not use when:
        Gradients are wanted after backward: to clip by the norm of all, to accumulate over micro-batches, to unscale
        (``GradScaler``), to look at. ``optimizer.step()``, ``clip_grad_norm_``, ``clip_grad_value_``, ``accumulate`` and
        ``GradScaler.scale`` raise while it is on. There is no way back either: when backward fails half-way, the parameters
        whose gradients had arrived have been updated.

    It lasts until ``remove()``, or until a ``with`` block around it ends. Keep what it returns, or the optimizer, as long as
    gradients are to be taken: when both are gone, the next backward raises, and from then on gradients are kept.

    Raises:
        GraphError: the optimizer steps in backward already; a parameter has a gradient from before, or another such optimizer.
            In backward: the optimizer is gone.

    Source: Lv et al., *Full parameter fine-tuning for large language models with limited resources* (LOMO), 2023.

    >>> optimizer = tm.optim.Adam(model.parameters())
    >>> with optimizer_in_backward(optimizer):
    ...     for x, y in loader:
    ...         F.cross_entropy(model(x), y).backward()
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if optimizer._in_backward is not None:
            raise GraphError("optimizer_in_backward: this optimizer steps in backward already; remove() that first")
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
        """Steps are made by ``optimizer.step()`` again; a second time does nothing."""
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

    It refers to both weakly: the optimizer refers to its parameters, which refer to their hooks, which refer to this.
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
        """Take the hooks away."""
        for reference, key in self.hooked:
            parameter = reference()
            if parameter is not None:
                parameter._post_accumulate.pop(key, None)  # type: ignore[union-attr]
                parameter._stepped_in_backward = None
        self.hooked = []
        scope.stepping_in_backward.discard(self)

    def leave_to_another(self, parameter: Tensor) -> None:
        """Another optimizer wants to step one of the parameters: it may when this one's is gone."""
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
        before = local.module, local.line  # of the op whose backward is running: the update is nobody's but the optimizer's
        local.module = local.line = ""
        try:
            whole(self._update, optimizer, optimizer.param_groups[group], parameter)
        finally:
            local.module, local.line = before

    @staticmethod
    def _update(optimizer: Optimizer, group: dict, parameter: Tensor) -> None:
        """Both or neither: the next backward would add to a gradient that was used already."""
        optimizer._step([(group, parameter)])
        optimizer._opt_called = True
        parameter.grad = None
