"""Optimizer in backward: bit for bit a plain step, one gradient at a time, and conflicts in words."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import tinygrad_mem as tm
from tests.optim import light
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tests.techniques.training import Plan
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import GraphError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import accumulate, optimizer_in_backward


def train(plan: Plan, *, in_backward: bool) -> list:
    model = plan.model()
    optimizer, losses = plan.rule(model), []
    if in_backward:
        optimizer_in_backward(optimizer)
    for x, y in plan.batches():
        loss = training.loss_of(model, x, y)
        losses.append(loss.item())
        loss.backward()
        if in_backward:
            assert all(p.grad is None for p in model.parameters())
        else:
            optimizer.step()
            optimizer.zero_grad()
    return training.outcome(model, optimizer, losses)


@given(training.plans())
@settings(max_examples=examples(40))
def test_equal_to_a_plain_step_bit_for_bit(plan: Plan):
    training.assert_identical(train(plan, in_backward=True), train(plan, in_backward=False))


@pytest.mark.parametrize("name", light.NAMES)
def test_rules_with_few_moments_too(name: str):
    """Also APOLLO, whose parameters draw seeds: they have them before any is updated."""

    def run(in_backward: bool) -> list:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
        optimizer = light.rule(name)(model.parameters(), lr=0.01)
        handle = optimizer_in_backward(optimizer) if in_backward else None
        for _ in range(3):
            (model(tm.randn(5, 6)) ** 2).sum().backward()
            if handle is None:
                optimizer.step()
                optimizer.zero_grad()
        return training.outcome(model, optimizer, [])

    training.assert_identical(run(True), run(False))


def test_tied_weights_are_updated_once_when_all_their_gradients_have_come():
    def run(in_backward: bool) -> list:
        tm.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        handle = optimizer_in_backward(optimizer) if in_backward else None
        for _ in range(3):
            model(tm.ones(2, 4)).sum().backward()
            if handle is None:
                optimizer.step()
                optimizer.zero_grad()
        return training.outcome(model, optimizer, [])

    training.assert_identical(run(True), run(False))


# --- bytes


LAYERS, WIDTH = 8, 128
WEIGHT = WIDTH * WIDTH * 4


def step(batch: int, in_backward: bool, steps: int = 2) -> None:
    """Linear layers and ReLUs, without biases; ``state`` arrays of a weight's size a weight: Adam's two."""
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())])
    optimizer = tm.optim.Adam(model.parameters())
    if in_backward:
        optimizer_in_backward(optimizer)
    for _ in range(steps):
        loss = model(tm.ones(batch, WIDTH)).sum()
        loss.backward()
        if not in_backward:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("batch", [1, 8, 16, 64, 256])
def test_bytes_by_formula(batch: int):
    """The peak is the highest backward of a layer: early ones have more gradients behind them, late ones more activations."""
    a, fixed = max(batch * WIDTH * 4, 512), 3 * LAYERS * WEIGHT + 2 * 512  # weights and Adam's two; the loss and its gradient

    def at(layer: int, gradients: int) -> int:
        """While it runs: the batch, the outputs below, the gradients of output, weight and (but for layer 0) input."""
        return fixed + (1 + layer + 1 + (layer > 0)) * a + gradients * WEIGHT + WEIGHT

    plain = max(at(i, LAYERS - 1 - i) for i in range(LAYERS))
    ours = max(at(i, 0) for i in range(LAYERS))
    found = [training.assert_predicted(lambda b=b: step(batch, b)).peak for b in (False, True)]
    assert found == [plain, ours], (found, plain, ours)
    if batch == 1:
        assert plain - ours == (LAYERS - 1) * (WEIGHT - a) - a, "all gradients but one: the peak has moved to the last layer"


@pytest.mark.parametrize("name", training.BIG)
def test_bytes_of_the_big_networks(name: str):
    """No gradient is left at the end, and the peak is never higher."""
    named, (batch, sample) = training.NETWORKS[name], training.BIG[name]

    alive: list = []

    def run(in_backward: bool) -> None:
        model = named.make()
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
        alive[:] = [model, optimizer]
        if in_backward:
            optimizer_in_backward(optimizer)
        x = tm.randint(0, named.classes, (batch, *sample)) if named.tokens else tm.randn(batch, *sample)
        model(x).square().mean().backward()

    plain = memory.predict(run, False)
    alive.clear()
    ours = memory.predict(run, True)
    parameters = plain.by_category("end")[memory.Category.GRADIENT]
    assert parameters == plain.by_category("end")[memory.Category.PARAMETER]
    assert memory.Category.GRADIENT not in ours.by_category("end")
    assert ours.peak <= plain.peak
    assert plain.peak - ours.peak <= parameters
    assert ours.pool("end").used == plain.pool("end").used - parameters


def pytorch_step(batch: int) -> Any:
    """PyTorch's own recipe: an optimizer a parameter, stepped by a hook."""
    layers = [m for _ in range(LAYERS) for m in (torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    rules = {p: torch.optim.Adam([p], foreach=False) for p in model.parameters()}

    def hook(p: Any) -> None:
        rules[p].step()
        rules[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(2):
        loss = model(torch.ones(batch, WIDTH)).sum()
        loss.backward()
    return model


@pytest.mark.parametrize("batch", [1, 16, 256])
def test_never_above_pytorch_with_the_same_technique(batch: int):
    theirs, ours = pytorch_peak(lambda: pytorch_step(batch)), training.requested(memory.predict(step, batch, True))
    assert 0.6 * theirs <= ours <= theirs, (ours, theirs)


def test_nothing_is_left_behind():
    pool = tm.device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        step(4, True)
        assert pool.used_bytes() == before, "the hooks hold the optimizer, which holds the parameters, which hold the hooks"
    finally:
        gc.enable()


# --- conflicts, in words


def made() -> tuple[nn.Module, Any]:
    model = nn.Linear(3, 2)
    return model, tm.optim.SGD(model.parameters(), lr=0.1)


def test_what_wants_gradients_afterwards_is_refused():
    model, optimizer = made()
    handle = optimizer_in_backward(optimizer)
    model(tm.ones(1, 3)).sum().backward()
    with pytest.raises(GraphError, match=r"SGD.step\(\): this optimizer updates each parameter in backward"):
        optimizer.step()
    with pytest.raises(GraphError, match=r"accumulate: this optimizer updates each parameter in backward"):
        accumulate(model, optimizer, 2)
    with pytest.raises(GraphError, match=r"add_param_group\(\): this optimizer updates"):
        optimizer.add_param_group({"params": [nn.Parameter(tm.ones(2))]})
    for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_):
        with pytest.raises(GraphError, match="clipping: optimizer_in_backward has used and freed each of these gradients"):
            clip(model.parameters(), 1.0)
    with pytest.raises(GraphError, match="steps in backward already"):
        optimizer_in_backward(optimizer)
    with pytest.raises(GraphError, match="updated in backward by another optimizer"):
        optimizer_in_backward(tm.optim.SGD(model.parameters(), lr=0.1))
    handle.remove()
    handle.remove()
    model(tm.ones(1, 3)).sum().backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() > 0
    optimizer.step()


def test_a_scaled_loss_is_refused_before_anything_has_moved():
    """Its first backward would make a step 65,536 times too long."""
    model, scaler = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), tm.amp.GradScaler("cpu")
    frozen, other = nn.Linear(1, 1), nn.Linear(3, 1)
    optimizer = tm.optim.SGD(model.parameters(), 0.1)
    before = [p.tolist() for p in model.parameters()]
    with optimizer_in_backward(optimizer):
        loss = frozen(model(tm.ones(2, 3))).sum()
        with pytest.raises(GraphError, match=r"a parameter of shape \[.*\] under this loss is updated in backward"):
            scaler.scale(loss)
        with pytest.raises(GraphError, match="under this loss is updated in backward"):
            scaler.scale([other(tm.ones(1, 3)).sum(), loss])
        scaler.scale(other(tm.ones(1, 3)).sum()).backward()  # of another model
        assert [p.tolist() for p in model.parameters()] == before
        assert tm.amp.GradScaler("cpu", enabled=False).scale(loss) is loss
    scaler.scale(loss).backward()
    assert model[0].weight.grad is not None


def test_a_window_that_was_open_before_is_refused_too():
    model, optimizer = made()
    window = accumulate(model, optimizer, 2)
    with optimizer_in_backward(optimizer), pytest.raises(GraphError, match="accumulate: this optimizer updates"):
        window.backward(model(tm.ones(1, 3)).sum(), 1)


def test_gradients_from_before_are_refused():
    model, optimizer = made()
    model(tm.ones(1, 3)).sum().backward()
    with pytest.raises(GraphError, match=r"shape \[2, 3\] has a gradient from before"):
        optimizer_in_backward(optimizer)
    optimizer.zero_grad()
    optimizer_in_backward(optimizer).remove()


def test_a_second_backward_through_the_graph_sees_that_weights_have_changed():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    with optimizer_in_backward(optimizer):
        loss = model(tm.ones(1, 3)).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(GraphError, match=r"modified by an inplace operation: .*SGD\.step has written to it"):
            loss.backward()


def test_frozen_parameters_schedules_and_copies():
    model, _ = made()
    model.bias.requires_grad = False
    optimizer = tm.optim.SGD(model.parameters(), lr=0.5)
    schedule = tm.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer_in_backward(optimizer)
    model(tm.ones(1, 3)).sum().backward()
    schedule.step()  # no warning: a step was made
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        twin.step()  # a copy has parameters of its own, without hooks
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(tm.ones(1, 3)).sum().backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        assert other.weight.grad is not None


def weights(model: nn.Module) -> list:
    return [p.tolist() for p in model.parameters()]


@pytest.mark.parametrize("kept", ["optimizer", "what it returns", "with block"])
def test_either_of_the_two_keeps_updates_coming(kept: str):
    model = nn.Linear(3, 2)
    if kept == "optimizer":
        held: Any = tm.optim.SGD(model.parameters(), lr=0.5)
        optimizer_in_backward(held)
    else:
        held = optimizer_in_backward(tm.optim.SGD(model.parameters(), lr=0.5))
    with held if kept == "with block" else contextlib.nullcontext():
        for _ in range(2):
            before = weights(model)
            model(tm.ones(1, 3)).sum().backward()
            assert all(a != b for a, b in zip(weights(model), before, strict=True))
            assert model.weight.grad is None


def test_an_optimizer_that_is_gone_is_an_error_and_not_a_training_that_stands_still():
    """Nobody refers to the parameters' hooks from outside: a training would go on, and no weight would move."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer_in_backward(tm.optim.SGD(model.parameters(), lr=0.5))
    before = weights(model)
    with pytest.raises(GraphError, match="updated these parameters in backward is gone, so this backward has updated nothing"):
        model(tm.ones(1, 3)).sum().backward()
    assert weights(model) == before
    model.zero_grad()
    model(tm.ones(1, 3)).sum().backward()  # said once: from here on gradients are kept, for another optimizer
    assert all(p.grad is not None for p in model.parameters())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def test_another_optimizer_takes_the_place_of_one_that_is_gone():
    model = nn.Linear(3, 2)
    optimizer_in_backward(tm.optim.SGD(model.parameters(), lr=0.5))
    before = weights(model)
    with optimizer_in_backward(tm.optim.SGD(model.parameters(), lr=0.5)):
        model(tm.ones(1, 3)).sum().backward()
    assert weights(model) != before
    model(tm.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None, "removed, and nothing of the first one is left"


def test_predicted_with_chunks_and_clipping_is_still_an_error_on_meta():
    def run() -> None:
        model, optimizer = made()
        optimizer_in_backward(optimizer)
        F.mse_loss(model(tm.ones(4, 3)), tm.ones(4, 2)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with pytest.raises(GraphError, match="clipping"):
        memory.predict(run)


# --- the norm of all gradients: two backward passes


def clipped(rule: Any, in_backward: bool, max_norm: float, dtype: Any = tm.float64) -> tuple[list, list]:
    """Parameters and norms of some steps, clipped by hand, or in backward."""
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to(dtype)
    optimizer, norms = rule(model.parameters()), []
    handle = optimizer_in_backward(optimizer, max_norm=max_norm) if in_backward else None
    for scale in (1.0, 0.01, 3.0):
        loss = (model(tm.randn(5, 6, dtype=dtype) * scale) ** 2).sum()
        if handle is not None:
            norms.append(handle.backward(loss).item())
            assert all(p.grad is None for p in model.parameters())
            continue
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
        optimizer.zero_grad()
    return [p.tolist() for p in model.parameters()], norms


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("name", ["Lomo", "AdaLomo", "AdamW", "SGD"])
def test_clipped_by_the_norm_as_a_plain_step(name: str, max_norm: float):
    ours, plain = (clipped(lambda p: getattr(tm.optim, name)(p, lr=0.05), each, max_norm) for each in (True, False))
    assert max(ours[1]) > 1 > max_norm or max(ours[1]) < max_norm
    np.testing.assert_allclose(ours[1], plain[1], rtol=1e-12)
    for a, b in zip(ours[0], plain[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_lomo_is_the_papers_over_fifty_steps(dev: str):
    """w -= lr * g * min(1, c / (norm + 1e-6)), of a linear layer whose gradients are written down."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((3, 4)), rng.standard_normal(3)
    model = nn.Linear(4, 3, dtype=tm.float64, device=dev)
    with tm.no_grad():
        model.weight.copy_(tm.tensor(w))
        model.bias.copy_(tm.tensor(b))
    handle = optimizer_in_backward(tm.optim.Lomo(model.parameters(), lr=0.1), max_norm=2.0)
    cut = 0
    for _ in range(50):
        x, y = rng.standard_normal((5, 4)), rng.standard_normal((5, 3))
        found = handle.backward(0.5 * ((model(tm.tensor(x, device=dev)) - tm.tensor(y, device=dev)) ** 2).sum()).item()
        error = x @ w.T + b - y
        gw, gb = error.T @ x, error.sum(0)
        norm = ((gw**2).sum() + (gb**2).sum()) ** 0.5
        factor = min(1.0, 2.0 / (norm + 1e-6))
        cut += factor < 1
        w, b = w - 0.1 * factor * gw, b - 0.1 * factor * gb
        np.testing.assert_allclose(found, norm, rtol=1e-10)
    assert cut > 5, "some steps are clipped"
    np.testing.assert_allclose(model.weight.detach().cpu().numpy(), w, rtol=1e-10)
    np.testing.assert_allclose(model.bias.detach().cpu().numpy(), b, rtol=1e-10)


def halves(scaler: Any, factor: float) -> tuple[Any, Any, Any]:
    """A float16 layer whose gradients are 3e-8 times ``factor``, and what steps it in backward."""
    layer = nn.Linear(8, 1, bias=False, dtype=tm.float16)
    with tm.no_grad():
        layer.weight.zero_()
    optimizer = tm.optim.Lomo(layer.parameters(), lr=1e4)
    handle = optimizer_in_backward(optimizer, scaler=scaler)
    x = tm.full((1, 8), 2.0**-5, dtype=tm.float16)
    return layer, optimizer, lambda: handle.backward((layer(x).float() * (2.0**-20 * factor)).sum())


def test_a_loss_scale_keeps_what_float16_would_lose():
    """The gradient is 2**-25, 0 in float16. It is unscaled in float32, and so is not lost again."""
    scaler = tm.amp.GradScaler("cpu", init_scale=2.0**10)
    layer, optimizer, step = halves(scaler, 1.0)
    norm = step()
    scaler.update()
    assert scaler.stepped(optimizer)
    np.testing.assert_allclose(norm.item(), 8**0.5 * 2.0**-25, rtol=1e-3)
    np.testing.assert_allclose(layer.weight.detach().numpy(), np.full((1, 8), -1e4 * 2.0**-25), rtol=1e-3)


def test_a_step_that_overflows_is_skipped_and_the_scale_falls():
    scaler = tm.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=1)
    layer, optimizer, step = halves(scaler, 2.0**12)
    assert not np.isfinite(step().item())
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called since the last update"):
        step()
    scaler.update()
    assert not scaler.stepped(optimizer)
    assert scaler.get_scale() == 2.0**29
    assert not layer.weight.any()
    for _ in range(20):
        step()
        scaler.update()
        if scaler.stepped(optimizer):
            break
    assert layer.weight.any()
    assert all(p.grad is None for p in layer.parameters())


