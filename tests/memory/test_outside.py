"""A prediction refuses what would compute on tensors that were made before it: their memory does not count."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.sturdy import misuse
from tests.sturdy.calls import CALLS, Call
from tinygrad_mem import memory, scope
from tinygrad_mem.errors import DeviceError, TinygradMemError

CPU = tm.device("cpu").pool


class _Mallocs(scope.Listener):
    """Counts blocks of the CPU."""

    only, count = CPU, 0

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.count += 1


def _tensors(value: Any) -> list[tm.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, tm.Tensor) else []


def _harm(call: Call) -> str:
    """What a prediction of the call does to tensors that were made before it."""
    rng = np.random.default_rng(0)
    args = [misuse.made(each, tm, "cpu", rng) for each in call.args]
    kwargs = {key: misuse.made(each, tm, "cpu", rng) for key, each in call.kwargs.items()}
    memories = [tensor.numpy() for tensor in _tensors([args, list(kwargs.values())])]
    before = [each.copy() for each in memories]
    mallocs = _Mallocs()
    scope.listen(mallocs)
    try:
        with contextlib.suppress(TinygradMemError):
            memory.predict(lambda: misuse.function(tm, call.name)(*args, **kwargs))
    finally:
        scope.discard(mallocs)
    changed = [True for after, values in zip(memories, before, strict=True) if not np.array_equal(after, values)]
    return f"{call}: {mallocs.count} blocks of the CPU, {len(changed)} tensors written" if mallocs.count or changed else ""


def test_networks_and_optimizers_stay_as_they_were():
    def network() -> tm.nn.Module:
        tm.manual_seed(0)
        model = tm.nn.Sequential(tm.nn.Linear(4, 4), tm.nn.BatchNorm1d(4))
        for parameter in model.parameters():
            parameter.grad = tm.ones_like(parameter)
        return model

    def assign(model: Any) -> None:
        model[0].weight.data = tm.zeros(4, 4)

    harms = {
        "zero_grad": lambda model: model.zero_grad(set_to_none=False),
        "data": assign,
        "deepcopy": copy.deepcopy,
        "Fill": lambda model: tm.nn.init.zeros_(model[0].weight),
        "Norm": lambda model: tm.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "Cast": lambda model: model.half(),
        "SGD.step": lambda model: tm.optim.SGD(model.parameters(), lr=1.0).step(),
        "Copy": lambda model: model.load_state_dict(network().state_dict()),
    }
    for what, harm in harms.items():
        model, same, mallocs = network(), network(), _Mallocs()
        scope.listen(mallocs)
        try:
            with pytest.raises(DeviceError, match=rf"predict: at .*{what}: .*make what the step uses inside it"):
                memory.predict(harm, model)
        finally:
            scope.discard(mallocs)
        assert mallocs.count == 0
        for parameter, other in zip(model.parameters(), same.parameters(), strict=True):
            assert parameter.tolist() == other.tolist()
            assert parameter.grad is not None
            assert parameter.grad.tolist() == tm.ones_like(other).tolist()


def test_what_computes_on_older_tensors_is_refused():
    assert not [harm for harm in map(_harm, CALLS) if harm]
