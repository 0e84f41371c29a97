"""Every state dict, spoiled in one place at a time: it is refused in words and nothing is changed, or what took it goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.case import values
from tests.optim.light import LIGHT
from tests.optim.test_lr_scheduler import ROWS, pair
from tests.profiles import every, share
from tinygrad_mem import nn, optim
from tinygrad_mem.amp import GradScaler
from tinygrad_mem.errors import TinygradMemError

OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    *((name, {"lr": 0.01}) for name in ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "Adagrad", "Adafactor")),
    ("Adam", {"lr": 0.01, "amsgrad": True, "state_dtype": "float16"}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    ("Adam8bit", {"lr": 0.01}),
    ("SGD8bit", {"lr": 0.01, "momentum": 0.9}),
    ("LBFGS", {"lr": 0.1, "max_iter": 3}),
    *LIGHT,
]


def spoiled(state: Any, path: tuple = ()) -> Iterator[tuple[str, Any]]:
    """What each change makes of a nesting of dicts and lists, and what was changed."""
    where = "".join(f"[{key!r}]" for key in path) or "all of it"
    for wrong in (None, "text", [], {}, 3, 2j, tm.ones(2), object()):
        if type(wrong) is not type(state) and not (isinstance(wrong, int) and type(state) is float):
            yield f"{where} is {type(wrong).__name__}", wrong
    if isinstance(state, tm.Tensor):
        array = values(state)
        yield f"{where} has another axis", tm.tensor(array[None].repeat(2, 0))
        yield f"{where} is of bools", tm.tensor(array.astype(bool))
        yield f"{where} is on meta", tm.empty(*array.shape, device="meta")
        yield f"{where} is a list", array.tolist()
    elif isinstance(state, dict):
        for key in _tried(state, path):
            yield f"{where} has no {key!r}", {k: v for k, v in state.items() if k != key}
            yield f"{where} has {key!r} as 'other'", {("other" if k == key else k): v for k, v in state.items()}
            for what, value in spoiled(state[key], (*path, key)):
                yield what, type(state)({**state, key: value})
        yield f"{where} has more", {**state, "more": 1}
    elif isinstance(state, (list, tuple)) and len(path) < 4:
        yield f"{where} is longer", type(state)([*state, *state[-1:]])
        yield f"{where} is shorter", state[:-1]
        for i, item in enumerate(state):
            for what, value in spoiled(item, (*path, i)):
                yield what, type(state)([*state[:i], value, *state[i + 1 :]])


def _tried(state: dict, path: tuple) -> list:
    """The keys to spoil. A usual run takes the last parameter alone: what came before it must not have been changed."""
    keys = list(state)
    return keys[-1:] if path == ("state",) and every(2) > 1 else keys


def plain(state: Any) -> Any:
    """A copy that ``==`` compares."""
    if isinstance(state, tm.Tensor):
        return str(state.device), str(state.dtype), values(state).tobytes()
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [plain(value) for value in state]
    return repr(state) if isinstance(state, float) or type(state).__name__ == "function" else copy.copy(state)


def net() -> Any:
    tm.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def trained(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A network, and an optimizer of it that has made a step."""
    model = net()
    optimizer = make(model)
    step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(tm.arange(12.0).reshape(4, 3)).exp().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.zero_grad()


def _try(
    dump: Callable[[], Any],
    load: Callable[[Any], Any],
    go_on: Callable[[], Any],
    reliability: Any,
    assign: bool = False,
    one_in: int = 1,
) -> None:
    """Load every spoiled state dict of what ``dump`` and ``load`` belong to; in a usual run ``one_in`` so many of them."""
    wrong, count = [], 0
    good = copy.deepcopy(dump())
    for what, state in share([*spoiled(good)], one_in, plain(good)):
        count += 1
        load(copy.deepcopy(good))
        before = plain(dump())
        try:
            load(state)
        except TinygradMemError as error:
            if plain(dump()) != before:
                wrong.append(f"{what}: refused, and changed")
            if len(str(error)) < 25:
                wrong.append(f"{what}: {type(error).__name__}: {error}")
            continue
        except (TypeError, ValueError, RuntimeError, KeyError, AttributeError, IndexError) as error:
            changed = " and changed" if plain(dump()) != before else ""
            wrong.append(f"{what}: by accident{changed}: {type(error).__name__}: {error}")
            continue
        try:
            go_on()
            plain(dump())
        except TinygradMemError:
            assert assign, what  # tensors of other devices and dtypes are taken as they are: an op refuses them
        except Exception as error:
            wrong.append(f"{what}: taken, and dies: {type(error).__name__}: {error}")
    reliability("state dicts damaged in one place", count)
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(OPTIMIZERS)])
def test_an_optimizer_s(name: str, options: dict[str, Any], reliability: Any):
    model, optimizer = trained(lambda model: getattr(optim, name)(model.parameters(), **options))
    _try(optimizer.state_dict, optimizer.load_state_dict, lambda: step(model, optimizer), reliability, one_in=5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "options"), ROWS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(ROWS)])
