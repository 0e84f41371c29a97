"""Paged optimizer state: bit for bit a plain step, the bytes of the device and of the host, and state dicts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import tinygrad_mem as tm
from tests.memory.test_predicted import RULES as EVERY_RULE
from tests.predicted import difference, difference_on_gpu
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tests.techniques.training import Plan
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device, round_up
from tinygrad_mem.models.llama import llama
from tinygrad_mem.models.precision import Step
from tinygrad_mem.models.published import published
from tinygrad_mem.techniques import lora, optimizer_in_backward, paged_optimizer, quantize_frozen

STATE = memory.Category.OPTIMIZER_STATE
RULES: dict[str, Any] = {
    "adam": tm.optim.Adam,
    "adamw 8 bit": lambda params: tm.optim.AdamW8bit(params, min_8bit_size=0),
    "momentum": lambda params: tm.optim.SGD(params, lr=0.1, momentum=0.9),
    "nothing kept": lambda params: tm.optim.SGD(params, lr=0.1),
    "adafactor": tm.optim.Adafactor,
}
RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
SIZES = [(96, 64), (64, 64), (64, 8)]


def network(where: str = "cpu", dtype: Any = None) -> nn.Module:
    tm.manual_seed(0)
    return nn.Sequential(*[nn.Linear(*each, bias=False, device=where, dtype=dtype) for each in SIZES])


def train(model: Any, optimizer: Any, steps: int = 3) -> None:
    first = next(model.parameters())
    x = tm.linspace(-1, 1, 4 * 96, device=first.device).reshape(4, 96).to(first.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()


def outcome(model: Any, optimizer: Any) -> list[np.ndarray]:
    state = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
    found = [*model.parameters(), *[each for each in state if isinstance(each, tm.Tensor)]]
    return [each.detach().cpu().numpy() for each in found]


def assert_same(found: list, wanted: list) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


# --- numbers


@given(training.plans())
@settings(max_examples=examples(20))
def test_equal_to_a_plain_step_bit_for_bit(plan: Plan):
    def run(page: bool) -> list:
        model, losses = plan.model(), []
        optimizer = plan.rule(model)
        if page:
            assert paged_optimizer(optimizer) is optimizer
        for x, y in plan.batches():
            loss = training.loss_of(model, x, y)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return training.outcome(model, optimizer, losses)

    training.assert_identical(run(True), run(False))


@RULE
def test_each_rule_on_each_device(rule: Any, dev: str):
    both = []
    for wrap in (lambda made: made, paged_optimizer):
        model = network(dev)
        optimizer = wrap(rule(model.parameters()))
        train(model, optimizer)
        both.append(outcome(model, optimizer))
    assert_same(*both)


@pytest.mark.parametrize(("name", "options"), EVERY_RULE, ids=[f"{name} {options}" for name, options in EVERY_RULE])
def test_each_optimizer_of_the_library(name: str, options: dict):
    """All arrays of its state lie on the host, and every shape of a parameter gives the same numbers."""
    both = []
    for page in (False, True):
        tm.manual_seed(0)
        ps = [tm.randn(shape).requires_grad_() for shape in [(70, 64), (3,), (), (2, 3, 4), (0, 2)]]
        chosen = {k: getattr(tm, v) if k == "state_dtype" else v for k, v in options.items()}
        optimizer = getattr(tm.optim, name)(ps, **chosen)
        if page:
            paged_optimizer(optimizer)
        for step in range(3):
            for p in ps:
                p.grad = tm.linspace(-1, 1, p.numel()).reshape(p.shape) * (step + 1)
            optimizer.step()
        if page:
            states = [t for values in optimizer.state.values() for t in values.values() if isinstance(t, tm.Tensor)]
            assert {t.device for t in states} <= {device("cpu").host(pinned=True)}
        both.append([p.detach().numpy() for p in ps])
    assert_same(*both)


def test_master_weights_are_paged_too():
    both = []
    for wrap in (lambda made: made, paged_optimizer):
        model = network(dtype=tm.float16)
        optimizer = wrap(tm.optim.AdamW(model.parameters(), lr=1e-3, master_weights=True))
        train(model, optimizer)
        both.append(outcome(model, optimizer))
    assert_same(*both)
    on_host = {each.device for values in optimizer.state.values() for each in values.values() if isinstance(each, tm.Tensor)}
    assert on_host == {device("cpu").host(pinned=True)}


# --- bytes


ADAM = [2 * round_up(a * b * 4) for a, b in SIZES]


def step(page: bool, rule: Any = tm.optim.Adam, steps: int = 2) -> None:
    model = network()
    optimizer = rule(model.parameters())
    if page:
        paged_optimizer(optimizer)
    for n in range(steps):
        train(model, optimizer, 1)
        memory.mark(f"step {n} ends")
    memory.mark(f"{device('cpu').host(pinned=True).pool.used_bytes()} bytes are on the host")


def test_bytes_of_the_device_and_of_the_host():
    """In a step there is the state of the largest parameter; between steps none. The host has all of it."""
    track = memory.predict(step, True)
    for n in range(2):
        assert STATE not in track.by_category(f"step {n} ends") or track.by_category(f"step {n} ends")[STATE] == 0
    states = [b for b in track.blocks() if any(category is STATE for _, category in b.categories)]
    assert max(b.rounded for b in states) == max(ADAM), "room for both moments of the largest"
    timeline = track.timeline()
    assert max(moment.by_category.get(STATE, 0) for moment in timeline) == max(ADAM)
    assert track.marks[-1].text == f"{sum(ADAM)} bytes are on the host"
    plain = memory.predict(step, False)
    assert plain.by_category("step 1 ends")[STATE] == sum(ADAM)


def test_the_peak_of_an_update_is_lower_by_all_states_but_the_largest():
    """A network without activations to speak of: the peak is in the step, where all gradients are."""

    def run(page: bool) -> None:
        params = [nn.Parameter(tm.zeros(n)) for n in (4096, 1024, 2048)]
        optimizer = tm.optim.Adam(params)
        if page:
            paged_optimizer(optimizer)
        for p in params:
            p.grad = tm.ones(p.numel())
        for _ in range(2):
            optimizer.step()

    plain, ours = (memory.predict(run, page).peak for page in (False, True))
    assert plain == 4 * 4 * (4096 + 1024 + 2048)
    assert ours == 2 * 4 * (4096 + 1024 + 2048) + 2 * 4 * 4096


@RULE
def test_a_step_is_predicted(rule: Any):
    assert difference(lambda: step(True, rule)) == ""


@pytest.mark.cuda
def test_a_step_on_a_gpu_is_predicted():
    def run() -> None:
        model = network("cuda")
        train(model, paged_optimizer(tm.optim.AdamW(model.parameters())), 2)

    assert difference_on_gpu(run) == ""


def test_bytes_of_the_big_networks():
    """QLoRA of Llama-3-8B with LoRA on all layers: 41,943,040 trained parameters, 8 bytes each, go to the host."""
    at_end = []

    def run(page: bool) -> None:
        model = lora(quantize_frozen(Step("bfloat16", "cpu").make(lambda: llama(published("llama-3-8b")))), r=16)
        optimizer: Any = tm.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        if page:
            paged_optimizer(optimizer)
        ids = tm.zeros(1, 64, dtype=tm.int64)
        model.loss(ids, ids).backward()
        optimizer.step()
        memory.mark("the end")
        at_end.append(device("cpu").host(pinned=True).pool.used_bytes())

    plain, ours = (memory.predict(run, page) for page in (False, True))
    trained = 32 * 16 * (4 * 4096 + 2 * 1024 + 2 * 4096 + 3 * (4096 + 14336))
    assert trained == 41_943_040
    assert plain.by_category("the end")[STATE] == 8 * trained
    assert STATE not in ours.by_category("the end")
    assert at_end == [0, 8 * trained]


def test_never_above_pytorch():
    def other() -> Any:
        model = torch.nn.Sequential(*[torch.nn.Linear(*each, bias=False) for each in SIZES])
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 96)).square().sum().backward()
            optimizer.step()
        return model, optimizer

    assert training.requested(memory.predict(step, True)) <= pytorch_peak(other)


def test_with_optimizer_in_backward():
    both = []
    for page in (False, True):
        model = network()
        optimizer = tm.optim.Adam(model.parameters())
        if page:
            paged_optimizer(optimizer)
        with optimizer_in_backward(optimizer):
            for _ in range(3):
                model(tm.ones(4, 96)).square().sum().backward()
        both.append(outcome(model, optimizer))
    assert_same(*both)


# --- state dicts


def test_state_that_is_there_moves_to_the_host_and_training_goes_on(dev: str):
    both = []
    for page in (False, True):
        model = network(dev)
        optimizer = tm.optim.Adam(model.parameters())
        train(model, optimizer)
        if page:
            before = device(dev).pool.used_bytes()
            paged_optimizer(optimizer)
            assert before - device(dev).pool.used_bytes() == sum(ADAM)
        train(model, optimizer)
        both.append(outcome(model, optimizer))
    assert_same(*both)


def test_a_state_dict_is_that_of_a_plain_optimizer(tmp_path: Any, dev: str):
    """Either loads the other's, from a file too."""
    model = network(dev)
    plain = tm.optim.Adam(model.parameters())
    train(model, plain)
    paged = paged_optimizer(tm.optim.Adam(model.parameters()))
    tm.save(plain.state_dict(), tmp_path / "plain")
    paged.load_state_dict(tm.load(tmp_path / "plain"))
    assert_same(outcome(model, paged), outcome(model, plain))
    assert paged.state[next(model.parameters())]["exp_avg"].device is device(dev).host(pinned=True)
    tm.save(paged.state_dict(), tmp_path / "paged")
    for source in (paged.state_dict(), tm.load(tmp_path / "paged")):
        back = tm.optim.Adam(model.parameters())
        back.load_state_dict(source)
        assert_same(outcome(model, back), outcome(model, plain))
        assert back.state[next(model.parameters())]["exp_avg"].device is device(dev)


