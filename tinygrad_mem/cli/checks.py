"""Checks of a device for ``doctor``: results of calls against the CPU's, bytes against predictions, offload, out of memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

import tinygrad_mem as tm

from .. import memory, nn
from ..errors import OutOfMemoryError, clear_frames
from ..memory import Track
from ..memory.log import Kind
from ..models.gpt import GPT
from ..models.mlp import MLP
from ..models.names import Named
from ..models.precision import Step
from ..models.resnet import CifarResNet
from ..recompute import checkpoint_blocks
from ..techniques import save_on_cpu
from ..text import visible
from ..tips.measure import distance, prediction_of
from ..tips.measure import run as ran_on
from ..tips.tip import Scene, Training
from .calls import CALLS, Call

ALLOWED = {"float32": 1e-4, "float16": 1e-2}
"""Allowed errors, relative to the largest value of an array: sums are added in another order."""
LOSSES = {"float32": 1e-3, "float16": 3e-2}
"""Allowed relative errors of losses, which build up over steps."""


@dataclass(frozen=True)
class Check:
    """One kind of check.

    Attributes:
        tried: the number of calls, networks or runs (``what``).
        problems: one sentence for each problem.
    """

    name: str
    tried: int
    what: str
    problems: list[str]
    seconds: float


def run(device: Any) -> Iterator[Check]:
    """Run all checks on ``device``, one after another. An exception is a problem too, and the others go on."""
    calls = [(f"{call.name}, {dtype}", partial(of_a_call, call, dtype, device)) for call in CALLS for dtype in ALLOWED]
    jobs = [(job.name, partial(of_training, job, device)) for job in JOBS]
    for name, what, tries in (
        ("results, against float64 on the cpu", "calls", calls),
        ("training: bytes as predicted, losses", "networks", jobs),
        ("offload to pinned memory", "run", [("offload", partial(of_offload, device))]),
        ("out of memory at a limit", "run", [("a limit", partial(of_a_limit, device))]),
    ):
        began = time.perf_counter()
        problems = [problem for which, attempt in tries for problem in _problems_of(which, attempt)]
        yield Check(name, len(tries), what, problems, time.perf_counter() - began)


def _problems_of(what: str, attempt: Callable[[], list[str]]) -> list[str]:
    try:
        return attempt()
    except Exception as error:
        clear_frames(error)
        first = (str(error).splitlines() or [""])[0]
        return [visible(f"{what}: {type(error).__name__}: {first[:200]}")]


# --- results of ops -------------------------------------------------------------------------------------------------------


def of_a_call(call: Call, dtype: str, device: Any) -> list[str]:
    """Compare the result and gradients in ``dtype`` on ``device`` with the CPU's in float64, relative to its largest value."""
    rng = np.random.default_rng(0)
    inputs = [make(rng) for make in call.inputs]
    inputs = [x.astype(dtype) if x.dtype.kind == "f" else x for x in inputs]
    wanted = _results(call, inputs, "float64", tm.device("cpu"))
    found = _results(call, inputs, dtype, device)
    problems = []
    for name, ours in found.items():
        error = np.inf
        if ours.shape == wanted[name].shape and np.isfinite(ours).all():
            error = float(np.abs(ours - wanted[name]).max(initial=0) / max(np.abs(wanted[name]).max(initial=0), 1e-30))
        if not error <= ALLOWED[dtype]:
            problems.append(f"{call.name}, {dtype}: {name} is off by {error:.1e} of its largest; allowed: {ALLOWED[dtype]:.0e}")
    return problems


def _results(call: Call, inputs: list[np.ndarray], dtype: str, device: Any) -> dict[str, np.ndarray]:
    with device:
        tensors = [tm.tensor(x.astype(dtype) if x.dtype.kind == "f" else x) for x in inputs]
        floats = {f"the gradient of input {i}": t for i, t in enumerate(tensors) if t.is_floating_point()}
        for tensor in floats.values():
            tensor.requires_grad_()
        result = call.function(*tensors)
        weights = np.random.default_rng(1).standard_normal(tuple(result.shape)).astype(np.float16)  # the same in each dtype
        result.backward(tm.tensor(weights.astype(dtype)))
        found = {"the result": result, **{name: t.grad for name, t in floats.items()}}
        return {name: t.detach().cpu().numpy().astype(np.float64) for name, t in found.items()}


