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
from .times import Heard, Times

STEPS = 16  # that a run takes at most, until the pool is as it was before one of them


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
        peak: most bytes in use, each block rounded up to 512, from the model's making on, in any number of steps.
        reserved: most bytes that the pool has taken, where nothing limits it: inside a budget it gives back what lies unused.
        kept: bytes in use between steps: parameters, optimizer state, buffers, the batch.
        host: most bytes of the host's memory that are in use for what is offloaded.
        time: of a step's ops and copies to the host and back, in seconds of the device that was asked for.
        forwards: forwards of ops in a step over those of a plain one.
    """

    choice: Choice
    peak: int
    reserved: int
    kept: int
    host: int
    time: float
    forwards: float


class Ran(NamedTuple):
    """A run: what was heard of its second step; most bytes in use and reserved, those in use after it, most on the host.

    Attributes:
        hooked: parameters that were updated in backward.
    """

    heard: Heard
    peak: int
    reserved: int
    kept: int
    host: int
    hooked: int


class Runs:
    """Runs of one recipe on ``meta``, each made once.

    Args:
        like: whose workspaces kernels want, ``"cpu"`` or ``"cuda"``.
        tell: called with a few words about each run.
    """

    def __init__(self, recipe: Recipe, times: Times, like: str, tell: Callable[[str], None]) -> None:
        self.recipe, self.times, self.like, self.tell = recipe, times, like, tell
        self.points: dict[Choice, Point] = {}
        self._too_small: dict[Choice, int] = {}  # the largest budget that was
        self._enough: set[tuple[Choice, int]] = set()

    def run(self, choice: Choice, limit: int = 0) -> Ran:
        """Steps until they repeat.

        Under a limit the pool gives back what lies unused and takes other pieces, and a later step may find none that is large
        enough. So steps are made until the pool is as one of them has left it before: from then on they repeat.

        Raises:
            OutOfMemoryError: the pool would take more than ``limit``; or it never repeats, and nobody knows.
        """
        with dry_run(self.like) as meta:
            meta.pool.set_limit(limit)
            step, batch = self._begin(choice)
            step(*batch)
            heard, seen = Heard(), {meta.pool.holes()}
            with scope.listening(heard):
                step(*batch)
            while (holes := meta.pool.holes()) not in seen and len(seen) < STEPS:
                seen.add(holes)
                step(*batch)
            if limit and holes not in seen:
                sizes = meta.pool.used_bytes(), meta.pool.total_bytes(), limit
                raise OutOfMemoryError("meta", 0, *sizes, report=f"No two of {STEPS} steps left the pool alike.")
            pool = meta.pool
            return Ran(heard, pool.peak_used, pool.peak_total, pool.used_bytes(), pool.host().peak_used, step.hooked)

    def _begin(self, choice: Choice, watch: Callable[[Module], None] = lambda model: None) -> tuple[TrainingStep, tuple]:
        model = self.recipe.model()
        watch(model)
        optimizer = self.recipe.optimizer(list(model.parameters()))
        batch = self.recipe.batch()
        return TrainingStep(choice, model, optimizer, self.recipe.loss), batch

    def train(self, choice: Choice, steps: int = 2) -> None:
        """Make all and take steps, on the default device."""
        step, batch = self._begin(choice)
        for _ in range(steps):
            step(*batch)

    def look(self, choice: Choice, watch: Callable[[Module], None], listener: scope.Listener) -> str:
        """One step with a listener, of a model that ``watch`` has been given; says with what its modules' paths begin."""
        with dry_run(self.like):
            step, batch = self._begin(choice, watch)
            with scope.listening(listener):
                step(*batch)
            return step.model._root_name()

    def point(self, choice: Choice) -> Point:
        """The needs of the step with ``choice``."""
        if choice not in self.points:
            self.tell(str(choice))
            heard, peak, reserved, kept, host, hooked = self.run(choice)
            forwards = (heard.ran.total() + heard.again.total()) / heard.ran.total()
            time = heard.time(self.times) + hooked * self.times.python[1]
            self.points[choice] = Point(choice, peak, reserved, kept, host, time, forwards)
        return self.points[choice]

    def fits(self, choice: Choice, budget: int) -> bool:
        """Whether the pool gets along with ``budget`` bytes; between used and reserved it is tried, once.

        A larger budget is tried too where a smaller one was enough: pieces are given back at other times, and lie elsewhere.
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
        """Whether it fits, by what has been tried."""
        return budget >= self.points[choice].reserved or (choice, budget) in self._enough
