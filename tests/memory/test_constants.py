"""What a program gives as numbers is known in its prediction, as long as nothing may have changed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import OpCase, flat
from tests.ops.cases import CASES
from tests.predicted import difference
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
    assert calls > 100
    reliability("in-place calls after which a prediction gives no wrong value", calls)


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
        lambda: (tm.arange(6) * 2 - 1).cumsum(0).tolist(),
        lambda: bool((tm.diff(tm.arange(5)[None], prepend=tm.zeros(1, 1, dtype=tm.int64)) != 1).any()),
        lambda: (tm.round(tm.log(tm.arange(5) * 3.7 + 24) / 0.9) * 8).int().tolist(),
        lambda: (3 in tm.arange(5)[[0, 2]] + 1, 7 in tm.arange(5), tm.tensor(2) in tm.arange(3)),
        lambda: tm.ones(2, 3, dtype=tm.bool).all().item(),
        lambda: tm.cat((tm.arange(3), tm.full((2,), 7))).flip(0).tolist(),
    ],
)
def test_constants_are_what_they_are(ask: Callable[[], Any]):
    predicted: list = []
    memory.predict(lambda: predicted.append((tm.ones(1), ask())))
    assert predicted[0][1] == ask()


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_what_is_known_of_a_result_is_what_the_run_computes(dtype: str, reliability: Callable[[str, int], None]):
    """Every row of every op, of numbers that the program gives."""

    def run(case: OpCase, found: list) -> None:
        arrays = [np.asarray(a) for a in case.inputs(np.random.default_rng(3))]
        whole = [np.rint(a).astype(dtype) if a.dtype.kind == "f" else a for a in arrays]
        try:
            results = case.run(
                *[
                    tm.tensor(a.astype(dtype) if a.dtype.kind == "f" and dtype[0] == "f" else b)
                    for a, b in zip(arrays, whole, strict=True)
                ]
            )
        except (RuntimeError, TypeError, ValueError, IndexError):  # refused, of integers
            return
        for t in flat(results):
            known = t.detach()._constant() if tm.scope.local.dry is not None else t.detach().numpy()
            found.append(None if known is None else np.array(known))

    known = 0
    for case in CASES:
        predicted: list = []
        found: list = []
        tm.manual_seed(0)
        memory.predict(run, case, predicted)
        run(case, found)
        if not found:  # numbers that the run refuses
            found = [None] * len(predicted)
        for p, f in zip(predicted, found, strict=bool(predicted)):
            known += p is not None
            if p is not None:
                assert f is not None, case.name
                np.testing.assert_allclose(p, f, rtol=1e-12, atol=1e-12, err_msg=case.name)
    assert known > (300 if dtype == "float64" else 50)
    reliability("results of ops on known values", known)


def test_what_is_not_known_stays_unknown():
    answers: list = []

    def run() -> None:
        drawn = tm.randint(0, 9, (3,))
        given = tm.arange(3)
        written = tm.arange(3)
        total = written.sum()
        written.add_(drawn)
        answers.extend([(given + drawn)[0].item(), (given * drawn[0].item())[1].item(), written.sum().item(), total.item()])

    memory.predict(run)
    assert [type(a) is Unknown for a in answers] == [True, True, True, False]
    with pytest.raises(DataDependenceError, match="has a shape"):
        memory.predict(lambda: 3 in tm.randint(0, 9, (3,)))


@pytest.mark.parametrize("like", ["cpu", "cuda"])
def test_what_a_gpu_may_round_otherwise_is_known_on_the_cpu_alone(like: str):
    known: list = []

    def run() -> None:
        x, places = tm.tensor([0.5, 1.5]), tm.arange(2)
        for t in (x * 2, x > 1, x.long(), places.float(), places + 1, places > 0):
            known.append(t._constant() is not None)

    memory.predict(run, like=like)
    assert known == [like == "cpu"] * 4 + [True] * 2


def test_an_entry_is_known_if_its_place_is():
    """A tensor as index gave the entry at 0, and said that it is known."""
    found: list = []

    def run() -> None:
        x, rows = tm.arange(3), tm.arange(6).reshape(3, 2)
        i, drawn = tm.tensor(2), tm.randint(0, 3, ())
        found.append(
            [
                x[i].item(),
                x[i - 3].item(),
                x[x.argmax()].item(),
                rows[i].tolist(),
                rows[i, i - 1].item(),
                rows[:, i - 1][1].item(),
            ]
        )
        for y in (tm.arange(3), tm.arange(5)[1:4], tm.arange(6).reshape(3, 2)[:, 1]):
            found.append(y[drawn].item())

    memory.predict(run)
    known, *drawn = found
    assert known == [2, 2, 2, [4, 5], 5, 3]
    assert [type(each) for each in drawn] == [Unknown] * 3
    found.clear()
    run()
    assert found[0] == known


def test_positions_that_decide_whether_sequences_are_packed():
    """As published language models ask before they make a mask."""

    def run() -> None:
        positions = tm.arange(12).unsqueeze(0) + 3
        packed = (tm.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1).cumsum(-1)
        if (packed[:, -1] == 0).all():
            nn.Linear(8, 8)(tm.randn(12, 8)).sum().backward()

    assert not difference(run)


def test_networks_whose_layers_differ_by_a_schedule_are_predicted():
    """Stochastic depth as published files write it: which layers there are depends on numbers of a ``linspace``."""

    def run() -> None:
        rates = [x.item() for x in tm.linspace(0, 0.3, 4)]
        layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(rate) if rate > 0.0 else nn.Identity()) for rate in rates]
        nn.Sequential(*layers)(tm.randn(5, 8)).sum().backward()

    assert not difference(run)