def test_a_copy_and_its_repr_are_as_of_a_plain_one():
    model = network()
    optimizer = paged_optimizer(tm.optim.Adam(model.parameters()))
    train(model, optimizer)
    assert type(optimizer).__name__ == "Adam"
    assert repr(optimizer) == repr(tm.optim.Adam(model.parameters()))
    other_model, other = copy.deepcopy((model, optimizer))
    for each in ((model, optimizer), (other_model, other)):
        train(*each)
    assert_same(outcome(model, optimizer), outcome(other_model, other))


def test_out_of_memory_changes_nothing():
    model = network()
    optimizer = paged_optimizer(tm.optim.Adam(model.parameters()))
    train(model, optimizer)
    before, pool = outcome(model, optimizer), device("cpu").pool
    optimizer.zero_grad()
    model(tm.ones(4, 96)).sum().backward()
    pool.free_all_blocks()
    pool.set_limit(pool.used_bytes() + 512)
    try:
        with pytest.raises(tm.errors.OutOfMemoryError):
            optimizer.step()
    finally:
        pool.set_limit(0)
    assert_same(outcome(model, optimizer), before)


# --- refusals


def test_refusals_in_words():
    model = network()
    with pytest.raises(
        NotImplementedError, match="paged_optimizer: LBFGS does not update each parameter from its own gradient"
    ):
        paged_optimizer(tm.optim.LBFGS(model.parameters()))
    optimizer = paged_optimizer(tm.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="the state of this optimizer is paged already"):
        paged_optimizer(optimizer)
    host = device("cpu").host(pinned=True)
    with pytest.raises(ValueError, match=r"a parameter of shape \[3\] is on the host, and so is its state"):
        paged_optimizer(tm.optim.Adam([tm.zeros(3, device=host).requires_grad_()]))
    table = nn.Embedding(5, 3, sparse=True)
    rows = paged_optimizer(tm.optim.SGD(table.parameters(), lr=0.1, momentum=0.0))
    table(tm.tensor([1, 2])).sum().backward()
    with pytest.raises(NotImplementedError, match="a paged optimizer does not take sparse gradients"):
        rows.step()
