"""A planned chain against ``checkpoint_sequential``, at every budget: on ResNet-101 and on U-Net's encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.profiles import every
from tests.recompute.test_scheduled import peak, squares
from tinygrad_mem import nn, recompute, scope
from tinygrad_mem.models import resnet, unet
from tinygrad_mem.plan.times import call_of, model
from tinygrad_mem.recompute import Schedule, Stage


class Head(nn.Module):
    """What follows the blocks of a ResNet."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.avgpool, self.fc = net.avgpool, net.fc

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return self.fc(self.avgpool(x).flatten(1))


def resnet101(blocks: tuple[int, ...] = (3, 4, 23, 3)) -> nn.Sequential:
    """Its start, each of its blocks, its head."""
    net = resnet.ResNet(resnet.Bottleneck, blocks)
    start = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    return nn.Sequential(start, *net.layer1, *net.layer2, *net.layer3, *net.layer4, Head(net))


def encoder(width: int = 64) -> nn.Sequential:
    """U-Net on the way down: each convolution with its norm and ReLU, each pooling."""
    net = unet.UNet(width=width)
    parts: list[nn.Module] = []
    for double in (net.inc, *net.down):
        parts += [net.pool] if parts else []
        parts += [nn.Sequential(*list(double)[i : i + 3]) for i in (0, 3)]
    return nn.Sequential(*parts)


@dataclass(frozen=True)
class Case:
    """A chain at its usual size, and at one that is run on the cpu.

    Attributes:
        exact: of a schedule's peak, what is measured at least: less than all where a stage lets go of its input before its
            backward is done, as U-Net's pooling does.
        different: schedules that the budgets lead to, at least.
    """

    make: Callable[[], nn.Sequential]
    shape: tuple[int, ...]
    small: Callable[[], nn.Sequential]
    small_shape: tuple[int, ...]
    exact: float = 1.0
    different: int = 15


CASES = {
    "ResNet-101": Case(resnet101, (32, 3, 224, 224), lambda: resnet101((1, 2, 5, 1)), (2, 3, 64, 64)),
    "U-Net's encoder": Case(encoder, (4, 3, 256, 256), lambda: encoder(8), (2, 3, 48, 48), 0.94, 3),
}


class OpCounts(scope.Listener):
    """The modelled seconds of the ops that run."""

    def __init__(self) -> None:
        self.forward = self.backward = 0.0

    def running(self, node: Any, arrays: tuple, params: dict[str, Any]) -> None:
        forward, backward = model(call_of(node, arrays, params))
        self.forward, self.backward = self.forward + forward, self.backward + backward


def timed(chain: nn.Sequential, x: tm.Tensor, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """``stages`` with the times of the planner's model."""
    found = []
    for stage, function in zip(stages, [*chain, squares], strict=True):
        heard = OpCounts()
        scope.listen(heard)
        try:
            x = function(x)
        finally:
            scope.unlisten(heard)
        found.append(replace(stage, forward=heard.forward, backward=heard.backward))
    return tuple(found)


class Segments(nn.Module):
    """``checkpoint_sequential`` as a module."""

    def __init__(self, chain: nn.Sequential, segments: int) -> None:
        super().__init__()
        self.chain, self.segments = chain, segments

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return recompute.checkpoint_sequential(self.chain, self.segments, x)


def cut_as_sequential(n: int, segments: int, stages: tuple[Stage, ...]) -> Schedule:
    """What ``checkpoint_sequential`` does with ``n`` functions; behind them is the loss."""
    length = n // segments
    cut = length * (segments - 1)
    return Schedule([*[tuple(range(i, i + length)) for i in range(0, cut, length)], *range(cut, n + 1)], stages)


def costs_of(make: Callable[[], nn.Sequential], shape: tuple[int, ...]) -> tuple[Stage, ...]:
    with tm.device("meta"):
        chain, x = make(), tm.randn(*shape)
        costs = recompute.profile(chain, x, squares)
        assert costs.sizes == (1,) * len(chain), "what checkpoint_sequential cuts are the planner's stages too"
        return timed(chain, x, costs.stages)


@pytest.mark.parametrize("name", CASES)
def test_the_planned_chain_dominates_checkpoint_sequential_at_every_budget(name: str):
    """Budgets are what it needs with each number of segments: between two of them its best is that of the lower one.

    A usual run takes each seventh.
    """
    case = CASES[name]
    stages = costs_of(case.make, case.shape)
    n, budgets, measured = len(stages) - 1, [], {}
    for segments in range(1, n + 1, every(7)):
        theirs = cut_as_sequential(n, segments, stages)
        budget = peak("meta", lambda k=segments: Segments(case.make(), k), case.shape, squares)
        assert case.exact * theirs.peak <= budget <= theirs.peak
        budgets.append(budget)
        ours = recompute.chain(stages, budget)
        if ours.items not in measured:
            measured[ours.items] = peak("meta", lambda s=ours: recompute.apply(case.make(), s), case.shape, squares)
            assert case.exact * ours.peak <= measured[ours.items] <= ours.peak
        assert measured[ours.items] <= budget
        assert ours.time < theirs.time or (segments == 1 and ours.time == theirs.time)
    assert len(measured) > case.different // every(7), "budgets so near each other show little"
    assert recompute.front(stages)[0][0] < 0.95 * min(budgets), "it goes on where no number of segments fits any more"


@pytest.mark.parametrize("name", CASES)
def test_what_is_planned_is_measured_on_the_cpu(name: str):
    """At a reduced size, and beside it what as many bytes buy from ``checkpoint_sequential``."""
    case = CASES[name]
    stages = costs_of(case.small, case.small_shape)
    n = len(stages) - 1
    for segments in (2, 4):
        theirs = peak("cpu", lambda k=segments: Segments(case.small(), k), case.small_shape, squares)
        assert theirs == peak("meta", lambda k=segments: Segments(case.small(), k), case.small_shape, squares)
        ours = recompute.chain(stages, theirs)
        found = peak("cpu", lambda s=ours: recompute.apply(case.small(), s), case.small_shape, squares)
        assert found == ours.peak <= theirs
        assert ours.time < cut_as_sequential(n, segments, stages).time