# --- training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceCheck:
    """A network that is trained for two steps, with the same initial parameters and data on every device."""

    name: str
    network: Named
    optimizer: Callable[..., Any]
    precision: str = "float32"
    batch_size: int = 8

    @property
    def scene(self) -> Scene:
        return Scene(self.network, self.batch_size)

    def build(self, scene: Scene, region: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Training:
        """Build a training as for a tip; forward runs in ``region``."""
        rng = np.random.default_rng(0)
        model, (x, y) = _with_parameters(scene.model(), rng), self._data(rng)
        step = Step(self.precision, x.device.type)
        rule = self.optimizer(step.prepare(model).parameters(), **step.options)

        def train() -> float:
            rule.zero_grad()
            with region(), step.region():
                loss = scene.loss(step.forward(model, x), y)
            step.backward(loss)
            step.update(rule)
            return loss.item()

        return Training(train, model)

    def _data(self, rng: np.random.Generator) -> tuple[tm.Tensor, tm.Tensor]:
        known, shape = self.network, (self.batch_size, *self.network.sample)
        x = rng.integers(0, known.tokens, shape) if known.tokens else rng.standard_normal(shape).astype(np.float32)
        y = rng.integers(0, known.classes, shape if known.tokens else shape[:1])
        return tm.tensor(x), tm.tensor(y)


@tm.no_grad()
def _with_parameters(model: nn.Module, rng: np.random.Generator) -> nn.Module:
    """The model with parameters from NumPy's generator, which are the same on every device."""
    for p in model.parameters():
        p.copy_(tm.tensor((rng.standard_normal(tuple(p.shape)) * 0.1).astype(np.float32)))
    return model


JOBS = (
    DeviceCheck("linear layers, Adam", Named(lambda: MLP((64, 96, 96, 10)), (64,), 10), tm.optim.Adam, batch_size=512),
    DeviceCheck(
        "convolutions, SGD", Named(lambda: CifarResNet(1), (3, 12, 12), 10), partial(tm.optim.SGD, lr=0.1, momentum=0.9)
    ),
    DeviceCheck(
        "attention, AdamW, autocast", Named(lambda: GPT(2, 4, 32, 16, 40), (16,), 40, tokens=40), tm.optim.AdamW, "autocast"
    ),
    DeviceCheck("recompute, Adam8bit", Named(lambda: checkpoint_blocks(MLP((64,) * 6), "sqrt"), (64,), 64), tm.optim.Adam8bit),
)


def of_training(job: DeviceCheck, device: Any) -> list[str]:
    """Check that the bytes of every event are as predicted, and the losses as on the CPU."""
    ran = ran_on(job.build, job.scene, str(device))
    problems = _unlike(job.name, ran.track, prediction_of(job.build, job.scene, device.like))
    allowed = LOSSES["float32" if job.precision == "float32" else "float16"]
    wanted = ran_on(job.build, job.scene, "cpu").numbers.losses
    for step, (ours, theirs) in enumerate(zip(ran.numbers.losses, wanted, strict=True)):
        if not abs(ours - theirs) <= allowed * abs(theirs):
            problems.append(f"{job.name}: loss {ours:.6g} in step {step}, on the CPU it is {theirs:.6g}")
    return problems


def _unlike(name: str, ran: Track, said: Track) -> list[str]:
    """The first difference between the run and its prediction, as a problem."""
    found, predicted = _changes(ran), _changes(said)
    for number, (ours, theirs) in enumerate(zip_longest(found, predicted, fillvalue="nothing")):
        if ours != theirs:
            return [
                f"{name}: at change {number} of {len(found)} the run has {ours}, its prediction {theirs}; "
                f"the peaks are {ran.peak:,} and {said.peak:,} bytes"
            ]
    return []


def _changes(track: Track) -> list[str]:
    return [
        f"{'+' if e.kind is Kind.MALLOC else '-'}{e.rounded:,} bytes by {e.op or 'no op'} in {e.phase}"
        for e in track.log
        if e.kind in (Kind.MALLOC, Kind.FREE)
    ]


def of_offload(device: Any) -> list[str]:
    """Check offload: the same numbers, fewer bytes, as predicted, and an empty host pool afterwards."""
    job = JOBS[0]
    moved = partial(job.build, region=partial(save_on_cpu, pin_memory=True))
    plain, ran = ran_on(job.build, job.scene, str(device)), ran_on(moved, job.scene, str(device))
    problems = _unlike("offload", ran.track, prediction_of(moved, job.scene, device.like))
    if distance(plain.numbers, ran.numbers) != 0:
        problems.append("offload: the parameters are not, bit for bit, those of training without it")
    if ran.track.peak >= plain.track.peak:
        problems.append(f"offload: the peak is {ran.track.peak:,} bytes, and {plain.track.peak:,} without it")
    host = device.pool.host(pinned=True)
    if host.used_bytes() or not host.peak_used:
        problems.append(f"offload: {host.used_bytes():,} bytes are left on the host, {host.peak_used:,} were there at most")
    return problems


def of_a_limit(device: Any) -> list[str]:
    """Check a limit of half the peak: the step must run out of memory, free everything, and train as before afterwards."""
    job = JOBS[0]
    before = ran_on(job.build, job.scene, str(device))
    used = device.pool.used_bytes()
    half = used + (before.track.peak - used) // 2
    device.pool.free_all_blocks()
    if device.pool.total_bytes() > half:
        return [f"a limit: not checked: {device.pool.total_bytes() - used:,} bytes are free between blocks that are in use"]
    problems = []
    try:
        with memory.limit(half, device):
            ran_on(job.build, job.scene, str(device))
        problems.append("a limit: half of the peak was enough")
    except OutOfMemoryError as error:
        clear_frames(error)
    gc.collect()
    if device.pool.used_bytes() != used:
        problems.append(f"a limit: {device.pool.used_bytes() - used:,} bytes more are in use after the step that failed")
    if distance(before.numbers, ran_on(job.build, job.scene, str(device)).numbers) != 0:
        problems.append("a limit: after the step that failed, training gives other numbers")
    return problems
