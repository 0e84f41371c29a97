"""Schedules as they are executed: bit for bit the plain run, and to the byte what the planner says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.recompute.test_chain import all_schedules
from tests.recompute.test_checkpoint import BLOCKS, Ops, assert_same, everything, network, plainly
from tinygrad_mem import memory, nn, recompute
from tinygrad_mem.devices import Pool, device
from tinygrad_mem.errors import ArgumentError, CheckpointError
from tinygrad_mem.models import gpt, resnet, vgg
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Choice, Recompute, TrainingStep
from tinygrad_mem.recompute import Schedule, Stage

NAMES = sorted(BLOCKS.keys() - {"relu"})


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), st.data())
def test_every_schedule_is_bit_for_bit_the_same(names: list[str], data: Any):
    items = data.draw(st.sampled_from(all_schedules(len(names))))
    mine = everything(network(names), lambda b, x: recompute.apply(nn.Sequential(*b), Schedule(items))(x))
    assert_same(mine, everything(network(names), plainly))


def test_it_is_the_same_module():
    model = nn.Sequential(*network(["linear", "norm", "tanh"])).eval()
    scheduled = recompute.apply(model, recompute.uniform(3, 2))
    assert [*scheduled.state_dict()] == [*model.state_dict()]
    assert all(a is b for a, b in zip(scheduled.parameters(), model.parameters(), strict=True))
    assert not scheduled.training
    assert "[0] 1 2" in repr(scheduled)
    with tm.no_grad():
        np.testing.assert_array_equal(scheduled(tm.ones(2, 6)).numpy(), model(tm.ones(2, 6)).numpy())


def test_a_module_that_is_there_twice_runs_twice():
    """PyTorch's checkpoint_sequential asks ``children()``, which names a module once, and leaves the second call out."""
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Sigmoid())
    with tm.no_grad():
        expected = model(tm.ones(2, 6)).numpy()
    for segments in (1, 2, 4):
        np.testing.assert_array_equal(
            recompute.checkpoint_sequential(model, segments, tm.ones(2, 6)).numpy(force=True), expected
        )
        scheduled = recompute.apply(model, recompute.uniform(4, segments))
        np.testing.assert_array_equal(scheduled(tm.ones(2, 6)).numpy(force=True), expected)
    assert [*scheduled.state_dict()] == [*model.state_dict()]


def test_a_part_is_recomputed_up_to_what_is_wanted_and_must_do_the_same_again():
    """As in ``checkpoint``, whose defaults a schedule has."""

    class Again(nn.Module):
        """Another function each time."""

        def __init__(self, *functions: Callable) -> None:
            super().__init__()
            self.functions = iter(functions)

        def forward(self, x: tm.Tensor) -> tm.Tensor:
            return next(self.functions)(x)

    def run(*functions: Callable) -> tm.Tensor:
        scheduled = recompute.apply(nn.Sequential(Again(*functions)), recompute.uniform(1, 1, last=True))
        return scheduled(tm.ones(3, requires_grad=True)).sum()

    with Ops() as ops:
        run(*[lambda x: x.exp().sin() + 1.0] * 2).backward()
    assert ops.ran["recompute"] == ["Exp"]
    with pytest.raises(CheckpointError, match=r"in the forward Sin .*; now Cos saved x"):
        run(lambda x: x.exp().sin(), lambda x: x.exp().cos()).backward()


def test_forward_steps_are_those_that_run():
    for items in (*all_schedules(4), (((((0,), 1), 2), 3), 4)):
        model = recompute.apply(nn.Sequential(*[nn.Sigmoid() for _ in range(len(Schedule(items)))]), Schedule(items))
        with Ops() as ops:
            model(tm.ones(3, requires_grad=True)).sum().backward()
        runs = ops.ran["forward"].count("Sigmoid") + ops.ran.get("recompute", []).count("Sigmoid")
        assert runs == Schedule(items).forward_steps


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x: tm.Tensor) -> tm.Tensor:
        return self.fc(x.mean((2, 3)))


def resnet20() -> nn.Sequential:
    net = resnet.resnet20()
    return nn.Sequential(net.conv1, net.bn1, net.relu, *net.layer1, *net.layer2, *net.layer3, Head())


def vgg16() -> nn.Sequential:
    net = vgg.CifarVGG()
    return nn.Sequential(*net.features, nn.Flatten(), net.classifier)


def classes(y: tm.Tensor) -> tm.Tensor:
    return F.cross_entropy(y, tm.zeros(y.shape[0], dtype=tm.int64))


