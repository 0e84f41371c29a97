"""The bytes that a training step needs with a choice of techniques: by running it on ``meta``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import scope
from ..autograd.tensor import Tensor
from ..errors import OutOfMemoryError
from ..memory.predict import dry_run
from ..nn import Module
from ..optim.optimizer import Optimizer
from .choice import Choice, Loss, TrainingStep
from .times import OpCounts, Times

STEPS = 16  # most steps of a run; it ends when the pool is as before an earlier step


@dataclass(frozen=True)
class Recipe:
    """A training step as functions that make its parts on the default device.

    Attributes:
        batch: makes (inputs, targets).
        optimizer: of a list of parameters.
    """

    model: Callable[[], Module]
    batch: Callable[[], tuple[Any, Tensor]]
    loss: Loss
    optimizer: Callable[[list], Optimizer]


@dataclass(frozen=True)
class Point:
    """The needs of a training step with a choice of techniques.

    Attributes:
        choice: the techniques.
        peak: most bytes in use, each block rounded up to 512, from the construction of the model on, in any number of steps.
        reserved: most bytes that the pool reserves without a limit. Within a budget it gives unused segments back.
        kept: bytes in use between steps: parameters, optimizer state, buffers, the batch.
        host: most bytes of host memory in use for offloaded arrays.
        time: seconds on the device for the ops of a step, and for copies to the host and back.
        forwards: the number of op forwards in a step, relative to a plain step.
    """

    choice: Choice
    peak: int
    reserved: int
    kept: int
    host: int
    time: float
    forwards: float


class Ran(NamedTuple):
    """A run: the ops of its second step, its peaks in use and reserved, bytes in use after it, and the peak on the host.

    Attributes:
        hooked: the number of parameters that were updated in backward.
    """

    counts: OpCounts
    peak: int
    reserved: int
    kept: int
    host: int
    hooked: int


class Runs:
    """Runs of one recipe on ``meta``, each made once.

    Args:
        like: whose kernels' workspaces are counted, ``"cpu"`` or ``"cuda"``.
        progress: called with a short text about each run.
    """

    def __init__(self, recipe: Recipe, times: Times, like: str, progress: Callable[[str], None]) -> None:
        self.recipe, self.times, self.like, self.progress = recipe, times, like, progress
        self.points: dict[Choice, Point] = {}
        self._too_small: dict[Choice, int] = {}  # the largest budget that was too small
        self._enough: set[tuple[Choice, int]] = set()

    def run(self, choice: Choice, limit: int = 0) -> Ran:
        """Run steps until they repeat.

        Under a limit the pool gives unused segments back and takes others, so that a later step may find no piece that is large
        enough. So steps run until the pool is as after an earlier step: from then on they repeat.

        Raises:
            OutOfMemoryError: the pool would reserve more than ``limit``; or the steps do not repeat, so that it is not known.
        """
        with dry_run(self.like) as meta:
            meta.pool.set_limit(limit)
            step, batch = self._begin(choice)
            step(*batch)
            counts, seen = OpCounts(), {meta.pool.holes()}
            with scope.listening(counts):
                step(*batch)
            while (holes := meta.pool.holes()) not in seen and len(seen) < STEPS:
                seen.add(holes)
                step(*batch)
            if limit and holes not in seen:
                sizes = meta.pool.used_bytes(), meta.pool.total_bytes(), limit
                raise OutOfMemoryError("meta", 0, *sizes, report=f"No two of {STEPS} steps left the pool alike.")
            pool = meta.pool
            return Ran(counts, pool.peak_used, pool.peak_total, pool.used_bytes(), pool.host().peak_used, step.hooked)

    def _begin(self, choice: Choice, watch: Callable[[Module], None] = lambda model: None) -> tuple[TrainingStep, tuple]:
        model = self.recipe.model()
        watch(model)
        optimizer = self.recipe.optimizer(list(model.parameters()))
        batch = self.recipe.batch()
        return TrainingStep(choice, model, optimizer, self.recipe.loss), batch

    def train(self, choice: Choice, steps: int = 2) -> None:
        """Make the model and the optimizer, and run steps, on the default device."""
        step, batch = self._begin(choice)
        for _ in range(steps):
            step(*batch)

    def look(self, choice: Choice, watch: Callable[[Module], None], listener: scope.Listener) -> str:
        """Run one step with a listener; ``watch`` is called with the model. Returns the name with which module paths begin."""
        with dry_run(self.like):
            step, batch = self._begin(choice, watch)
            with scope.listening(listener):
                step(*batch)
            return step.model._root_name()

    def point(self, choice: Choice) -> Point:
        """The needs of the step with ``choice``."""
        if choice not in self.points:
            self.progress(str(choice))
            counts, peak, reserved, kept, host, hooked = self.run(choice)
            forwards = (counts.ran.total() + counts.again.total()) / counts.ran.total()
            time = counts.time(self.times) + hooked * self.times.python[1]
            self.points[choice] = Point(choice, peak, reserved, kept, host, time, forwards)
        return self.points[choice]

    def fits(self, choice: Choice, budget: int) -> bool:
        """True if the step fits into ``budget`` bytes. Between the peaks in use and reserved, it is tried, once.

        It is tried for a larger budget too if a smaller one was enough, because segments are given back at other times.
        """
        point = self.point(choice)
        if budget <= self._too_small.get(choice, point.peak - 1):
            return False
        if not self.known_to_fit(choice, budget):
            explains, scope.local.explains = scope.local.explains, False
            try:
                self.run(choice, limit=budget)
                self._enough.add((choice, budget))
            except OutOfMemoryError:
                self._too_small[choice] = budget
                return False
            finally:
                scope.local.explains = explains
        return True

    def known_to_fit(self, choice: Choice, budget: int) -> bool:
        """True if earlier runs show that it fits."""
        return budget >= self.points[choice].reserved or (choice, budget) in self._enough
