"""A plan fits its budget, needs what it says to the byte, and changes no number that it was not allowed to change."""

from __future__ import annotations

import importlib
import pickle
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.profiles import every
from tinygrad_mem import nn
from tinygrad_mem.devices import Pool
from tinygrad_mem.errors import ArgumentError, ArgumentTypeError, BudgetError, OutOfMemoryError
from tinygrad_mem.memory.predict import dry_run
from tinygrad_mem.models.bert import MaskedLanguageModel
from tinygrad_mem.models.densenet import DenseNet
from tinygrad_mem.models.gpt import GPT
from tinygrad_mem.models.llama import llama
from tinygrad_mem.models.lstm import LSTMLanguageModel
from tinygrad_mem.models.mlp import MLP
from tinygrad_mem.models.names import WithLoss
from tinygrad_mem.models.resnet import CifarResNet
from tinygrad_mem.models.unet import UNet
from tinygrad_mem.models.vgg import CifarVGG
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import Choice, Plan, Times, TrainingStep, chains, largest, plan
from tinygrad_mem.plan.times import OpCall

TIMES = Times("meta")  # modelled: the same on every machine


def tokens_loss(output: tm.Tensor, targets: tm.Tensor) -> tm.Tensor:
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def images(n: int, *shape: int, classes: tuple[int, ...] = ()) -> Callable[[], tuple[tm.Tensor, tm.Tensor]]:
    return lambda: (tm.randn(n, *shape), tm.randint(0, 2, (n, *classes)))


def tokens(n: int, length: int) -> Callable[[], tuple[tm.Tensor, tm.Tensor]]:
    return lambda: (tm.randint(0, 50, (n, length)), tm.randint(0, 50, (n, length)))


def hidden_tokens(n: int, length: int, hidden: int) -> Callable[[], tuple[dict[str, tm.Tensor], tm.Tensor]]:
    """Tokens, and the places of those that are asked for: what the masked language model is called with, by name."""
    return lambda: (
        {"tokens": tm.randint(0, 50, (n, length)), "positions": tm.randint(0, n * length, (hidden,))},
        tm.randint(0, 50, (hidden,)),
    )


def mlp() -> nn.Module:
    return MLP(sizes=(64, 128, 128, 96, 128, 10))


LLAMA = {"model_type": "llama", "vocab_size": 50, "hidden_size": 32, "intermediate_size": 256, "num_hidden_layers": 4}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
NETWORKS: dict[str, tuple] = {
    "mlp": (mlp, images(1024, 64), F.cross_entropy),
    "resnet14": (lambda: CifarResNet(2), images(8, 3, 16, 16), F.cross_entropy),
    "vgg11_bn": (lambda: CifarVGG(11), images(2, 3, 32, 32), F.cross_entropy),
    "unet": (lambda: UNet(width=8, depth=3), images(2, 3, 32, 32, classes=(32, 32)), F.cross_entropy),
    "densenet": (lambda: DenseNet((3, 3, 3), growth=16, num_classes=10), images(8, 3, 32, 32), F.cross_entropy),
    "gpt": (lambda: GPT(4, 2, 32, context=32, vocabulary=50), tokens(4, 32), tokens_loss),
    "masked": (lambda: MaskedLanguageModel(3, 2, 32, context=16, vocabulary=50), hidden_tokens(8, 16, 20), F.cross_entropy),
    "llama": (lambda: WithLoss(llama(LLAMA), None), tokens(2, 64), lambda output, targets: output),
    "lstm": (lambda: LSTMLanguageModel(50, 32, 32, 2), tokens(8, 16), tokens_loss),
}


def sgd(parameters: Any) -> tm.optim.Optimizer:
    return tm.optim.SGD(parameters, lr=0.01, momentum=0.9)


def planned(name: str, allow: Any = "identical") -> Plan:
    return plan(*NETWORKS[name], sgd, allow=allow, times=TIMES)


@cache
def shared(name: str) -> Plan:
    """The plan that several tests look at, for which each choice runs once."""
    return planned(name)