def test_a_scaler_that_is_off_changes_nothing():
    scaler = tm.amp.GradScaler("cpu", enabled=False)
    layer, optimizer, step = halves(scaler, 2.0**12)
    np.testing.assert_allclose(step().item(), 8**0.5 * 2.0**-13, rtol=1e-3)
    scaler.update()
    assert scaler.stepped(optimizer)
    assert layer.weight.any()


def clipped_step(batch: int, max_norm: float | None) -> None:
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())])
    handle = optimizer_in_backward(tm.optim.Lomo(model.parameters()), max_norm=max_norm)
    for _ in range(2):
        loss = model(tm.ones(batch, WIDTH)).sum()
        if max_norm is None:
            loss.backward()
        else:
            handle.backward(loss)


@pytest.mark.parametrize("batch", [1, 16, 64, 256])
def test_bytes_of_two_backward_passes_by_formula(batch: int):
    """All activations stay through the first pass, and one gradient of a weight is there at a time, with its norm at most."""
    a, one = max(batch * WIDTH * 4, 512), 512
    found = training.assert_predicted(lambda: clipped_step(batch, 1.0)).peak
    kept = LAYERS * WEIGHT + (1 + LAYERS) * a + 2 * one  # weights; the batch, every ReLU's output; the loss and its gradient
    within = 2 * a + WEIGHT + one  # the gradients of a layer's output and input, and of its weight; the norm so far
    assert found == kept + within, (found, kept, within)
    plain = training.assert_predicted(lambda: clipped_step(batch, None)).peak
    assert plain < found <= plain + (LAYERS + 1) * a + 3 * one


