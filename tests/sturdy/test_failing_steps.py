"""A training step that fails at any one of its allocations, by lack of memory or by the user's hand, and is then made again."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.profiles import every, on_devices, pairs
from tinygrad_mem import nn, optim
from tinygrad_mem.devices import device

RULES = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
}


class Run:
    """A small network with everything that keeps state, its optimizer and one batch; all of it can be photographed."""

    def __init__(self, rule: str, where: str) -> None:
        tm.manual_seed(3)
        self.where = device(where)
        layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.4)]
        layers += [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)]
        self.model = nn.Sequential(*layers).to(where)
        self.optimizer = RULES[rule](self.model.parameters())
        rng = np.random.default_rng(0)
        self.x = tm.tensor(rng.standard_normal((5, 2, 8, 8)), dtype=tm.float32, device=where)
        self.y = tm.tensor(rng.integers(0, 3, 5), device=where)

    def step(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()

    def parameters(self) -> list[np.ndarray]:
        return [p.detach().cpu().numpy().copy() for p in self.model.parameters()]

    def buffers(self) -> list[np.ndarray]:
        return [b.detach().cpu().numpy().copy() for b in self.model.buffers()]

    def state(self) -> list:
        kept = [v for p in self.model.parameters() for _, v in sorted(self.optimizer.state.get(p, {}).items())]
        return [v.detach().cpu().numpy().copy() if isinstance(v, tm.Tensor) else v for v in kept]

    def restore(self, buffers: list[np.ndarray], ticket: Any) -> None:
        """What a step may have moved before it failed, put back by its user."""
        with tm.no_grad():
            for buffer, values in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(tm.tensor(values, device=self.where))
        self.where.generator.state = ticket


@contextmanager
def failing_at(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch, where: str) -> Iterator[list]:
    """The device's ``count``-th allocation from here on raises; the list says whether it was reached."""
    kind, reached, made = type(device(where)), [], 0
    empty = kind.empty

    def fail(self: Any, shape: tuple, dtype: Any) -> Any:
        nonlocal made
        made += 1
        if made == count:
            reached.append(shape)
            raise error
        return empty(self, shape, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "empty", fail)
        yield reached


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


WAYS = [*itertools.product([0, 2], ["out of memory", "interrupt"], ["cpu", "cuda"])]


@pytest.mark.parametrize(("before", "kind", "dev", "rule"), on_devices([(*way, rule) for way, rule in pairs(WAYS, [*RULES])]))
def test_a_failed_step_loses_nothing_and_can_be_made_again(
    rule: str, before: int, kind: str, dev: str, monkeypatch: pytest.MonkeyPatch
):
    gc.collect()  # the errors that earlier tests held lie in cycles with those tests' frames
    undisturbed = Run(rule, dev)
    for _ in range(before + 1):
        undisturbed.step()
    expected = undisturbed.parameters(), undisturbed.buffers(), undisturbed.state()
    run, step, reached = Run(rule, dev), every(2), [True]
    at = 1 + before // 2 - step  # a usual run fails the odd allocations of the first step, the even ones of the third
    for _ in range(before):
        run.step()
    run.optimizer.zero_grad()
    pool = run.where.pool
    while reached:
        at += step
        photo = run.parameters(), run.buffers(), run.state(), run.where.generator.state
        used = pool.used_bytes()
        error = tm.OutOfMemoryError(dev, 4, 0, 0, 0) if kind == "out of memory" else KeyboardInterrupt()
        with failing_at(at, error, monkeypatch, dev) as reached:
            if at > 1000:
                raise AssertionError("a step of so many allocations")
            try:
                run.step()
            except (tm.OutOfMemoryError, KeyboardInterrupt) as caught:
                assert caught is error  # noqa: PT017 (it is held on purpose: its traceback must pin nothing)
                run.optimizer.zero_grad()
                assert pool.used_bytes() == used, f"allocation {at}, {reached[0]}: {pool.used_bytes() - used} bytes are left"
        if not reached:
            break
        assert same(run.parameters(), photo[0]), f"allocation {at}: parameters have changed"
        assert same(run.state(), photo[2]), f"allocation {at}: optimizer state has changed"
        for layer in (m for m in run.model.modules() if isinstance(m, nn.BatchNorm2d)):
            assert layer.running_mean is not None
            moved = bool(layer.running_mean.cpu().numpy().any()) if not before else None
            assert layer.num_batches_tracked is not None
            assert moved is None or moved == bool(int(layer.num_batches_tracked)), f"allocation {at}: buffers half moved"
        run.restore(photo[1], photo[3])
    assert at > 40, "the step was made in too few allocations to be what it says"
    found = run.parameters(), run.buffers(), run.state()
    assert all(map(same, found, expected)), "the step that went through gives other numbers than an undisturbed one"
    run.where.generator.manual_seed(0)


def test_meta_fails_as_the_cpu_does(monkeypatch: pytest.MonkeyPatch):
    """On meta too nothing is left, wherever the step fails."""
    gc.collect()
    run, at, reached = Run("SGD", "meta"), 0, [True]
    while reached:
        at += 1
        used = run.where.pool.used_bytes()
        with failing_at(at, tm.OutOfMemoryError("meta", 4, 0, 0, 0), monkeypatch, "meta") as reached:
            try:
                run.step()
            except tm.OutOfMemoryError:
                run.optimizer.zero_grad()
                assert run.where.pool.used_bytes() == used
    assert at > 40
