"""Steps with a technique that fail at any one of their allocations: nothing is lost or left, and they can be made again."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.profiles import every, on_devices, pairs
from tests.sturdy.test_failing_steps import Run, failing_at, same
from tinygrad_mem import nn
from tinygrad_mem.devices import round_up
from tinygrad_mem.techniques import InPlaceABN, accumulate, compressed, optimizer_in_backward, save_on_cpu
from tinygrad_mem.utils.checkpoint import checkpoint, checkpoint_sequential


class Plain(Run):
    """What is changed by each technique: how the loss is made."""

    def __init__(self, where: str) -> None:
        super().__init__("Adam", where)

    def loss(self) -> Any:
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


class Checkpointed(Plain):
    """Segments, and a segment inside another."""

    def loss(self) -> Any:
        def inner(x: Any) -> Any:
            return checkpoint(self.model[3:5], checkpoint(self.model[:3], x))

        return nn.functional.cross_entropy(checkpoint_sequential([inner, *self.model[5:]], 3, self.x), self.y)


class Offloaded(Plain):
    pinned = False

    def loss(self) -> Any:
        with save_on_cpu(pin_memory=self.pinned):
            return super().loss()


class Prefetched(Offloaded):
    pinned = True


class Compressed(Plain):
    def loss(self) -> Any:
        with compressed(8, group=8, at_least=8):
            return super().loss()


class InPlace(Plain):
    def __init__(self, where: str) -> None:
        super().__init__(where)
        layers = list(self.model)
        kept = [InPlaceABN(m.num_features) if isinstance(m, nn.BatchNorm2d) else m for m in layers]
        self.model = nn.Sequential(*[m for m in kept if not isinstance(m, nn.ReLU)]).to(where)
        self.optimizer = tm.optim.Adam(self.model.parameters(), lr=0.01, amsgrad=True)


class Accumulated(Plain):
    def step(self) -> None:
        accumulate(self.model, self.optimizer, 2).split(self.x, self.y, nn.functional.cross_entropy)


KINDS = ["out of memory", "interrupt"]
WHOLE = {kind.__name__: kind for kind in (Checkpointed, Offloaded, Prefetched, Compressed, InPlace, Accumulated)}
"""Those whose update comes after backward: where it fails, no parameter has moved."""


def held(run: Run) -> tuple[int, int]:
    """Bytes on the device, and on the host beside it."""
    return run.where.pool.used_bytes(), run.where.pool.host().used_bytes()


def stepped(run: Run, steps: int) -> Run:
    """After so many steps, each with random numbers of its own."""
    for i in range(steps):
        run.where.generator.manual_seed(i)
        run.step()
    return run


def error_of(kind: str, where: str) -> BaseException:
    return tm.OutOfMemoryError(where, 4, 0, 0, 0) if kind == "out of memory" else KeyboardInterrupt()


def attempt(run: Run, at: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A step whose ``at``-th allocation fails; whether it had so many."""
    with failing_at(at, error, monkeypatch, str(run.where)) as reached:
        try:
            run.step()
        except (tm.OutOfMemoryError, KeyboardInterrupt) as caught:
            assert caught is error  # noqa: PT017 (it is held on purpose: its traceback must pin nothing)
            run.optimizer.zero_grad()
    return bool(reached)


@pytest.mark.parametrize(("technique", "kind", "before", "dev"), on_devices(pairs(list(WHOLE), KINDS, [0, 1], ["cpu", "cuda"])))
def test_a_failed_step_loses_nothing_and_can_be_made_again(
    technique: str, kind: str, before: int, dev: str, monkeypatch: pytest.MonkeyPatch
):
    gc.collect()
    undisturbed = stepped(WHOLE[technique](dev), before + 1)
    run = stepped(WHOLE[technique](dev), before)
    run.optimizer.zero_grad()
    run.where.generator.manual_seed(before)
    error, at, step = error_of(kind, dev), 1 + before, every(6)
    photo, ticket, used = (run.parameters(), run.state()), run.where.generator.state, held(run)
    buffers = run.buffers()
    while attempt(run, at, error, monkeypatch):
        assert held(run) == used, f"allocation {at}: {np.subtract(held(run), used)} bytes are left"
        assert all(map(same, (run.parameters(), run.state()), photo)), f"allocation {at}: parameters or state have changed"
        run.restore(buffers, ticket)
        at += step
    assert at > 40, "the step was made in too few allocations to be what it says"
    assert same(run.parameters(), undisturbed.parameters())
    assert same(run.buffers(), undisturbed.buffers())
    assert same(run.state(), undisturbed.state())


class InBackward(Plain):
    def __init__(self, where: str) -> None:
        super().__init__(where)
        optimizer_in_backward(self.optimizer)

    def step(self) -> None:
        self.loss().backward()


def each(run: Run) -> list[list[np.ndarray]]:
    """Of each parameter, its values and its state."""
    states = [run.optimizer.state.get(p, {}) for p in run.model.parameters()]
    return [
        [values, *(np.array(v.detach().cpu().numpy() if isinstance(v, tm.Tensor) else v) for _, v in sorted(state.items()))]
        for values, state in zip(run.parameters(), states, strict=True)
    ]


def state_bytes(run: Run) -> int:
    """Of the optimizer's state in the pool."""
    values = [v for state in run.optimizer.state.values() for v in state.values()]
    return sum(round_up(v.nbytes) for v in values if isinstance(v, tm.Tensor))


@pytest.mark.parametrize(("kind", "before", "dev"), on_devices(pairs(KINDS, [0, 1], ["cpu", "cuda"])))
def test_in_backward_each_parameter_is_updated_with_its_state_or_not_at_all(
    kind: str, before: int, dev: str, monkeypatch: pytest.MonkeyPatch
):
    """There is no way back from an update; but none is made by half, no gradient stays, and the next step goes on."""
    gc.collect()
    error, at, reached, updated = error_of(kind, dev), 1 - every(2), True, set()
    last, after = (each(stepped(InBackward(dev), steps)) for steps in (before, before + 1))
    while reached:
        at += every(2)
        run = stepped(InBackward(dev), before)
        run.where.generator.manual_seed(before)
        apart = held(run)[0] - state_bytes(run)
        reached = attempt(run, at, error, monkeypatch)
        found = each(run)
        moved = [same(ours, new) for ours, new in zip(found, after, strict=True)]
        whole = [new or same(ours, old) for ours, old, new in zip(found, last, moved, strict=True)]
        assert all(whole), f"allocation {at}: a parameter and its state were updated by half"
        assert held(run) == (apart + state_bytes(run), 0), f"allocation {at}: something is left beside the state"
        assert all(p.grad is None for p in run.model.parameters())
        updated.add(sum(moved))
        stepped(run, 1)  # nothing stands in the way of the next step
    stops = len(after) + 1 if not before else len(after) // 2  # the first step makes state before each update
    assert len(updated) >= stops, "a step that stopped between updates"