def test_bytes_of_half_precision_with_a_loss_scale():
    """In the second pass a gradient of half precision lies beside its copy in float32, for a moment."""

    def run() -> None:
        layer = nn.Linear(WIDTH, WIDTH, bias=False, dtype=tm.float16)
        scaler = tm.amp.GradScaler("cpu", init_scale=16.0)
        handle = optimizer_in_backward(tm.optim.Lomo(layer.parameters()), max_norm=1.0, scaler=scaler)
        for _ in range(2):
            handle.backward(layer(tm.ones(1, WIDTH, dtype=tm.float16)).float().sum())
            scaler.update()

    half = WIDTH * WIDTH * 2
    assert 4 * half < training.assert_predicted(run).peak < 4 * half + 10 * 512  # weight, its gradient, and the copy of that


def test_with_max_norm_a_plain_backward_is_refused():
    model, optimizer = made()
    before = weights(model)
    with optimizer_in_backward(optimizer, max_norm=1.0) as handle:
        loss = model(tm.ones(1, 3)).sum()
        with pytest.raises(
            GraphError, match=r"call backward\(loss\) of what optimizer_in_backward returned, not loss.backward"
        ):
            loss.backward()
        assert weights(model) == before
        model.zero_grad()
        handle.backward(model(tm.ones(1, 3)).sum())
    assert weights(model) != before
    with pytest.raises(GraphError, match=r"it needs max_norm or scaler, and no remove\(\)"):
        handle.backward(model(tm.ones(1, 3)).sum())
    with (
        optimizer_in_backward(optimizer) as plain,
        pytest.raises(GraphError, match=r"call loss.backward\(\) instead"),
    ):
        plain.backward(model(tm.ones(1, 3)).sum())