def squares(y: tm.Tensor) -> tm.Tensor:
    return (y * y).mean()


CHAINS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...], Callable]] = {
    "ResNet-20": (resnet20, (8, 3, 32, 32), classes),
    "GPT": (lambda: nn.Sequential(*[gpt.Block(64, 4, 0.1) for _ in range(7)]), (2, 32, 64), squares),
    "VGG16": (vgg16, (4, 3, 32, 32), classes),
    "sigmoids": (lambda: nn.Sequential(*[nn.Sigmoid() for _ in range(9)]), (64, 64), squares),
    "MLP": (lambda: nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(64, 64), nn.ReLU())]), (256, 64), squares),
}


LEAST = {"VGG16": 0.97}  # of what is planned: the first convolution of a part lets go of its input before its backward is done


def peak(where: str, build: Callable[[], nn.Module], shape: tuple[int, ...], loss: Callable) -> int:
    """The peak of a step above the model and its input."""
    there = device(where)
    before, there.pool = there.pool, Pool(where, reserve=where == "cpu")
    try:
        with there:
            model, x = build(), tm.randn(*shape)
            if not list(model.parameters()):
                x.requires_grad_()
            held = there.pool.used_bytes()
            there.pool.reset_peak()
            out = loss(model(x))
            out.backward()
            return there.pool.peak_used - held
    finally:
        del out, model, x
        there.pool = before


@pytest.mark.parametrize("name", CHAINS)
def test_the_planned_peak_is_the_measured_one(name: str):
    make, shape, loss = CHAINS[name]
    with tm.device("meta"):
        model, x = make(), tm.randn(*shape, requires_grad=name == "sigmoids")
    costs = recompute.profile(model, x, loss)
    points = recompute.front(costs.stages)
    exact = 0
    budgets = [points[i][0] for i in sorted({0, len(points) // 4, len(points) // 2, len(points) - 1})]
    for budget in budgets:
        schedule = recompute.chain(costs.stages, budget)
        measured = peak("meta", lambda s=schedule: recompute.apply(make(), s, costs.sizes), shape, loss)
        assert LEAST.get(name, 1) * schedule.peak <= measured <= schedule.peak <= budget, f"{schedule!r}: measured {measured:,}"
        exact += measured == schedule.peak
    assert exact
    assert points[-1][1] == sum(stage.forward + stage.backward for stage in costs.stages)
    if name in ("GPT", "sigmoids"):
        assert peak("cpu", lambda: recompute.apply(make(), schedule, costs.sizes), shape, loss) == measured


def test_a_profile_inside_a_prediction_is_not_heard():
    """What the profile's copies lived in is no memory of the run: nothing is freed in the track that the run did not free."""

    def script(profiled: bool) -> None:
        model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
        x = tm.ones(4, 6)
        if profiled:
            recompute.profile(model, x, squares)
        model(x)

    plain, profiled = (memory.predict(script, each) for each in (False, True))
    assert plain.timeline().used.tolist() == profiled.timeline().used.tolist()


def test_a_profile_leaves_no_trace():
    gc.collect()
    model = nn.Sequential(*network(["linear", "norm", "dropout", "in place"]))
    pools = {where: device(where).pool.used_bytes() for where in ("cpu", "meta")}
    before = [b.numpy().copy() for b in model.buffers()], device("cpu").generator.state, device("meta").generator.state
    costs = recompute.profile(model, tm.ones(4, 6), squares)
    assert all(p.grad is None for p in model.parameters())
    assert before[1:] == (device("cpu").generator.state, device("meta").generator.state)
    for b, was in zip(model.buffers(), before[0], strict=True):
        np.testing.assert_array_equal(b.numpy(), was)
    assert costs.sizes == (1, 2, 1)
    assert [stage.forward for stage in costs.stages] == [1, 3, 2, 2]
    gc.collect()
    assert pools == {where: device(where).pool.used_bytes() for where in ("cpu", "meta")}


@pytest.mark.parametrize("like", ["cpu", "cuda"])
def test_a_profile_counts_what_the_kernels_of_its_inputs_device_want(like: str):
    """On a GPU a convolution has its columns beside it: what is planned there is what is predicted there."""
    if like == "cuda":
        pytest.importorskip("cupy")
    peaks = []

    def script() -> None:
        model, x = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)), tm.randn(4, 3, 16, 16)
        costs = recompute.profile(model, x, squares)
        pool = x.device.pool
        held = pool.used_bytes()
        pool.reset_peak()
        squares(model(x)).backward()
        peaks.append((recompute.front(costs.stages)[-1][0], pool.peak_used - held))

    memory.predict(script, like=like)
    planned, predicted = peaks[0]
    assert planned == predicted


def test_modules_that_write_into_their_input_go_with_the_one_before():
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.Dropout(0.1),
        nn.Identity(),
        nn.Tanh(),
        nn.Tanh(),
    )
    assert recompute.profile(model, tm.ones(4, 6)).sizes == (3, 4, 1)


