"""Run a tip: measure bytes (on the device and on ``meta``), time and numbers."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinygrad_mem as tm
import tinygrad_mem.distributed as dist

from .. import memory
from ..devices import apart
from ..errors import OutOfMemoryError, TinygradMemError, clear_frames
from ..interrupts import context
from ..memory import Comparison, Effect, Track
from .tip import Build, Case, Scene, Tip, Training


@dataclass(frozen=True)
class Numbers:
    """The results of a run: the number of each step, and the parameters before the first and after the last."""

    losses: list[float]
    start: list[np.ndarray]
    end: list[np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """One run of a training on a device."""

    track: Track
    reserved: int  # at the end
    seconds: float | None  # of the last step; None of a prediction
    numbers: Numbers


@dataclass(frozen=True)
class Measured:
    """A case, before and after.

    Attributes:
        when: the case's condition.
        before, after: the runs on the device.
        comparison: the comparison of both runs.
        predicted: the comparison of both predictions.
        exact: whether both predictions equal the runs after every event.
        distance: how far the numbers differ, see :func:`distance`; ``None`` if the parameters have other shapes.
        errors: the distances of before and after from the case's ideal; ``None`` if it has none.
        accuracies: of before and after, on held-out digits; ``None`` if the case has no learners.
        ranks: of several ranks, both runs are predictions of rank 0, without times and numbers.
    """

    when: str
    before: Outcome
    after: Outcome
    comparison: Comparison
    predicted: Comparison
    exact: bool
    distance: float | None
    errors: tuple[float, float] | None
    accuracies: tuple[float, float] | None = None
    ranks: int = 1

    @property
    def reserved(self) -> Effect:
        """The bytes that the pool reserved at the end."""
        return Effect(self.before.reserved, self.after.reserved)

    @property
    def time(self) -> float | None:
        """The time of a step after, relative to before; ``None`` if nothing ran."""
        if self.before.seconds is None or self.after.seconds is None:
            return None
        return self.after.seconds / max(self.before.seconds, 1e-9)


@dataclass(frozen=True)
class Failed:
    """A case that failed: there was too little memory, or the tip does not apply to the network.

    Attributes:
        kind: "out of memory", or "does not apply".
    """

    when: str
    message: str
    kind: str


def measure(tip: Tip, device: str = "cpu") -> list[Measured | Failed]:
    """Run all cases of a tip on ``device``, and predict them for it."""
    return [_measure(case, tip.scene, device) for case in tip.cases]


def _measure(case: Case, scene: Scene, device: str) -> Measured | Failed:
    like = tm.device(device).like
    if case.ranks > 1:
        return _of_ranks(case, scene, like)
    try:
        before, after = (run(build, scene, device) for build in (case.before, case.after))
        ideal = None if case.ideal is None else run(case.ideal, scene, device).numbers
        predicted = [prediction_of(build, scene, like) for build in (case.before, case.after)]
    except TinygradMemError as error:
        clear_frames(error)
        return Failed(case.when, str(error), "out of memory" if isinstance(error, OutOfMemoryError) else "does not apply")
    pairs = zip((before, after), predicted, strict=True)
    return Measured(
        case.when,
        before,
        after,
        before.track.compare(after.track),
        predicted[0].compare(predicted[1]),
        all(np.array_equal(ran.track.timeline().used, said.timeline().used) for ran, said in pairs),
        distance(before.numbers, after.numbers),
        None if ideal is None else (_error(before.numbers, ideal), _error(after.numbers, ideal)),
        None if case.learners is None else (case.learners[0](device), case.learners[1](device)),
    )


def _of_ranks(case: Case, scene: Scene, like: str) -> Measured:
    """The case as it is predicted for rank 0."""
    tracks = [prediction_of(build, scene, like, case.ranks) for build in (case.before, case.after)]
    before, after = (Outcome(track, track.pool("end").reserved, None, Numbers([], [], [])) for track in tracks)
    found = before.track.compare(after.track)
    return Measured(case.when, before, after, found, found, True, None, None, ranks=case.ranks)


def prediction_of(build: Build, scene: Scene, like: str = "cpu", ranks: int = 1) -> Track:
    """The prediction of a run, as rank 0 of ``ranks``."""

    def script() -> None:
        if ranks > 1:
            dist.init_process_group()
        tm.manual_seed(0)
        training = build(scene)
        for _ in range(training.steps):
            training.step()

    with _uncollected():
        return memory.predict(script, like=like, world_size=ranks)


def run(build: Build, scene: Scene, device: str = "cpu") -> Outcome:
    """Build the training and run its steps, with a fixed seed, and without the garbage collector, so that bytes are the same.

    The generators of the calling program are not changed.
    """
    where: Any = tm.device(device)
    if where.pool.used_bytes():
        gc.collect()  # garbage of the run before
    memory.empty_cache(device)
    losses, seconds = [], 0.0
    with _uncollected(), apart(), where, Track(where) as track:
        tm.manual_seed(0)
        training = build(scene)
        start = _parameters(training)
        for _ in range(training.steps):
            began = time.perf_counter()
            losses.append(training.step())
            where.synchronize()
            seconds = time.perf_counter() - began
        end = _parameters(training)
        reserved = where.pool.total_bytes()
        del training
    return Outcome(track, reserved, seconds, Numbers(losses, start, end))


def _parameters(training: Training) -> list[np.ndarray]:
    return [] if training.model is None else [p.detach().cpu().numpy().copy() for p in training.model.parameters()]


@context
def _uncollected() -> Iterator[None]:
    """Inside, the garbage collector does not run: its moments are not predictable."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def distance(a: Numbers, b: Numbers) -> float | None:
    """0 if all numbers are equal bit for bit; else the larger of two relative differences: of the losses, and of the changes of
    the parameters. ``None`` if the parameters have other shapes."""
    if [x.shape for x in a.end] != [x.shape for x in b.end] or len(a.losses) != len(b.losses):
        return None
    alike = all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a.end, b.end, strict=True))
    if alike and np.array_equal(a.losses, b.losses):
        return 0.0
    losses = _relative(np.asarray(a.losses), np.asarray(b.losses))
    return max(losses, _relative(_way(a), _way(b)), np.finfo(np.float64).tiny)


def _way(numbers: Numbers) -> np.ndarray:
    pairs = zip(numbers.end, numbers.start, strict=True)
    return np.concatenate([np.zeros(0), *((end.astype(np.float64) - start).ravel() for end, start in pairs)])


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        difference, size = np.linalg.norm(a - b), max(np.linalg.norm(a), np.linalg.norm(b))
    return 0.0 if difference == 0 else float(difference / size) if np.isfinite(difference) else np.inf


def _error(numbers: Numbers, ideal: Numbers) -> float:
    """The relative distance of the parameters' changes from the ideal ones; of the steps' results if nothing is trained."""
    if ideal.end:
        return _relative(_way(numbers), _way(ideal))
    return _relative(np.asarray(numbers.losses), np.asarray(ideal.losses))