def test_a_gradient_that_two_passes_would_double_is_refused():
    model, optimizer = made()
    before, x = weights(model), tm.ones(1, 3, requires_grad=True)
    with optimizer_in_backward(optimizer, max_norm=1.0) as handle:
        with pytest.raises(GraphError, match=r"a tensor of shape \[1, 3\] under this loss requires a gradient and is not"):
            handle.backward(model(x).sum())
        assert weights(model) == before
        assert x.grad is None
        handle.backward(model(x.detach()).sum())


def test_norms_that_cannot_be_asked_for():
    model, optimizer = made()
    values: Any = (0, -1.0, float("nan"), "1")
    for value in values:
        with pytest.raises(ValueError, match="optimizer_in_backward: max_norm should be above 0, or None, found"):
            optimizer_in_backward(optimizer, max_norm=value)
    model.weight._shard = type("Shard", (), {"name": "weight"})()
    with pytest.raises(NotImplementedError, match="weight is divided over ranks, and the norm of what one rank has is not"):
        optimizer_in_backward(optimizer, max_norm=1.0)


def test_rows_of_a_table_are_clipped_too():
    found = []
    for in_backward in (True, False):
        tm.manual_seed(0)
        table = nn.Embedding(6, 3, sparse=True, dtype=tm.float64)
        optimizer = tm.optim.SGD(table.parameters(), lr=0.5)
        handle = optimizer_in_backward(optimizer, max_norm=0.1) if in_backward else None
        loss = (table(tm.tensor([1, 4, 1])) ** 2).sum()
        if handle is not None:
            handle.backward(loss)
        else:
            loss.backward()
            nn.utils.clip_grad_norm_(table.parameters(), 0.1)
            optimizer.step()
        found.append(table.weight.detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-12)
