"""What a program gives as numbers is known in its prediction, as long as nothing may have changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.foretold import difference
from tinygrad_mem import memory, nn
from tinygrad_mem.autograd.unknown import Unknown
from tinygrad_mem.errors import DataDependenceError

ARGUMENTS: list[Callable[[], tuple]] = [
    lambda: (),
    lambda: (2,),
    lambda: (0, 1),
    lambda: (0, -1, 0.5),
    lambda: (tm.tensor([[3.0, 4.0], [5.0, 6.0]]),),
    lambda: (tm.tensor([[True, False], [False, True]]), 7.0),
    lambda: (0, tm.tensor([1]), 2.0),
    lambda: (0, tm.tensor([1]), tm.tensor([[3.0, 4.0]])),
    lambda: (tm.ones(2, 2), tm.ones(2, 2)),
]
WRITERS: dict[str, Callable[[Any], object]] = {
    "init.uniform_": lambda x: nn.init.uniform_(x),
    "init.eye_": lambda x: nn.init.eye_(x),
    "init.orthogonal_": lambda x: nn.init.orthogonal_(x),
    "data": lambda x: x.data.fill_(4.0),
    "view": lambda x: x.t()[0].fill_(4.0),
    "detached": lambda x: x.detach().zero_(),
    "setitem": lambda x: x.__setitem__(0, 3.0),
    "setitem by a mask": lambda x: x.__setitem__(x > 1, 3.0),
    "copy_": lambda x: x.copy_(tm.rand(2, 2)),
    "optimizer": lambda x: step(nn.Parameter(x)),
    "optimizer of its data": lambda x: step(nn.Parameter(x.data)),
    "gradient": lambda x: x.requires_grad_().sum().backward(),
    "clip": lambda x: (setattr(x.requires_grad_(), "grad", tm.ones(2, 2)), nn.utils.clip_grad_norm_([x], 0.1)),
    "load_state_dict": lambda x: holder(x).load_state_dict({"x": tm.zeros(2, 2)}),
    "batch_norm": lambda x: tm.nn.functional.batch_norm(tm.randn(4, 2), x[0], x[1], training=True),
}


def step(parameter: nn.Parameter) -> None:
    optimizer = tm.optim.SGD([parameter], lr=0.5)
    parameter.square().sum().backward()
    optimizer.step()


def holder(x: tm.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("x", x)
    return module


def written(name: str, arguments: Callable[[], tuple]) -> Any:
    """The values after the in-place method, or nothing where it does not take these arguments."""
    x = tm.tensor([[1.0, 2.0], [3.0, 4.0]])
    try:
        getattr(x, name)(*arguments())
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, DataDependenceError):
        return None
    return [t.item() for t in x.reshape(-1)] if x._version == 0 else [t.item() for t in x.flatten()]


def agree(predicted: Any, found: Any) -> bool:
    return all(type(p) is Unknown or p == f for p, f in zip(predicted, found, strict=True))


IN_PLACE = [name for name in dir(tm.Tensor) if name.endswith("_") and not name.startswith("_")]


def test_nothing_that_was_written_in_place_is_taken_for_known(reliability: Callable[[str, int], None]):
    calls = 0
    for name in IN_PLACE:
        for arguments in ARGUMENTS:
            tm.manual_seed(0)
            found = written(name, arguments)
            if found is None:
                continue
            predicted: list = []
            memory.predict(lambda: predicted.append(written(name, arguments)))  # noqa: B023
            assert predicted[0] is None or agree(predicted[0], found), (name, arguments())
            calls += 1
    assert calls > 150
    reliability("in-place calls after which a prediction still tells no wrong number", calls)


@pytest.mark.parametrize("name", WRITERS)
def test_nor_what_was_written_otherwise(name: str):
    def run() -> list:
        x = tm.tensor([[1.0, 2.0], [3.0, 4.0]])
        WRITERS[name](x)
        return [t.item() for t in x.detach().flatten()]

    tm.manual_seed(0)
    found, predicted = run(), []
    memory.predict(lambda: predicted.append(run()))
    assert agree(predicted[0], found)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: [x.item() for x in tm.linspace(0, 0.1, 5)],
        lambda: [x.tolist() for x in tm.linspace(0, 0.1, 5).split([2, 3])],
        lambda: tm.arange(6).view(2, 3).t().tolist(),
        lambda: tm.tensor([1.0, 2.0, 3.0])[::2].detach().tolist(),
        lambda: [int(tm.tensor(5)), float(tm.tensor(0.5)), bool(tm.tensor(0))],
        lambda: tm.tensor(tm.tensor([1, 2])).tolist(),
        lambda: nn.Parameter(tm.tensor([2.0])).item(),
        lambda: list(range(int(tm.scalar_tensor(3.0)))),
        lambda: tm.eye(2, dtype=tm.bool).tolist(),
    ],
)
def test_constants_are_what_they_are(ask: Callable[[], Any]):
    predicted: list = []
    memory.predict(lambda: predicted.append((tm.ones(1), ask())))
    assert predicted[0][1] == ask()


def test_networks_whose_layers_differ_by_a_schedule_are_predicted():
    """Stochastic depth as published files write it: which layers there are depends on numbers of a ``linspace``."""

    def run() -> None:
        rates = [x.item() for x in tm.linspace(0, 0.3, 4)]
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate) if rate > 0.0 else nn.Identity()) for rate in rates]
        nn.Sequential(*layers)(tm.randn(5, 8)).sum().backward()

    assert not difference(run)
