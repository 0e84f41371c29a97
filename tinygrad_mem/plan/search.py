"""The search: what a step needs with each choice of techniques, by running it on ``meta``; the cheapest choice that fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import scope
from ..autograd.tensor import Tensor
from ..errors import OutOfMemoryError
from ..memory.predict import dry_run
from ..nn import Module
from ..optim.optimizer import Optimizer
from . import chains
from .choice import Choice, Loss, Recompute, TrainingStep
from .times import Call, Times, call_of

POINTS = 12  # of the front
SECOND_LOOKS = 3  # choices before the one that bisection found
ALIKE = 0.998  # of a peak: what saves less is not worth a row
STEPS = 16  # that a run takes at most, until the pool is as it was before one of them
PARTS = (2, 4, 8, 16, 32, 64, 128)


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
    """What a training step needs with a choice of techniques.

    Attributes:
        choice: the techniques.
        peak: most bytes in use, each block rounded up to 512, from the model's making on, in any number of steps.
        reserved: most bytes that the pool has taken.
        time: of a step's ops, in seconds of the device that was asked for.
        forwards: forwards of ops in a step over those of a plain one.
    """

    choice: Choice
    peak: int
    reserved: int
    time: float
    forwards: float


class _Ops(scope.Listener):
    """Counts what runs, by module and phase."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[str, Call]] = Counter()
        self.again: Counter[Call] = Counter()

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        call = call_of(node, arrays, params)
        if scope.local.phase == "recompute":
            self.again[call] += 1
        else:
            self.ran[scope.local.module, call] += 1


