"""Random numbers belong to who draws them: what is computed again repeats its own, what is measured moves nobody's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.interleave import interleavings
from tinygrad_mem import nn, recompute
from tinygrad_mem.devices import device, random
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import ReversibleBlock, ReversibleSequential
from tinygrad_mem.tips import TIPS, Measured, digits, measure
from tinygrad_mem.tips.optimizers import adam
from tinygrad_mem.utils.checkpoint import checkpoint, checkpoint_sequential


class Neighbour:
    """A thread of somebody else's, which draws a number whenever it is told to."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.drawn: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while self.told.get():
            self.drawn.put(device("cpu").generator.ticket())

    def draw(self) -> tuple[int, int]:
        """Have it draw, and wait until it has."""
        self.told.put(True)
        return self.drawn.get(timeout=60)

    def begin(self) -> tuple[int, int] | None:
        """Have it draw; what, if it can at once."""
        self.told.put(True)
        with suppress(queue.Empty):
            return self.drawn.get(timeout=0.003)
        return None


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    """Begun before the function that it stands beside: it is no part of that."""
    found = Neighbour()
    yield found
    found.told.put(False)
    found.thread.join()


class Beside(nn.Module):
    """As its input; meanwhile the neighbour draws."""

    def __init__(self, neighbour: Neighbour, drawn: list) -> None:
        super().__init__()
        self.neighbour, self.drawn = neighbour, drawn

    def forward(self, x: Any) -> Any:
        self.drawn.append(self.neighbour.draw())
        return x * 1


def layers(neighbour: Neighbour, drawn: list) -> list[nn.Module]:
    tm.manual_seed(3)

    def part() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), Beside(neighbour, drawn), nn.Dropout(0.3), nn.Tanh())

    return [part() for _ in range(4)]


def nested(parts: list[nn.Module], x: Any) -> Any:
    return checkpoint(lambda x: parts[3](checkpoint(lambda x: parts[2](parts[1](x)), parts[0](x))), x)


def scheduled(parts: list[nn.Module], x: Any) -> Any:
    return recompute.apply(nn.Sequential(*parts), recompute.Schedule([(0, (1,)), (2,), 3]))(x)


def reversible(parts: list[nn.Module], x: Any, kind: Any = ReversibleSequential) -> Any:
    return kind(ReversibleBlock(parts[0], parts[1]), ReversibleBlock(parts[2], parts[3]))(tm.cat([x, x], 1) * 1.0)


def plain(parts: list[nn.Module], x: Any) -> Any:
    return nn.Sequential(*parts)(x)


WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "checkpoint": (lambda parts, x: checkpoint(nn.Sequential(*parts), x), plain),
    "nested": (nested, plain),
    "segments": (lambda parts, x: checkpoint_sequential(nn.Sequential(*parts), 3, x), plain),
    "schedule": (scheduled, plain),
    "reversible": (reversible, lambda parts, x: reversible(parts, x, nn.Sequential)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_computed_again_draws_the_same_though_others_draw_meanwhile(way: str, neighbour: Neighbour):
    found: list[list] = []
    for run in WAYS[way]:
        drawn: list[tuple[int, int]] = []
        parts = [each.double() for each in layers(neighbour, drawn)]
        x = tm.ones(5, 6, dtype=tm.float64, requires_grad=True)
        tm.manual_seed(7)
        y = run(parts, x)
        forward, state = len(drawn), device("cpu").generator.state
        y.square().sum().backward()
        again = len(drawn) - forward
        assert len(set(drawn)) == len(drawn), "the neighbour's numbers were rewound"
        assert drawn[forward:] == [(7, state[1] + i) for i in range(again)]
        assert device("cpu").generator.state == (7, state[1] + again)
        found.append([y.numpy(force=True), x.grad.numpy(), *(p.grad.numpy() for each in parts for p in each.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_another_thread_at_every_bytecode_of_the_draws(neighbour: Neighbour, reliability: Callable[[str, int], None]):
    generator, x = device("cpu").generator, tm.ones(8, requires_grad=True)
    points = 0

    def step() -> tuple:
        x.grad = None
        y = checkpoint(lambda x: F.dropout(F.dropout(x, 0.5) + x, 0.5).square(), x)
        y.sum().backward()
        return y.tolist(), x.grad.tolist()

    for both in interleavings(random.__file__):
        tm.manual_seed(1)
        (y, gradient), ticket = both(step, neighbour.begin)
        ticket = ticket or neighbour.drawn.get(timeout=60)
        assert gradient == [2 * each for each in y], f"bytecode {points + 1}"  # y is x * x times what does not depend on x
        assert generator.state == (1, 3)
        assert ticket in ((1, 0), (1, 1), (1, 2))
        points += 1
    assert points > 50
    reliability("runs of a second thread between two bytecodes", points)


def test_threads_that_a_function_starts_draw_again_what_they_drew():
    """However it hands them their work; those of the kernels are nobody's."""
    outside = ThreadPoolExecutor(1)
    outside.submit(int).result()

    def noisy(x: Any) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(F.dropout(x, 0.5)))
        thread.start()
        thread.join()
        return (found[0] * outside.submit(F.dropout, x + 1, 0.5).result()).square() * x

    tm.manual_seed(1)
    x = tm.ones(64, requires_grad=True)
    y = checkpoint(noisy, x)
    assert device("cpu").generator.state == (1, 2)
    tm.randn(3)
    y.sum().backward()
    gradient = x.grad.numpy().copy()
    tm.manual_seed(1)
    x.grad = None
    noisy(x).sum().backward()
    np.testing.assert_array_equal(gradient, x.grad.numpy())
    outside.shutdown()


def test_a_thread_that_goes_on_after_the_function_is_no_part_of_it():
    go, found = threading.Event(), []

    def late() -> None:
        assert go.wait(60)
        found.append(device("cpu").generator.ticket())

    def function(x: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=late))
            threads[0].start()
        return F.dropout(x, 0.5).square()

    threads: list[threading.Thread] = []
    tm.manual_seed(1)
    x = tm.ones(64, requires_grad=True)
    y = checkpoint(function, x)
    go.set()
    threads[0].join()
    assert found == [(1, 1)]
    assert device("cpu").generator.state == (1, 2)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * y.numpy(force=True))


def test_what_a_function_sets_is_as_it_was_when_it_is_computed_again():
    """It may read, seed and put back generators, of its own and the default one; the user's are where the user left them."""
    mine = tm.Generator().manual_seed(5)

    def function(x: Any) -> Any:
        state = tm.get_rng_state()
        first = F.dropout(x, 0.5)
        tm.set_rng_state(state)
        second = F.dropout(x, 0.5)
        tm.manual_seed(9)
        own = tm.rand(64, generator=tm.Generator()) + tm.rand(64, generator=mine)
        return ((first + second) * own * tm.rand(64)).square() * x

    found = []
    for call in (checkpoint, lambda f, x: f(x)):
        tm.manual_seed(1)
        mine.manual_seed(5)
        x = tm.ones(64, requires_grad=True)
        y = call(function, x)
        tm.manual_seed(2)
        y.sum().backward()
        assert (device("cpu").generator.state, tm.Generator().initial_seed(), mine.state) == ((2, 0), 2, (5, 1))
        found.append(x.grad.numpy())
    np.testing.assert_array_equal(*found)


# --- what measures --------------------------------------------------------------------------------------------------------


def test_a_tip_that_is_measured_moves_nobody_s_numbers(neighbour: Neighbour):
    """The numbers of its runs are those that they have in any process; a neighbour draws while it builds."""
    drawn: list[tuple[int, int]] = []

    def build(scene: Any) -> Any:
        drawn.append(neighbour.draw())
        drawn_there.append(tm.rand(1).item())
        return adam(scene)

    drawn_there: list[float] = []
    tip = TIPS["in_backward"]
    (case,) = tip.cases
    tip = replace(tip, cases=(replace(case, before=build),))
    tm.manual_seed(4)
    tm.randn(3)
    (first,) = measure(tip)
    assert drawn == [(4, 1), (4, 2)]  # before the run on the device, and before the one on meta
    assert device("cpu").generator.state == (4, 3)
    assert tm.Generator().initial_seed() == 4
    tm.manual_seed(0)
    assert drawn_there[0] == tm.rand(1).item()
    (second,) = measure(tip)
    assert isinstance(first, Measured)
    assert isinstance(second, Measured)
    assert first.before.numbers.losses == second.before.numbers.losses
    assert drawn == [(4, 1), (4, 2), (0, 1), (0, 2)]


def test_learning_digits_moves_nobody_s_numbers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digits, "EPOCHS", 0)
    tm.manual_seed(4)
    accuracy = digits._accuracy.__wrapped__("cpu", "float32", digits.ADAM)
    assert 0 <= accuracy <= 1
    assert device("cpu").generator.state == (4, 0)
