"""The bytes that a training step needs with a choice of techniques: by running it on ``meta``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import scope
from ..autograd.tensor import Tensor
from ..distributed import init_process_group
from ..distributed.fake import sent
from ..errors import OutOfMemoryError
from ..memory.predict import dry_run
from ..memory.ranks import different, in_runs
from ..nn import Module
from ..optim.optimizer import Optimizer
from .choice import Choice, Loss, TrainingStep
from .times import OpCounts, Times

STEPS = 16  # most steps of a run; it ends when the pool is as before an earlier step


@dataclass(frozen=True)
class Recipe:
    """A training step as functions that make its parts on the default device.

    Attributes:
        batch: makes (inputs, targets) of one rank.
        optimizer: of a list of parameters.
        ranks: the number of processes that train together.
    """

    model: Callable[[], Module]
    batch: Callable[[], tuple[Any, Tensor]]
    loss: Loss
    optimizer: Callable[[list], Optimizer]
    ranks: int = 1


class RankPeak(NamedTuple):
    """The needs of ranks that are alike: peaks in use and reserved, and the bytes that each sends in a step."""

    ranks: tuple[int, ...]
    peak: int
    reserved: int
    sent: int

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {in_runs(self.ranks)}"
        return f"{who}: peak {self.peak:,} bytes, reserved {self.reserved:,}, sends {self.sent:,} in a step"


@dataclass(frozen=True)
class Point:
    """The needs of a training step with a choice of techniques. On several ranks they are the largest of any rank.

    Attributes:
        choice: the techniques.
        peak: most bytes in use, each block rounded up to 512, from the construction of the model on, in any number of steps.
        reserved: most bytes that the pool reserves without a limit. Within a budget it gives unused segments back.
        kept: bytes in use between steps: parameters, optimizer state, buffers, the batch.
        host: most bytes of host memory in use for offloaded arrays.
        time: seconds on the device for the ops of a step, for copies to the host and back, and for what is sent.
        forwards: the number of op forwards in a step, relative to a plain step.
        by_rank: the needs of each different rank; what is sent is counted as ``distributed.fake.sent`` says.
    """

    choice: Choice
    peak: int
    reserved: int
    kept: int
    host: int
    time: float
    forwards: float
    by_rank: tuple[RankPeak, ...]

    @property
    def sent(self) -> int:
        """The most bytes that a rank sends in a step."""
        return max(each.sent for each in self.by_rank)


class Ran(NamedTuple):
    """A run: the ops of its second step, its peaks in use and reserved, bytes in use after it, and the peak on the host.

    Attributes:
        hooked: the number of parameters that were updated in backward.
        sent: the bytes that were sent to other ranks in the second step.
        ranks: those that would run alike.
    """

    counts: OpCounts
    peak: int
    reserved: int
    kept: int
    host: int
    hooked: int
    sent: int
    ranks: tuple[int, ...] = (0,)


class Runs:
    """Runs of one recipe on ``meta``, each made once.

    Args:
        like: whose kernels' workspaces are counted, ``"cpu"`` or ``"cuda"``.
        progress: called with a short text about each run.

    Attributes:
        steps: the most steps of a run.
    """

    steps = STEPS

    def __init__(self, recipe: Recipe, times: Times, like: str, progress: Callable[[str], None]) -> None:
        self.recipe, self.times, self.like, self.progress = recipe, times, like, progress
        self.points: dict[Choice, Point] = {}
        self._too_small: dict[Choice, int] = {}  # the largest budget that was too small
        self._enough: set[tuple[Choice, int]] = set()

    def run(self, choice: Choice, limit: int = 0) -> list[Ran]:
        """Run steps until they repeat, as each different rank.

        Under a limit the pool gives unused segments back and takes others, so that a later step may find no piece that is large
        enough. So steps run until the pool is as after an earlier step: from then on they repeat.
        """
        found = different(lambda rank: self._run(choice, limit, rank), self.recipe.ranks)
        return [ran._replace(ranks=ranks) for ranks, ran, _ in found]

    def _run(self, choice: Choice, limit: int, rank: int) -> tuple[Ran, Any]:
        """The run of one rank, and its device."""
        with dry_run(self.like) as meta:
            meta.place = (rank, self.recipe.ranks)
            meta.pool.set_limit(limit)
            step, batch = self._begin(choice)
            step(*batch)
            counts, seen, before = OpCounts(), {meta.pool.holes()}, sent()
            with scope.listening(counts):
                step(*batch)
            sends = sent() - before
            while (holes := meta.pool.holes()) not in seen and len(seen) < self.steps:
                seen.add(holes)
                step(*batch)
            if limit and holes not in seen:
                sizes = meta.pool.used_bytes(), meta.pool.total_bytes(), limit
                raise OutOfMemoryError("meta", 0, *sizes, report=f"No two of {self.steps} steps left the pool alike.")
            pool = meta.pool
            found = Ran(counts, pool.peak_used, pool.peak_total, pool.used_bytes(), pool.host().peak_used, step.hooked, sends)
            return found, meta

    def _begin(self, choice: Choice, watch: Callable[[Module], None] = lambda model: None) -> tuple[TrainingStep, tuple]:
        if self.recipe.ranks > 1:
            init_process_group()
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
            ran = self.run(choice)
            counts = ran[0].counts
            self.points[choice] = Point(
                choice,
                peak=max(each.peak for each in ran),
                reserved=max(each.reserved for each in ran),
                kept=max(each.kept for each in ran),
                host=max(each.host for each in ran),
                time=max(self._time(choice, each) for each in ran),
                forwards=(counts.ran.total() + counts.again.total()) / counts.ran.total(),
                by_rank=tuple(RankPeak(each.ranks, each.peak, each.reserved, each.sent) for each in ran),
            )
        return self.points[choice]

    def _time(self, choice: Choice, ran: Ran) -> float:  # ranks of a pipeline wait: a mesh's own way
        return ran.counts.time(self.times) + ran.hooked * self.times.python[1] + self.times.sending(ran.sent)

    @property
    def tried(self) -> list[Point]:
        """All choices that have run."""
        return list(self.points.values())

    def fits(self, choice: Choice, budget: int) -> bool:
        """True if the step fits into ``budget`` bytes. Between the peaks in use and reserved, it is tried, once.

        It is tried for a larger budget too if a smaller one was enough, because segments are given back at other times.
        """
        point = self.point(choice)
        if budget <= self._too_small.get(choice, point.peak - 1):
            return False
        if not self.known_to_fit(choice, budget):
            if not self.runs_within(choice, budget):
                self._too_small[choice] = budget
                return False
            self._enough.add((choice, budget))
        return True

    def runs_within(self, choice: Choice, limit: int) -> bool:
        """True if no rank runs out of memory under a limit."""
        explains, scope.local.explains = scope.local.explains, False
        try:
            self.run(choice, limit)
        except OutOfMemoryError:
            return False
        finally:
            scope.local.explains = explains
        return True

    def known_to_fit(self, choice: Choice, budget: int) -> bool:
        """True if earlier runs show that it fits."""
        return budget >= self.points[choice].reserved or (choice, budget) in self._enough
