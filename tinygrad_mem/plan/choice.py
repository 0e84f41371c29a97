"""A plan's choice, and the training step that follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..autograd.tensor import Tensor
from ..errors import ArgumentError
from ..interrupts import context
from ..nn import Module
from ..optim.optimizer import Optimizer
from ..techniques import accumulate
from .techniques import KINDS, LEVELS, Accumulation, Applied, Prepared, Recompute, Replicated, reason_against


@dataclass(frozen=True)
class Choice:
    """A set of techniques for a training step; the empty set is the plain step.

    Raises:
        ArgumentError: two of them cannot be used together, or one is there twice.
    """

    techniques: tuple[Applied, ...] = ()

    def __post_init__(self) -> None:
        for a, b in combinations(self.techniques, 2):
            if type(a) is type(b) and not isinstance(a, Recompute):
                raise ArgumentError(f"plan: {a.name} is chosen twice, {a} and {b}")
            if isinstance(a, Replicated) and isinstance(b, Replicated):
                raise ArgumentError(f"plan: a model can be divided over ranks in one way only, found {a} and {b}")
            why = reason_against(a, b)
            if why is not None:
                raise ArgumentError(f"plan: {a.name} cannot be used with {b.name}: {why}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the techniques, each once."""
        used = {technique.name for technique in self.techniques}
        return tuple(kind.name for kind in KINDS if kind.name in used)

    @property
    def numbers(self) -> str:
        """The level of the numbers compared with a plain step: see :class:`Applied`."""
        return max((technique.numbers for technique in self.techniques), key=LEVELS.index, default=LEVELS[0])

    @property
    def parts(self) -> int:
        """The number of parts that the batch is split into."""
        return next((technique.parts for technique in self.techniques if isinstance(technique, Accumulation)), 1)

    def without(self, name: str) -> Choice:
        """The same choice without the technique ``name``."""
        return Choice(tuple(technique for technique in self.techniques if technique.name != name))

    def __str__(self) -> str:
        chains = [str(technique) for technique in self.techniques if isinstance(technique, Recompute)]
        parts = [f"recompute {', '.join(chains)}"] if chains else []
        parts += [str(technique) for technique in self.techniques if not isinstance(technique, Recompute)]
        return "; ".join(parts) or "plain"


Loss = Callable[[Any, Tensor], Tensor]


class TrainingStep(Prepared):
    """``step(inputs, targets)`` trains ``model`` on a batch, and returns its loss, 0-d, without a graph.

    Gradients are freed after the optimizer's step: during the forward there are none.

    Args:
        inputs: a tensor; or a tuple or dict of the model's arguments.
    """

    def __init__(self, choice: Choice, model: Module, optimizer: Optimizer, loss: Loss) -> None:
        super().__init__(model, optimizer)
        self.choice, self.loss = choice, loss
        for technique in choice.techniques:
            technique.prepare(self)
        self._regions = [technique.region() for technique in choice.techniques]
        self._window = accumulate(model, optimizer, self.parts, scaler=self.scaler) if self.parts > 1 else None

    @property
    def hooked(self) -> int:
        """The number of parameters that are updated in backward."""
        return 0 if self.in_backward is None else self.in_backward.count

    def __call__(self, inputs: Any, targets: Tensor) -> Tensor:
        if self._window is not None:
            return self._window.split(inputs, targets, self.loss, region=self._region)
        with self._region():
            loss = self.loss(called(self.model, inputs), targets)
        self.scaler.scale(loss).backward()
        if self.in_backward is None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
        return loss.detach()

    @context
    def _region(self, inner: int = 0) -> Iterator[None]:
        if inner == len(self._regions):
            yield
        else:
            with self._regions[inner], self._region(inner + 1):
                yield


def called(model: Module, inputs: Any) -> Any:
    """The output of ``model`` for ``inputs``: one argument, a tuple of arguments, or a dict of named arguments."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
