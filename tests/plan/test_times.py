"""Times of ops: measured once, kept, and modelled where they cannot be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import nn, scope
from tinygrad_mem.nn import functional as F
from tinygrad_mem.plan import plan
from tinygrad_mem.plan import times as module
from tinygrad_mem.plan.times import OpCall, Spec, Times, call_of, measure, model


class Calls(scope.Listener):
    def __init__(self) -> None:
        self.found: dict[OpCall, None] = {}

    def running(self, node: Any, arrays: tuple, params: dict) -> None:
        self.found[call_of(node, arrays, params)] = None


@pytest.fixture(scope="module")
def calls() -> list[OpCall]:
    """Of a step with many kinds of ops."""
    heard = Calls()
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(72, 10)
    )
    scope.listen(heard)
    try:
        loss = F.cross_entropy(net(tm.randn(4, 3, 8, 8)), tm.tensor([0, 1, 2, 3]))
        (loss + tm.ones(2, 3)[:, 1].sum() + nn.Embedding(5, 3)(tm.tensor([1, 2])).sum()).backward()
    finally:
        scope.unlisten(heard)
    return list(heard.found)


def test_every_op_of_a_step_runs_alone(calls: list[OpCall]):
    cpu = tm.device("cpu")
    names = set()
    for call in calls:
        forward, backward = measure(call, cpu)
        assert forward > 0
        assert (backward > 0) <= any(call.needs)
        names.add(call.op)
    assert {"Conv", "BatchNorm", "ReLU", "MaxPool", "Dropout", "Linear", "CrossEntropy", "Embedding"} <= names


def test_equal_calls_are_measured_once(calls: list[OpCall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ran: list[OpCall] = []
    monkeypatch.setattr(module, "measure", lambda call, device: (ran.append(call), (1.0, 2.0))[1])
    times = Times("cpu", tmp_path)
    for call in [*calls, *calls]:
        assert times.of(call) == (1.0, 2.0)
    assert ran == calls
    times.save()
    again = Times("cpu", tmp_path)
    assert [again.of(call) for call in calls] == [(1.0, 2.0)] * len(calls)
    assert ran == calls


def test_measured_again_the_least_counts(calls: list[OpCall], monkeypatch: pytest.MonkeyPatch):
    found = iter([(3.0, 1.0), (2.0, 5.0)])
    monkeypatch.setattr(module, "measure", lambda call, device: next(found))
    small = iter([{"a": (5.0, 6.0)}, {"a": (4.0, 7.0)}])
    monkeypatch.setattr(module, "measure_python", lambda times: dict.fromkeys(module._PYTHON, next(small)["a"]))
    times = Times("cpu")
    assert times.of(calls[0]) == (3.0, 1.0)
    assert times.python == (1.0, 1.0)
    times.again()
    assert times.of(calls[0]) == (2.0, 1.0)
    assert times.python == (2.0, 2.0)  # of the least of either, not the least difference
    modelled = Times("meta")
    before = modelled.of(calls[0])
    modelled.again()
    assert modelled.of(calls[0]) == before
    assert modelled.python == (0.0, 0.0)


def test_python_beside_ops_is_measured_and_draws_no_random_numbers():
    cpu = tm.device("cpu")
    state = cpu.generator.state
    found = module.measure_python(Times("cpu"))
    assert cpu.generator.state == state
    assert set(found) == set(module._PYTHON)
    assert all(plain > 0 for plain, _ in found.values())


def test_what_is_recomputed_takes_hooks_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "measure", lambda call, device: (1.0, 2.0))
    monkeypatch.setattr(module, "measure_python", lambda times: dict.fromkeys(module._PYTHON, (5.0, 15.0)))
    times, call = Times("cpu"), OpCall("A", (), (), ())
    heard = module.OpCounts()
    heard.ran["", call] = 3
    assert heard.time(times) == 9
    heard.again[call] = 2
    assert heard.time(times) == 9 + 2 * 11


def test_a_gradient_that_is_made_for_the_backward_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    """Addition hands its gradient on: the backward writes nothing."""
    x = Spec((1 << 20,), "<f4")
    cpu = tm.device("cpu")
    monkeypatch.setattr(module, "_spent", lambda run, device: (run(), 1.0 if run.__name__ == "between" else 0.125)[1])
    assert measure(OpCall("Add", (x, x), (), (True, False)), cpu) == (0.125, 0.125)


@pytest.mark.parametrize("content", ["", "[1", "[]", '{"a": 1}', '{"a": [1]}', '{"a": ["x", 2]}', "\x00"])
def test_a_damaged_cache_is_measured_anew(content: str, tmp_path: Path):
    times = Times("cpu", tmp_path)
    times.of(OpCall("Neg", (Spec((3,), "<f4"),), (), (True,)))
    times.save()
    (file,) = tmp_path.iterdir()
    assert len(json.loads(file.read_text())) == 1
    file.write_text(content)
    assert Times("cpu", tmp_path)._written == {}


@pytest.mark.parametrize("library", [tm.version, np])
def test_times_of_another_version_are_not_read(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    times = Times("cpu", tmp_path)
    times.of(OpCall("Neg", (Spec((3,), "<f4"),), (), (True,)))
    times.save()
    assert Times("cpu", tmp_path)._written
    monkeypatch.setattr(library, "__version__", "9.9")
    assert Times("cpu", tmp_path)._written == {}


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")
    times = Times("cpu", tmp_path / "file" / "folder")
    times.of(OpCall("Neg", (Spec((3,), "<f4"),), (), (True,)))
    times.save()


def test_what_does_not_run_alone_is_modelled():
    call = OpCall("Conv", (Spec((1, 3, 8, 8), "<f4"), Spec((4, 2, 3, 3), "<f4")), (), (True, True))  # channels do not fit
    assert Times("cpu").of(call) == model(call)


def test_the_model_counts():
    x, w = Spec((8, 64, 32, 32), "<f4"), Spec((128, 64, 3, 3), "<f4")
    conv = OpCall("Conv", (x, w, None), (("stride", (2, 2)),), (True, True, False))
    plain = OpCall("ReLU", (x,), (), (True,))
    assert model(conv)[0] - 5e-6 == pytest.approx(
        (np.prod(x.shape) * 8 + np.prod(w.shape) * 8) / 1e12 + 8 * 256 * np.prod(w.shape) / 1e13
    )
    assert model(plain)[1] == 2 * model(plain)[0]
    assert model(plain._replace(needs=(False,)))[1] == 0
    assert not Times("meta").measured
    assert Times("cpu").measured


def test_bfloat16_has_a_time_and_a_plan():
    """NumPy's code of its dtype names no dtype."""
    network = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to(tm.bfloat16)
    x = tm.zeros(4, 8, dtype=tm.bfloat16)
    found = plan(network, x, lambda y: y.mean(), lambda p: tm.optim.SGD(p, lr=0.1), times=Times("meta"))
    assert found.plain.time > 0


def test_what_ranks_share_is_computed_for_all_of_them():
    """A column layer of a tensor parallel rank computes with the rows of all ranks, ring attention with all keys."""
    x, weight, q = Spec((16, 2, 64), "float32"), Spec((256, 64), "float32"), Spec((2, 4, 16, 8), "float32")
    linear, attention = (x.bytes + weight.bytes) * 2 / 1e12, 3 * q.bytes * 2 / 1e12
    for ranks in (1, 4):
        call = OpCall("GatheredLinear", (x, weight, None), (("axis", 0), ("group", ranks)), (True,))
        assert model(call)[0] == pytest.approx(5e-6 + linear + ranks * 16 * 2 * 64 * 256 / 1e13)
        call = OpCall("RingAttention", (q, q, q), (("causal", True), ("group", ranks), ("scale", 1.0)), (True,))
        assert model(call)[0] == pytest.approx(5e-6 + attention + ranks * 2 * 2 * 4 * 16 * 16 * 8 / 1e13)
