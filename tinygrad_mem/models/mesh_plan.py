"""``plan_mesh``: over which mesh of ranks a transformer trains fastest, if no rank may need more than a budget.

Every way to divide the network is sketched first: networks of few layers a stage, with few micro-batches, run on ``meta`` as
the first and the last rank. Bytes and times grow by the same amount with each layer and each micro-batch, so the sketch tells
those of all. Then the settings run in full, as every different rank, from the fastest on, until one fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import bfloat16, optim
from ..errors import ArgumentError, BudgetError, is_whole
from ..memory.sizes import bytes_text, parse_bytes
from ..plan import Point, Times
from ..plan.runs import Ran, Recipe, Runs
from .parallel import Mesh, MeshTraining, TransformerSize, reason_against

NEAR = 1.005  # times the budget: a setting whose sketch is larger is not run in full


@dataclass(frozen=True)
class Setting:
    """A mesh, and what each block recomputes: ``""`` or ``"full"``."""

    mesh: Mesh
    recompute: str

    def __str__(self) -> str:
        mesh = self.mesh
        grid = [f"{name} {n}" for name in ("data", "pipeline", "context", "tensor") if (n := getattr(mesh, name)) > 1]
        parts = [" x ".join(grid) or "one rank", *([f"ZeRO {mesh.zero}"] if mesh.zero else [])]
        parts += ["each block recomputed"] * bool(self.recompute)
        return ", ".join([*parts, f"{mesh.count} micro-batch{'es' * (mesh.count > 1)} of {mesh.micro}"])


class Sketch(NamedTuple):
    """The needs of a setting, extrapolated from a small network: peak of a rank in bytes, seconds, and bytes that it sends."""

    setting: Setting
    peak: float
    time: float
    sent: float


@dataclass
class MeshPlan:
    """The fastest setting that fits.

    Attributes:
        budget: bytes of each rank; ``None``: the fastest setting of all.
        point: the setting, and what it needs: each different rank has run on ``meta``.
        sketches: all settings, the fastest first.
        full: the settings that have run in full, within the budget or until they exceeded it.
    """

    size: TransformerSize
    budget: int | None
    point: Point
    sketches: list[Sketch]
    full: list[Setting]
    runs: _MeshRuns

    def within(self, budget: int | str) -> MeshPlan:
        """The plan of the same step for another budget.

        Raises:
            BudgetError, ValueError: as :func:`plan_mesh`.
        """
        return _first_fit(self.size, self.sketches, self.runs, parse_bytes(budget))

    @property
    def setting(self) -> Setting:
        """The mesh, and what is recomputed."""
        return self.point.choice  # type: ignore[return-value]

    def lines(self) -> str:
        """The lines of a program that each rank runs."""
        size = replace(self.size, recompute=self.setting.recompute)
        return "\n".join(
            [
                "from tinygrad_mem.models.parallel import Mesh, MeshTraining, TransformerSize",
                "",
                f"size = {size!r}",
                f"training = MeshTraining(size, {self.setting.mesh!r})",
                "training.step(tokens, targets)  # this rank's samples",
                f"# start it: python -m tinygrad_mem launch -n {self.setting.mesh.ranks()} train.py",
            ]
        )

    def __str__(self) -> str:
        point, inside = self.point, "" if self.budget is None else f" of {bytes_text(self.budget)}"
        slower = point.time / self.sketches[0].time
        lines = [f"{self.setting}: peak {bytes_text(point.peak)}{inside}, {slower:.2f} of the fastest setting's time"]
        lines += map(str, point.by_rank)
        meshes = len({replace(each.setting.mesh, zero=0, micro=1, count=1) for each in self.sketches})
        return "\n".join([*lines, f"tried: {len(self.sketches)} settings on {meshes} meshes, {len(self.full)} of them in full"])


class _MeshRuns(Runs):
    """Runs of settings of one network. A choice is a :class:`Setting`."""

    def __init__(self, size: TransformerSize, ranks: int, make: Callable[..., MeshTraining], times: Times, like: str, say: Any):
        unused: Any = None
        super().__init__(Recipe(unused, unused, unused, unused, ranks), times, like, say)
        self._size, self._make = size, make

    def _begin(self, choice: Any, watch: Any = None) -> tuple[Any, tuple]:
        training = self._make(replace(self._size, recompute=choice.recompute), choice.mesh)
        return _Step(training), ()

    def _time(self, choice: Any, ran: Ran) -> float:
        return super()._time(choice, ran) * _wait(choice.mesh)

    def ends(self, setting: Setting) -> np.ndarray:
        """Peak, seconds without waiting, and sent bytes of the first and the last rank: the larger of both."""
        ranks = sorted({0, setting.mesh.ranks() - 1} if setting.mesh.pipeline > 1 else {0})
        ran = [self._run(setting, 0, rank)[0] for rank in ranks]  # type: ignore[arg-type]
        return np.max([(each.peak, super(_MeshRuns, self)._time(setting, each), each.sent) for each in ran], 0)  # type: ignore[arg-type]


def _wait(mesh: Mesh) -> float:
    """The factor by which a step takes longer, because ranks of a pipeline wait while p - 1 micro-batches fill and empty it."""
    return 1 + (mesh.pipeline - 1) / mesh.count


class _Step:
    hooked = 0

    def __init__(self, training: MeshTraining) -> None:
        self._training = training

    def __call__(self) -> None:
        self._training.step()


def plan_mesh(
    size: TransformerSize,
    samples: int,
    ranks: int,
    budget: int | str | None = None,
    *,
    dtype: Any = bfloat16,
    rule: Callable[..., optim.Optimizer] = optim.AdamW,
    like: str = "cpu",
    progress: Callable[[str], None] = lambda what: None,
    **options: Any,
) -> MeshPlan:
    """Find the fastest setting: the mesh (data x pipeline x context x tensor), the stage of ZeRO, what is recomputed.

    Times are modelled, from bytes and multiplications; what a rank sends counts as 25 GB/s, and a pipeline's wait is added.

    Args:
        samples: of a step, of all ranks together.
        ranks: the number of processes.
        budget: bytes, or text such as ``"80 GiB"``, for all that a rank's pool reserves.
        dtype, rule, options: of ``MeshTraining``; 16-bit parameters have float32 masters.
        like: ``"cpu"`` or ``"cuda"``, whose kernels' workspaces are counted.
        progress: called with a short text about each setting that is tried.

    Raises:
        ArgumentError: no mesh of ``ranks`` ranks divides this network and this batch.
        BudgetError: no setting fits; the message says what the smallest needs.
    """
    for name, value in (("ranks", ranks), ("samples", samples)):
        if not is_whole(value):
            raise ArgumentError(f"plan_mesh: {name} is a whole number from 1 on, found {value!r}")
    room = None if budget is None else parse_bytes(budget)
    found = list(settings(size, samples, ranks))
    if not found:
        raise ArgumentError(_no_mesh(size, samples, ranks))
    make, times = partial(MeshTraining, dtype=dtype, rule=rule, **options), Times("meta")
    runs = partial(_MeshRuns, ranks=ranks, make=make, times=times, like=like, say=progress)
    sketches = []
    for setting in found:
        progress(str(setting))
        sketches.append(_sketch(setting, size, runs))
    sketches.sort(key=lambda each: each.time)
    return _first_fit(size, sketches, runs(size), room)


def _sketch(setting: Setting, size: TransformerSize, runs: Callable[..., _MeshRuns]) -> Sketch:
    """The needs of a setting, extrapolated from networks with few layers a stage and just enough micro-batches to fill it."""
    stages, count = setting.mesh.pipeline, setting.mesh.count
    few = min(count, stages + 1)

    def at(layers: int, count: int) -> np.ndarray:
        small = runs(replace(size, layers=layers * stages))
        small.steps = 1  # beyond the first two, which have all that a step needs
        return small.ends(replace(setting, mesh=replace(setting.mesh, count=count)))

    deep = -(-size.layers // stages)
    low = min(deep, 3 if setting.mesh.zero > 1 else 1)  # fully_shard may have three layers gathered at a time
    more = deep - low

    def grown(count: int) -> np.ndarray:
        first = at(low, count)
        return first + (at(low + 1, count) - first) * more if more else first

    found = grown(few)
    if count > few:
        found = found + (grown(few + 1) - found) * (count - few)
    peak, time, sent = found.tolist()
    return Sketch(setting, peak, time * _wait(setting.mesh), sent)


def _first_fit(size: TransformerSize, sketches: list[Sketch], whole: _MeshRuns, room: int | None) -> MeshPlan:
    """The fastest setting that fits when it runs in full."""
    tried: list[Setting] = []
    for each in sketches:
        choice: Any = each.setting
        if room is not None and each.peak > NEAR * room:
            continue
        tried.append(choice)
        if room is None or whole.runs_within(choice, room):
            return MeshPlan(size, room, whole.point(choice), sketches, tried, whole)
    least: Any = min(sketches, key=lambda each: each.peak).setting
    point = whole.point(least)
    raise BudgetError(
        f"plan_mesh: nothing fits into {bytes_text(room or 0)}. Of {len(sketches)} settings the smallest ({least}) needs "
        f"{bytes_text(point.peak)} in use and {bytes_text(point.reserved)} from the machine, on its largest rank. Use more "
        "ranks, a smaller batch, shorter sequences or a lighter optimizer."
    )


def settings(size: TransformerSize, samples: int, ranks: int) -> Iterator[Setting]:
    """All settings that divide a network and a batch: micro-batches of one sample and, without a pipeline, of all."""
    for pipeline in _divisors(ranks):
        for tensor in _divisors(ranks // pipeline):
            for context in _divisors(ranks // pipeline // tensor):
                mesh = Mesh(ranks // pipeline // tensor // context, pipeline, context, tensor)
                if samples % mesh.data or reason_against(size, mesh):
                    continue
                each = samples // mesh.data
                for micro in dict.fromkeys([1] if pipeline > 1 else [1, each]):
                    for zero in range(4 if mesh.data * context > 1 else 1):
                        for recompute in ("", "full"):
                            yield Setting(replace(mesh, micro=micro, count=each // micro, zero=zero), recompute)


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _no_mesh(size: TransformerSize, samples: int, ranks: int) -> str:
    alone = [("tensor", Mesh(tensor=ranks)), ("context", Mesh(context=ranks)), ("pipeline", Mesh(pipeline=ranks))]
    said = [f"{name}: {reason}" for name, mesh in alone if (reason := reason_against(size, mesh))]
    return (
        f"plan_mesh: no mesh of {ranks} ranks divides this network and {samples} samples. data: {samples} samples cannot be "
        f"divided by {ranks}; {'; '.join(said)}"
    )
