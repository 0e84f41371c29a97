"""What a plan decides, and the training step that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ArgumentError
from ..nn import Module, ModuleList, Sequential
from ..optim.optimizer import Optimizer
from ..recompute import Schedule, checkpoint_wrapper, scheduled
from ..techniques import accumulate, optimizer_in_backward

IDENTICAL = ("recompute", "in_backward")
"""Techniques that leave every number as it is, bit for bit."""

CLOSE = (*IDENTICAL, "accumulation")
"""And those whose numbers differ by the rounding of sums (with batch norm, by its statistics too)."""


@dataclass(frozen=True)
class Recompute:
    """Which parts of one chain of modules are recomputed.

    Attributes:
        path: of the ``Sequential`` (a module of another chain is recomputed or not: its items are single) in the model.
        items: its stages, with tuples around those that are recomputed; see ``recompute.Schedule``.
        sizes: how many modules each stage has.
    """

    path: str
    items: tuple[Any, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.path or 'model'}: {Schedule(self.items)}"


@dataclass(frozen=True)
class Choice:
    """Techniques for a training step; without any, a plain one.

    Attributes:
        recompute: chains that are run by a schedule.
        in_backward: the optimizer steps in backward.
        parts: the batch is split into so many, one after another.
    """

    recompute: tuple[Recompute, ...] = ()
    in_backward: bool = False
    parts: int = 1

    @property
    def techniques(self) -> tuple[str, ...]:
        """Names as in ``techniques.TABLE``."""
        used = {"recompute": bool(self.recompute), "in_backward": self.in_backward, "accumulation": self.parts > 1}
        return tuple(name for name, on in used.items() if on)

    def __str__(self) -> str:
        parts = [f"recompute {', '.join(map(str, self.recompute))}"] if self.recompute else []
        parts += ["optimizer in backward"] if self.in_backward else []
        parts += [f"batch in {self.parts} parts"] if self.parts > 1 else []
        return "; ".join(parts) or "plain"


Loss = Callable[[Any, Tensor], Tensor]


class TrainingStep:
    """``step(inputs, targets)`` trains ``model`` on a batch, and returns its loss, 0-d, without a graph.

    Gradients are freed when they have been used: while a forward runs there are none.
    """

    def __init__(self, choice: Choice, model: Module, optimizer: Optimizer, loss: Loss) -> None:
        for part in choice.recompute:
            _recompute(model, part)
        self.choice, self.model, self.optimizer, self.loss = choice, model, optimizer, loss
        self._window = accumulate(model, optimizer, choice.parts) if choice.parts > 1 else None
        self._in_backward = optimizer_in_backward(optimizer) if choice.in_backward else None

    def __call__(self, inputs: Any, targets: Tensor) -> Tensor:
        if self._window is not None:
            return self._window.split(inputs, targets, self.loss)
        loss = self.loss(self.model(inputs), targets)
        loss.backward()
        if self._in_backward is None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def _recompute(model: Module, part: Recompute) -> None:
    """Let a chain inside ``model`` run by its schedule from now on; it is the same object with the same modules.

    Raises:
        ArgumentError: the model has no such chain.
    """
    try:
        chain: Any = model.get_submodule(part.path)
    except AttributeError:
        chain = None
    if not isinstance(chain, (Sequential, ModuleList)) or len(chain) != sum(part.sizes):
        raise ArgumentError(
            f"plan: it was made for a model with {sum(part.sizes)} modules in {part.path or 'itself'!r}; this one has "
            f"{'none there' if chain is None else f'a {type(chain).__name__}'}. Make the plan for this model."
        )
    if isinstance(chain, ModuleList):
        for module, item in zip(chain, part.items, strict=True):
            if isinstance(item, tuple):
                checkpoint_wrapper(module)
    else:
        chain.schedule, chain.sizes = Schedule(part.items), part.sizes  # type: ignore[attr-defined]
        chain.__class__ = scheduled.Scheduled
