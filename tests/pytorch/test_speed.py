"""The work of a prediction grows with its ops, and not faster: counted, because seconds depend on the machine."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from tinygrad_mem import pytorch
from tinygrad_mem.memory import Kind
from tinygrad_mem.pytorch.program.fake import GpuTensorMode
from tinygrad_mem.pytorch.program.ledger import Ledger, Place
from tinygrad_mem.pytorch.program.roles import Roles

LAYERS, STEPS = 12, 2


def stepping_in_backward() -> Any:
    """An optimizer for each parameter, which steps as soon as backward has its gradient."""
    model = nn.Sequential(*[nn.Linear(8, 8, device="cuda") for _ in range(LAYERS)])
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    for _ in range(STEPS):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        model.zero_grad()
    return model


def test_an_optimizer_that_steps_in_backward_asks_for_its_own_gradients(monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    own = Roles._name
    monkeypatch.setattr(Roles, "_name", lambda self, parameter: asked.append(parameter) or own(self, parameter))
    log = pytorch.predict(stepping_in_backward).log
    assert len(asked) == 2 * LAYERS * STEPS, "each once a step; all of them in each step of each would be quadratic"
    column = {name: log.column(name) for name in ("kind", "role", "requested")}
    born = (column["kind"] == Kind.MALLOC) & (column["role"] == log.texts.index("GRADIENT"))
    assert sorted(column["requested"][born]) == sorted([4 * 64, 4 * 8] * LAYERS * STEPS)


def test_marks_in_a_profile_are_no_ops_of_fake_tensors(monkeypatch: pytest.MonkeyPatch):
    ran: list[str] = []
    own = GpuTensorMode.__torch_dispatch__
    monkeypatch.setattr(
        GpuTensorMode,
        "__torch_dispatch__",
        lambda self, func, *args: ran.append(func.namespace) or own(self, func, *args),
    )

    def run() -> torch.Tensor:
        with torch.profiler.record_function("mine"):
            return torch.ones(3, device="cuda") * 2

    assert pytorch.predict(run).notes == []
    assert "profiler" not in ran


def test_a_ledger_forgets_the_events_of_its_log():
    ledger = Ledger("cpu")
    ledger.malloc(64, Place())
    assert ledger.log().column("requested").tolist() == [64]
    assert ledger.count == 0


def test_a_prediction_leaves_no_events_to_pythons_collector():
    """Its log has arrays. With lists that live on, the collector would look at all of PyTorch's objects again and again. After
    its result nothing of it is left."""

    def run() -> None:
        for _ in range(500):
            torch.ones(3, device="cuda")

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):  # the first calls fill caches
        pytorch.predict(run)
    before = objects()
    track = pytorch.predict(run)
    assert len(track.log.column("kind")) >= 1000
    assert objects() - before < 100
    del track
    assert objects() <= before