def test_a_schedule_s(name: str, options: dict[str, Any], reliability: Any):
    optimizer, _ = pair()
    optimizer.step()
    schedule = getattr(optim.lr_scheduler, name)(optimizer, **options)
    _try(schedule.state_dict, schedule.load_state_dict, schedule.step, reliability)


def test_a_scaler_s(reliability: Any):
    scaler = GradScaler("cpu")
    scaler.scale(tm.ones(1))

    def go_on() -> None:
        scaler.scale(tm.ones(1, requires_grad=True)).backward()

    _try(scaler.state_dict, scaler.load_state_dict, go_on, reliability)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_a_module_s(strict: bool, assign: bool, reliability: Any):
    model = net()

    def go_on() -> None:
        model(tm.ones(4, 3)).sum().backward()

    _try(model.state_dict, lambda s: model.load_state_dict(s, strict=strict, assign=assign), go_on, reliability, assign)


# --- code of the user's that raises halfway


class _Mine(optim.lr_scheduler.LRScheduler):
    """A schedule of the user's, whose state has a key of its own."""

    seen = 0

    def get_lr(self) -> list[float]:
        return self.base_lrs

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.seen = state_dict["seen"]


class _Factor:
    """A function with a number of its own, which takes numbers alone."""

    def __init__(self) -> None:
        self.__dict__["by"] = 0.5

    def __call__(self, epoch: int) -> float:
        return self.by**epoch  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [optim.lr_scheduler.ChainedScheduler, optim.lr_scheduler.SequentialLR])
def test_a_part_of_a_schedule_raises_halfway(make: Any):
    optimizer, _ = pair()
    optimizer.step()
    factor = _Factor()
    parts = [optim.lr_scheduler.StepLR(optimizer, 2), optim.lr_scheduler.LambdaLR(optimizer, factor), _Mine(optimizer)]
    schedule = make(parts, optimizer) if make is optim.lr_scheduler.ChainedScheduler else make(optimizer, parts, [2, 4])
    before = plain(schedule.state_dict())
    state = copy.deepcopy(schedule.state_dict())
    state["_last_lr"], state["_schedulers"][0]["gamma"] = [7.0, 7.0], 0.7
    state["_schedulers"][1]["lr_lambdas"] = [{"by": 0.7}, {"by": 0.7}]
    with pytest.raises(KeyError, match="seen"):
        schedule.load_state_dict(state)
    assert plain(schedule.state_dict()) == before
    state["_schedulers"][2]["seen"] = 1
    schedule.load_state_dict(state)
    assert (parts[0].gamma, factor.by, parts[2].seen) == (0.7, 0.7, 1)  # type: ignore[attr-defined]


class _Stubborn:
    """Something of the user's in a state dict, which cannot be copied, nor read as numbers."""

    ndim, shape, dtype = 0, (), "float32"

    def __deepcopy__(self, memo: dict) -> Any:
        raise OSError("no copies of this")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise OSError("no numbers in this")

    def item(self) -> float:
        raise OSError("no number in this")

    __float__ = item


@pytest.mark.parametrize("where", ["lr", "more", "exp_avg_sq", "step"])
def test_a_value_of_an_optimizer_s_state_raises_halfway(where: str):
    _, optimizer = trained(lambda model: optim.Adam(model.parameters()))
    before = plain(optimizer.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    (state["param_groups"][-1] if where in ("lr", "more") else state["state"][1])[where] = _Stubborn()
    for each in state["state"].values():
        each["exp_avg"] += 1
    with pytest.raises((OSError, TinygradMemError)):
        optimizer.load_state_dict(state)
    assert plain(optimizer.state_dict()) == before


@pytest.mark.parametrize("where", ["scale", "growth_factor", "_growth_tracker"])
def test_a_value_of_a_scaler_s_state_raises_halfway(where: str):
    scaler = GradScaler("cpu")
    scaler.scale(tm.ones(1))
    before = scaler.state_dict()
    with pytest.raises((OSError, TinygradMemError)):
        scaler.load_state_dict({**{name: value + 1 for name, value in before.items()}, where: _Stubborn()})
    assert scaler.state_dict() == before