def test_bytes_of_a_stage_by_hand():
    (stage,) = recompute.profile(nn.Sequential(nn.Sigmoid()), tm.ones(1024, requires_grad=True)).stages
    size = 4096
    assert stage == Stage(1, 2, size, size, size, size, 2 * size, 2 * size, size)  # the result is the caller's, and stays
    model = nn.Sequential(nn.Linear(256, 128, bias=False), nn.Linear(128, 64, bias=False))
    first, second = recompute.profile(model, tm.ones(512, 256)).stages
    result, last = 4 * 512 * 128, 4 * 512 * 64
    assert (first.output, first.saved, first.parameters) == (result, result, model[0].weight.nbytes)
    assert first.gradient == result + last  # and the caller's gradient of the chain's result
    assert first.backward_peak == result + last + model[0].weight.nbytes  # its own result is gone
    assert (second.output, second.saved, second.parameters) == (last, last, model[1].weight.nbytes + last)


class Chain(nn.Sequential):
    pass


@pytest.mark.parametrize("wrap", ["wrapper", "schedule", "plan"])
def test_owners_are_known_by_the_names_they_had(wrap: str):
    """A comparison matches the modules of a model with those of the model that recomputes."""

    def track(recomputed: bool) -> memory.Track:
        chain: Any = Chain(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        items = ((0, 1), 2, 3)
        if recomputed and wrap == "wrapper":
            chain = recompute.checkpoint_wrapper(chain)
        elif recomputed and wrap == "schedule":
            chain = recompute.apply(chain, Schedule(items))
        choice = Choice((Recompute("", items, (1, 1, 1, 1)),) if recomputed and wrap == "plan" else ())
        x = tm.randn(64, 32)
        step = TrainingStep(choice, chain, tm.optim.SGD(chain.parameters()), lambda y, _: squares(y))
        with memory.track() as found:
            step(x, x)
        return found

    found = [track(recomputed) for recomputed in (False, True)]
    for each in found:
        assert {block.module.partition(".")[0] for block in each.blocks() if block.module} == {"Chain"}
        assert not [block.owner for block in each.blocks() if "Checkpointed" in block.owner or "Scheduled" in block.owner]


def test_resnet152_is_planned_in_seconds():
    net = resnet.resnet(152)
    blocks = [*net.layer1, *net.layer2, *net.layer3, *net.layer4]
    with tm.device("meta"):
        x = tm.randn(32, 64, 56, 56)
    costs = recompute.profile(nn.Sequential(*blocks), x, squares)
    points = recompute.front(costs.stages)
    assert len(costs.stages) == 51
    plain = Schedule(tuple(range(51)), costs.stages)
    assert points[-1][0] <= plain.peak
    assert points[0][0] < 0.3 * plain.peak
    half = recompute.chain(costs.stages, plain.peak // 2)
    for segments in range(1, 51):
        parts = Schedule((*recompute.uniform(50, segments).items, 50), costs.stages)
        if parts.peak <= plain.peak // 2:
            assert half.time <= parts.time


def test_what_is_refused():
    model = nn.Sequential(nn.Tanh(), nn.Tanh())
    with pytest.raises(ArgumentError, match="the schedule has 4 stages, the Sequential 2 modules in 2 stages"):
        recompute.apply(model, Schedule([0, 1, 2, 3]))
    with pytest.raises(ArgumentError, match="the schedule has 2 stages, the Sequential 2 modules in 2 stages"):
        recompute.apply(model, Schedule([0, 1]), sizes=(1, 2))
    with pytest.raises(ArgumentError, match="there is no module to run"):
        recompute.profile(nn.Sequential(), tm.ones(2))

    class Two(nn.Module):
        def forward(self, x: tm.Tensor) -> tuple:
            return x, x

    with pytest.raises(ArgumentError, match="stage 0 returns a tuple; a chain's stages take and return one tensor"):
        recompute.profile(nn.Sequential(Two()), tm.ones(2))
    with pytest.raises(ArgumentError, match="module 1 returns a tuple; a chain's stages take and return one tensor"):
        recompute.profile(nn.Sequential(nn.Tanh(), Two(), nn.Tanh()), tm.ones(2))