@pytest.fixture(scope="module", params=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> tuple[str, Plan]:
    return request.param, shared(request.param)


def trained(name: str, choice: Choice, limit: int = 0) -> tuple[int, list[float], list[np.ndarray]]:
    """Two real steps in a pool of their own, under a limit: peak bytes, losses, parameters and buffers."""
    make, batch, loss = NETWORKS[name]
    cpu = tm.device("cpu")
    before, cpu.pool = cpu.pool, Pool("cpu")
    try:
        cpu.pool.set_limit(limit)
        tm.manual_seed(0)
        model = make()
        optimizer = sgd(list(model.parameters()))
        x, y = batch()
        step = TrainingStep(choice, model, optimizer, loss)
        losses = [step(x, y).item() for _ in range(2)]
        peak = cpu.pool.peak_used
        return peak, losses, [value.numpy().copy() for value in model.state_dict().values()]
    finally:
        cpu.pool = before


def _budgets(base: Plan, thorough: int) -> list[int]:
    """Budgets from the least that was found in use to what the plain step takes: so many in a thorough run, else a fifth."""
    return np.linspace(base.search.smallest().peak, base.plain.reserved, 1 + thorough // every(5)).astype(int).tolist()


def _fitting(base: Plan) -> list[Plan]:
    """The plans for these budgets."""
    found: list[Plan] = []
    for budget in _budgets(base, 20):
        try:
            found.append(base.within(budget))
        except BudgetError:
            assert not found  # what fits fits into more
    return found


def test_budgets(network: tuple[str, Plan]):
    """The plan runs inside, and needs what it says."""
    name, base = network
    plain = base.plain
    _, losses, values = trained(name, Choice())
    ran: dict[Choice, int] = {}
    times = []
    for found in _fitting(base):
        times.append(found.point.time)
        if found.choice not in ran:
            ran[found.choice] = budget = found.budget or 0
            peak, mine, others = trained(name, found.choice, limit=budget)
            assert peak == found.peak <= budget
            assert mine == losses
            assert all(np.array_equal(a, b) for a, b in zip(values, others, strict=True))
    assert base.within(plain.reserved).choice == Choice()
    assert len(ran) > 1
    assert all(a >= 0.998 * b for a, b in pairwise(times))  # a larger budget is not slower


def test_later_steps_stay_inside_too(network: tuple[str, Plan]):
    """Under a limit pieces are given back and taken again: a third step may need what the first two did not."""
    name, base = network
    make, batch, loss = NETWORKS[name]
    for found in {each.choice: each for each in _fitting(base)}.values():
        with dry_run("cpu") as meta:
            meta.pool.set_limit(found.budget or 0)
            model = make()
            step = found.apply(model, sgd(list(model.parameters())), loss)
            inputs = batch()
            for _ in range(20 // every(2)):
                step(*inputs)
            assert meta.pool.peak_used == found.peak <= meta.pool.peak_total <= (found.budget or 0)


def test_the_front_falls(network: tuple[str, Plan]):
    _, base = network
    front = base.front
    assert front[0].choice == Choice()
    for a, b in pairwise(front):
        assert a.time <= b.time
        assert a.peak > b.peak
    assert front[-1].peak < base.plain.peak
    assert all(1 <= point.forwards < 3 for point in front)


def test_below_the_floor(network: tuple[str, Plan]):
    name, base = network
    closest = base.search.smallest()
    enough = base.within(closest.reserved)
    with pytest.raises(BudgetError, match=r"nothing that is allowed fits into .* The closest .* Most of it is") as caught:
        base.within(closest.peak - 1)
    assert str(closest.choice) in str(caught.value)
    with pytest.raises(OutOfMemoryError):
        trained(name, enough.choice, limit=min(enough.peak, closest.peak) - 512)


def test_splitting_the_batch_is_asked_for():
    base = planned("mlp")
    with pytest.raises(BudgetError, match="Allow accumulation"):
        base.within(base.search.smallest().peak * 2 // 3)
    close = planned("mlp", "close")
    found = close.within(base.search.smallest().peak * 2 // 3)
    assert found.choice.parts > 1
    peak, losses, _ = trained("mlp", found.choice, limit=found.budget or 0)
    assert peak == found.peak
    assert np.allclose(losses, trained("mlp", Choice())[1], rtol=1e-5)
    alone = planned("mlp", ["accumulation"])
    assert alone.within(alone.plain.reserved).choice == Choice()


def test_models_and_optimizers_are_looked_at_and_left_alone():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)])
    optimizer = tm.optim.Adam(
        [{"params": list(model[:3].parameters()), "lr": 0.1}, {"params": list(model[3:].parameters()), "amsgrad": True}]
    )
    batch = tm.randn(256, 64), tm.zeros(256, 64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    used = tm.device("cpu").pool.used_bytes()
    base = plan(model, batch, F.mse_loss, optimizer, times=TIMES)
    found = base.within((base.plain.reserved + base.search.smallest().reserved) // 2)
    assert tm.device("cpu").pool.used_bytes() == used
    assert type(model) is nn.Sequential
    assert not optimizer.state
    assert all(tm.equal(before[name], value) for name, value in model.state_dict().items())
    assert found.choice.names
    step = found.apply(model, optimizer)
    assert step(*batch).grad_fn is None
    assert all(p.grad is None for p in model.parameters())
    assert len(optimizer.state) == 12
    assert list(model.state_dict()) == list(before)


def test_a_loss_of_the_output_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    found = plan(model, tm.randn(4, 8), lambda output: output.square().mean(), sgd, "1 MiB", allow="close", times=TIMES)
    x = tm.randn(4, 8)
    assert found.apply(model, sgd(model.parameters()))(x, x).item() > 0


def test_like_a_gpu_without_one():
    pytest.importorskip("cupy")
    name = "resnet14"
    found = plan(*NETWORKS[name], sgd, device="cuda")
    if not tm.cuda.is_available():
        assert not found.measured
    assert found.peak != shared(name).peak  # its kernels want other workspaces
    assert found.within(found.plain.reserved * 9 // 10).point.time >= found.plain.time
    with tm.device("cuda"):
        by_default = plan(*NETWORKS[name], sgd)
    assert (by_default.device, by_default.peak) == (str(tm.device("cuda")), found.peak)


def test_the_largest_batch():
    def build(n: int) -> Plan:
        return plan(mlp, images(n, 64), F.cross_entropy, sgd, "1 MiB", times=TIMES)

    n, found = largest(build)
    assert found.choice.names
    assert found.peak <= 1 << 20
    with pytest.raises(BudgetError):
        build(n + 1)
    assert largest(build, most=3)[0] == 3
    with pytest.raises(BudgetError, match="closest"):
        largest(lambda n: plan(mlp, images(n, 64), F.cross_entropy, sgd, "1 KiB", times=TIMES))


def test_no_message_is_made_that_nobody_reads(monkeypatch: pytest.MonkeyPatch):
    """A search for the largest batch asks of many sizes that do not fit."""
    made: list[int] = []
    module = importlib.import_module("tinygrad_mem.plan.plan")
    monkeypatch.setattr(module, "_nothing_fits", lambda search, room: (made.append(room), f"{room} are too few")[1])
    largest(lambda n: plan(mlp, images(n, 64), F.cross_entropy, sgd, "1 MiB", times=TIMES))
    assert not made
    with pytest.raises(BudgetError, match="1024 are too few") as caught:
        planned("mlp").within(1024)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) == "1024 are too few"
    assert made == [1024]


@pytest.mark.parametrize("name", ["mlp", "densenet", "gpt", "masked"])
def test_nothing_cheaper_fits(name: str):
    """Of all ways to recompute, with what is free and without each part of it, the plan's is the fastest that fits."""
    base = shared(name)
    search = base.search
    choices = [each for c in search.choices(()) for each in (c, *(c.without(free.name) for free in search.free))]
    for budget in _budgets(base, 12):
        times = [search.point(choice).time for choice in choices if search.fits(choice, budget)]
        if times:
            assert base.within(budget).point.time <= 1.001 * min(times)


def test_memory_in_other_pieces_is_tried(monkeypatch: pytest.MonkeyPatch):
    """Where a technique that is free cuts memory so that no way to recompute fits, there may be one without it."""
    base = shared("unet")
    search = base.search
    (free,) = {technique.name for technique in search.free}
    with_it = search.choices(())[-1]
    assert free in with_it.names
    without = with_it.without(free)
    budget = search.point(without).reserved
    fits = search.fits
    monkeypatch.setattr(search, "fits", lambda choice, budget: free not in choice.names and fits(choice, budget))
    found = base.within(budget)
    assert found.choice.names
    assert free not in found.choice.names
    assert found.point.time <= search.point(without).time
    assert trained("unet", found.choice, limit=budget)[0] == found.peak


def test_a_larger_budget_is_tried_too():
    """What fits into less may not fit into more: pieces are given back at other times. So nothing is concluded from less."""
    search = shared("unet").search
    point = search.smallest()
    budgets = range(point.peak, point.reserved, max((point.reserved - point.peak) // 12, 1))
    tried = {}
    for budget in budgets:
        try:
            search.run(point.choice, limit=budget)
            tried[budget] = True
        except OutOfMemoryError:
            tried[budget] = False
    for budget in sorted(budgets, key=lambda size: size % 7):
        assert tried[budget] or not search.fits(point.choice, budget)


def test_a_module_that_is_there_twice_takes_its_time_in_both_places():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    call, other = (OpCall("Linear", (n,), (), (True,)) for n in (1, 2))
    ops = Counter({("Sequential.0", call): 2, ("Sequential.1", other): 1})

    class Known(Times):
        def of(self, call: OpCall) -> tuple[float, float]:
            return (1.0, 2.0) if call.inputs == (1,) else (3.0, 6.0)

    spent = chains._spent(chains.Found("", nn.Sequential(a, b, a)), (1, 1, 1), ops, Known("meta"), "Sequential")
    assert spent == [(1.0, 2.0), (3.0, 6.0), (1.0, 2.0)]


def test_refusals():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    x = tm.ones(2, 2)
    with pytest.raises(
        ArgumentError, match=r"allow is 'identical', 'close', 'approximate', or some of recompute, .*; found 'magic'"
    ):
        plan(model, x, tm.sum, sgd, allow="magic")
    with pytest.raises(ValueError, match="'8 apples' is not a size"):
        plan(model, x, tm.sum, sgd, "8 apples")
    with pytest.raises(ArgumentTypeError, match="input is a tensor"):
        plan(model, [1, 2], tm.sum, sgd)
    other = nn.Linear(3, 3)
    with pytest.raises(ArgumentError, match="a parameter that is not in the model"):
        plan(model, x, tm.sum, sgd(other.parameters()))
    with pytest.raises(ArgumentTypeError, match="give a function of its parameters"):
        plan(lambda: model, x, tm.sum, sgd(model.parameters()))
    found = shared("resnet14")
    found = found.within(found.plain.peak * 9 // 10)
    with pytest.raises(ArgumentError, match=r"Make the plan for this model"):
        found.apply(model, sgd(model.parameters()))
    with pytest.raises(ZeroDivisionError):  # what the user's own code raises is the user's
        plan(lambda: 1 / 0, x, tm.sum, sgd)


def test_a_plan_says_what_it_is(tmp_path: Any):
    base = shared("resnet14")
    found = base.within(base.plain.peak * 9 // 10)
    assert "MiB of" in str(found)
    assert f"{found.peak:,}" in found.table()
    assert sum("→" in line for line in found.table().splitlines()) == 1
    assert max(map(len, found.table().splitlines())) <= 128
    for width in (60, 80):
        assert max(map(len, found.table(width).splitlines())) <= width
        assert f"{found.peak:,}" in found.table(width)
    found.plot(tmp_path / "front.png")
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_a_step_with_nothing_chosen_is_a_plain_one():
    model = nn.Linear(4, 1)
    twin = nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    x, y = tm.randn(8, 4), tm.randn(8, 1)
    step = TrainingStep(Choice(), model, sgd(model.parameters()), F.mse_loss)
    rule = sgd(twin.parameters())
    for _ in range(3):
        loss = step(x, y)
        rule.zero_grad()
        expected = F.mse_loss(twin(x), y)
        expected.backward()
        rule.step()
        assert loss.item() == expected.item()
    assert tm.equal(model.weight, twin.weight)


def _layers(count: int) -> list[nn.Module]:
    return [module for _ in range(count) for module in (nn.Linear(32, 32), nn.GELU())]


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: nn.Sequential(*_layers(12), nn.Linear(32, 5)), ""),
        (lambda: nn.Sequential(nn.Sequential(*_layers(12)), nn.Flatten(), nn.Linear(32, 5)), "0"),
        (lambda: nn.Sequential(*[nn.Sequential(*_layers(1)) for _ in range(12)], nn.Linear(32, 5)), ""),
    ],
    ids=["flat", "layers inside", "blocks"],
)
def test_of_a_chain_in_a_chain_the_longer_one_is_recomputed(make: Any, path: str):
    def batch() -> tuple[Any, Any]:
        return tm.randn(1024, 32), tm.randint(0, 5, (1024,))

    found = plan(make, batch, F.cross_entropy, lambda p: tm.optim.SGD(p, lr=0.1), None, allow="recompute")
    smallest = found.search.smallest()
    assert [technique.path for technique in smallest.choice.techniques] == [path]
    assert smallest.peak < 0.5 * found.plain.peak


def test_what_has_run_is_tried_before_a_budget_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The choice with the smallest peak may find no piece that is large enough, where another one does."""
    base = planned("mlp")
    search = base.search
    smallest = search.smallest().choice
    others = sorted((point for point in search.points.values() if point.choice != smallest), key=lambda point: point.peak)
    other, budget = others[0].choice, others[0].peak
    monkeypatch.setattr(search, "_fitting", lambda base, budget, best: None)
    monkeypatch.setattr(search, "fits", lambda choice, size: choice == other and size >= budget)
    monkeypatch.setattr(search, "known_to_fit", lambda choice, size: choice == other)
    assert search.cheapest(budget) == other