class Search:
    """Runs of one recipe on ``meta``, each made once.

    Args:
        like: whose workspaces kernels want, ``"cpu"`` or ``"cuda"``.
        allow: names of the techniques that may be used.
        tell: called with a few words about each run.
    """

    def __init__(self, recipe: Recipe, times: Times, like: str, allow: Sequence[str], tell: Callable[[str], None]) -> None:
        self.recipe, self.times, self.like, self.allow, self.tell = recipe, times, like, tuple(allow), tell
        self._points: dict[Choice, Point] = {}
        self._tried: dict[Choice, tuple[int, int]] = {}  # the largest budget that was too small, the smallest that was enough
        self._recomputing: dict[int, list[tuple[int, float, tuple[Recompute, ...]]]] = {}
        self.plain = self.point(Choice())

    def run(self, choice: Choice, limit: int = 0, watch: Callable[[Module], Any] | None = None) -> tuple[_Ops, int, int, Any]:
        """Steps until they repeat: what ran in the second, most bytes in use and reserved, what ``watch`` found in the model.

        Under a limit the pool gives back what lies unused and takes other pieces, and a later step may find none that is large
        enough. So steps are made until the pool is as one of them has left it before: from then on they repeat.

        Raises:
            OutOfMemoryError: the pool would take more than ``limit``; or it never repeats, and nobody knows.
        """
        with dry_run(self.like) as meta:
            meta.pool.set_limit(limit)
            model = self.recipe.model()
            found = None if watch is None else watch(model)
            optimizer = self.recipe.optimizer(list(model.parameters()))
            batch = self.recipe.batch()
            step = TrainingStep(choice, model, optimizer, self.recipe.loss)
            step(*batch)
            chains_found = None if found is None else list(found)  # of the first step
            ops, seen = _Ops(), {meta.pool.holes()}
            scope.listen(ops)
            try:
                step(*batch)
            finally:
                scope.unlisten(ops)
            while (holes := meta.pool.holes()) not in seen and len(seen) < STEPS:
                seen.add(holes)
                step(*batch)
            if limit and holes not in seen:
                sizes = meta.pool.used_bytes(), meta.pool.total_bytes(), limit
                raise OutOfMemoryError("meta", 0, *sizes, report=f"No two of {STEPS} steps left the pool alike.")
            return ops, meta.pool.peak_used, meta.pool.peak_total, (type(model).__name__, chains_found)

    def train(self, choice: Choice, steps: int = 2) -> None:
        """Make all and take steps, on the default device."""
        model = self.recipe.model()
        optimizer = self.recipe.optimizer(list(model.parameters()))
        batch = self.recipe.batch()
        step = TrainingStep(choice, model, optimizer, self.recipe.loss)
        for _ in range(steps):
            step(*batch)

    def point(self, choice: Choice) -> Point:
        """What the step needs with ``choice``."""
        if choice not in self._points:
            self.tell(str(choice))
            ops, peak, reserved, _ = self.run(choice)
            spent = [(self.times.of(call), count) for (_, call), count in ops.ran.items()]
            time = sum((f + b) * n for (f, b), n in spent) + sum(self.times.of(c)[0] * n for c, n in ops.again.items())
            forwards = (ops.ran.total() + ops.again.total()) / ops.ran.total()
            self._points[choice] = Point(choice, peak, reserved, time, forwards)
        return self._points[choice]

    def fits(self, choice: Choice, budget: int) -> bool:
        """Whether the pool gets along with ``budget`` bytes; between used and reserved it is tried, once."""
        point = self.point(choice)
        too_small, enough = self._tried.get(choice, (point.peak - 1, point.reserved))
        if too_small < budget < enough:
            autopsy, scope.autopsy = scope.autopsy, None  # who has the memory is not asked here, and takes its time
            try:
                self.run(choice, limit=budget)
                enough = budget
            except OutOfMemoryError:
                too_small = budget
            finally:
                scope.autopsy = autopsy
            self._tried[choice] = too_small, enough
        return budget >= enough

    def recomputing(self, parts: int) -> list[tuple[int, float, tuple[Recompute, ...]]]:
        """Ways to recompute, the cheapest first, each with a lower peak than those before by the chains' own costs."""
        if parts not in self._recomputing:
            self._recomputing[parts] = self._ways(parts) if "recompute" in self.allow else [(0, 0.0, ())]
        return self._recomputing[parts]

    def _ways(self, parts: int) -> list[tuple[int, float, tuple[Recompute, ...]]]:
        ops, _, _, (root, found) = self.run(Choice(parts=parts), watch=chains.watch)
        calls = Counter(each.path for each in found)
        once = [each for each in found if calls[each.path] == parts]
        first = list({each.path: each for each in reversed(once)}.values())[::-1]
        usable = [each for each in first if len(each.inputs) == 1 and isinstance(each.inputs[0], Tensor)]
        per_part: Counter[tuple[str, Call]] = Counter({key: max(n // parts, 1) for key, n in ops.ran.items()})
        return chains.combined([(c.path, *chains.ways(c, per_part, self.times, root)) for c in usable])

    def choices(self, parts: int, in_backward: bool) -> list[Choice]:
        """All ways to recompute, with other techniques as given, the cheapest first."""
        return [Choice(recompute, in_backward, parts) for _, _, recompute in self.recomputing(parts)]

    def _bases(self) -> list[tuple[int, bool]]:
        """(parts of the batch, optimizer in backward), those first that change least."""
        in_backward = [False, True] if "in_backward" in self.allow else [False]
        bases = [(1, on) for on in in_backward]
        if "accumulation" in self.allow:
            size = _length(self.recipe)
            bases += [(parts, False) for parts in PARTS if parts <= size]
        return bases

    def cheapest(self, budget: int) -> Choice | None:
        """The choice of least time that fits; of equal ones that with the fewest techniques. ``None`` where nothing fits."""
        found: list[Choice] = []
        for parts, in_backward in self._bases():
            if found and parts > 1:
                break  # splitting the batch changes numbers: only where nothing else fits
            fitting = self._first_fit(self.choices(parts, in_backward), budget)
            if fitting is not None:
                found.append(fitting)
            if fitting == Choice():
                return fitting
        whole = any(choice.parts == 1 for choice in found)
        found += [c for c in self._points if self._known_to_fit(c, budget) and not (whole and c.parts > 1)]
        return min(found, key=lambda c: (round(self.point(c).time / self.plain.time, 3), len(c.techniques)), default=None)

    def _known_to_fit(self, choice: Choice, budget: int) -> bool:
        point = self._points[choice]
        return budget >= self._tried.get(choice, (0, point.reserved))[1]

    def _first_fit(self, ordered: list[Choice], budget: int) -> Choice | None:
        """The first that fits, by bisection: later ones mostly need less. Where memory is in pieces they may not: see below."""
        low, high = 0, len(ordered) - 1
        if not self.fits(ordered[high], budget):
            return next((choice for choice in ordered[-4:-1] if self.fits(choice, budget)), None)
        while low < high:
            middle = (low + high) // 2
            if self.fits(ordered[middle], budget):
                high = middle
            else:
                low = middle + 1
        earlier = sorted({high * i // SECOND_LOOKS for i in range(SECOND_LOOKS)} - {high})
        return next((ordered[i] for i in earlier if self.fits(ordered[i], budget)), ordered[high])

    def front(self) -> list[Point]:
        """Peak against time: points that no other beats in both, from the fastest to the smallest."""
        for parts, in_backward in self._bases():
            ordered = self.choices(parts, in_backward)
            for i in _spread([peak for peak, _, _ in self.recomputing(parts)], POINTS if parts == 1 else 2):
                self.point(ordered[i])
        return undominated(self._points.values())

    def smallest(self) -> Point:
        """The least that was found."""
        for parts, in_backward in self._bases():
            for choice in self.choices(parts, in_backward)[-3:]:
                self.point(choice)
        return min(self._points.values(), key=lambda point: (point.peak, point.time))


def _spread(peaks: list[int], points: int) -> list[int]:
    """Positions in falling ``peaks``, the ends among them, at about even steps of bytes."""
    step = (peaks[0] - peaks[-1]) / (points - 1)
    found = [0]
    for i, peak in enumerate(peaks):
        if i == len(peaks) - 1 or (step and peaks[found[-1]] - peak >= step):
            found.append(i)
    return list(dict.fromkeys(found))


def undominated(points: Iterable[Point]) -> list[Point]:
    """Those that no other beats in both peak and time; of those that are alike, the one with the fewest techniques."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.time, len(p.choice.techniques), p.peak)):
        if not found or point.peak < ALIKE * found[-1].peak:
            found.append(point)
    return found


def _length(recipe: Recipe) -> int:
    with dry_run():
        return len(recipe.batch()[1])
