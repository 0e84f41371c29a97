"""Gradient accumulation: what is equal to what, which bytes it saves, and windows that are ragged, partial, clipped, broken."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.profiles import examples
from tests.pytorch_memory import pytorch_peak
from tests.techniques import training
from tests.techniques.training import NO_BATCH_NORM, Plan
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import ArgumentError, ArgumentTypeError, GraphError, ShapeError
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import accumulate

WHOLE = [name for name in NO_BATCH_NORM if "drop" not in name]  # dropout draws other masks for other batches


def gradients(model: nn.Module) -> list[np.ndarray]:
    return [p.grad.numpy().copy() for p in model.parameters() if p.grad is not None]


class Taken:
    """Gradients as an optimizer finds them."""

    def __init__(self, optimizer: Any) -> None:
        self.found: list[list[np.ndarray]] = []
        optimizer.register_step_pre_hook(self.take)

    def take(self, optimizer: Any, *_: Any) -> None:
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self.found.append([p.grad.numpy().copy() for p in every if p.grad is not None])


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 2e-5) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(np.abs(b).max(initial=0))))


# --- what is equal


@given(training.plans(WHOLE), st.integers(1, 6))
@settings(max_examples=examples(40))
def test_a_batch_in_parts_has_the_gradient_of_the_batch(plan: Plan, steps: int):
    model, (x, y) = plan.model(), plan.batches()[0]
    loss = training.loss_of(model, x, y)
    loss.backward()
    whole = gradients(model)
    optimizer = plan.rule(model)
    taken = Taken(optimizer)
    found = accumulate(model, optimizer, steps).split(x, y, F.mse_loss)
    assert found.item() == pytest.approx(loss.item(), rel=1e-5)
    (ours,) = taken.found
    assert_close(ours, whole)
    assert all(p.grad is None for p in model.parameters())


@given(training.plans())
@settings(max_examples=examples(30))
def test_a_window_of_one_is_a_plain_step_bit_for_bit(plan: Plan):
    model = plan.model()
    optimizer, losses = plan.rule(model), []
    with accumulate(model, optimizer, 1) as window:
        for x, y in plan.batches():
            loss = training.loss_of(model, x, y)
            losses.append(loss.item())
            assert window.backward(loss, weight=len(x)) is True
    plain = training.train(plan)
    training.assert_identical(
        training.outcome(model, optimizer, losses), plain[: len(training.outcome(model, optimizer, losses))]
    )


@given(training.plans(), st.integers(1, 5))
@settings(max_examples=examples(30))
def test_equal_weights_are_plain_backwards_scaled_once_bit_for_bit(plan: Plan, steps: int):
    batches = [plan.batches()[0]] * steps
    model = plan.model()
    optimizer = plan.rule(model)
    taken = Taken(optimizer)
    with accumulate(model, optimizer, steps) as window:
        for x, y in batches:
            window.backward(training.loss_of(model, x, y), weight=3)
    model = plan.model()
    for x, y in batches:
        training.loss_of(model, x, y).backward()
    if steps > 1:
        for p in model.parameters():
            p.grad = None if p.grad is None else p.grad * (1 / steps)
    training.assert_identical(taken.found[0], gradients(model))
    if steps in (1, 2, 4):
        model = plan.model()
        for x, y in batches:
            (training.loss_of(model, x, y) / steps).backward()
        training.assert_identical(taken.found[0], gradients(model))


def test_ragged_windows_are_weighted_by_samples_and_tokens():
    """The mean of means is another number, which is what those who divide by the number of micro-batches get."""
    rng = np.random.default_rng(0)
    x, y = tm.tensor(rng.standard_normal((11, 5))), rng.integers(0, 4, 11)
    y[[0, 1, 2, 4, 9]] = -100  # padding
    y = tm.tensor(y)
    model = nn.Linear(5, 4).double()
    F.cross_entropy(model(x), y).backward()
    (whole,) = [g for g in gradients(model) if g.ndim == 2]
    optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
    taken = Taken(optimizer)
    with accumulate(model, optimizer, 3) as window:
        for part, target in zip(x.split([4, 6, 1]), y.split([4, 6, 1]), strict=True):
            tokens = int((target != -100).sum().item())
            window.backward(F.cross_entropy(model(part), target), weight=tokens)
    np.testing.assert_allclose(taken.found[0][0], whole, rtol=1e-12, atol=1e-15)
    with accumulate(model, optimizer, 3) as window:  # as if each part had as many
        for part, target in zip(x.split([4, 6, 1]), y.split([4, 6, 1]), strict=True):
            window.backward(F.cross_entropy(model(part), target), weight=1)
    assert np.abs(taken.found[1][0] - whole).max() > 1e-2
    accumulate(model, optimizer, 3).split(x, y, F.cross_entropy, weight=lambda _, t: int((t != -100).sum().item()))
    assert len(taken.found) == 3


def test_split_by_tokens_is_the_batch():
    rng = np.random.default_rng(1)
    x, target = tm.tensor(rng.standard_normal((12, 5))), rng.integers(0, 4, 12)
    target[[0, 1, 2, 3, 8]] = -100  # the first part has no token at all, and a loss of nan
    y = tm.tensor(target)
    model = nn.Linear(5, 4).double()
    plain = F.cross_entropy(model(x), y)
    plain.backward()
    whole = gradients(model)
    optimizer = tm.optim.SGD(model.parameters(), lr=0.0)
    taken = Taken(optimizer)
    loss = accumulate(model, optimizer, 3).split(x, y, F.cross_entropy, weight=lambda _, t: int((t != -100).sum().item()))
    assert loss.item() == pytest.approx(plain.item(), rel=1e-12)
    assert_close(taken.found[0], whole, 1e-13)


def test_nothing_that_counts_is_no_step():
    model = nn.Linear(2, 2)
    optimizer = tm.optim.SGD(model.parameters(), lr=1.0)
    taken = Taken(optimizer)
    window = accumulate(model, optimizer, 2)
    assert window.backward(model(tm.ones(1, 2)).sum() * math.nan, weight=0) is False
    assert window.backward(model(tm.ones(1, 2)).sum() * math.nan, weight=0) is False
    assert window.step() is False
    assert math.isnan(window.split(tm.ones(2, 2), tm.ones(2), lambda out, t: out.sum() * math.nan, lambda *_: 0).item())
    assert taken.found == []


def test_the_last_partial_window_is_stepped_as_one_of_that_many():
    model = nn.Linear(2, 1, bias=False)
    optimizer = tm.optim.SGD(model.parameters(), lr=1.0)
    taken = Taken(optimizer)
    with accumulate(model, optimizer, 4) as window:
        stepped = [window.backward(model(tm.full((1, 2), float(i))).sum(), weight=1) for i in range(6)]
    assert stepped == [False, False, False, True, False, False]
    assert [f[0].tolist() for f in taken.found] == [[[1.5, 1.5]], [[4.5, 4.5]]]


def test_batch_norm_makes_a_difference_and_moves_its_statistics_every_time():
    """Stated, and shown: with batch norm the parts are normalised by their own statistics."""
    rng = np.random.default_rng(0)
    x, y = tm.tensor(rng.standard_normal((8, 3))), tm.tensor(rng.standard_normal((8, 3)))
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    F.mse_loss(model(x), y).backward()
    whole = gradients(model)
    assert model[1].num_batches_tracked.item() == 1
    optimizer = tm.optim.SGD(model.parameters(), lr=0.0)
    taken = Taken(optimizer)
    accumulate(model, optimizer, 4).split(x, y, F.mse_loss)
    assert model[1].num_batches_tracked.item() == 5
    assert max(np.abs(a - b).max() for a, b in zip(taken.found[0], whole, strict=True)) > 0.05
    model.eval()  # with given statistics it is the large batch again
    model.zero_grad()
    F.mse_loss(model(x), y).backward()
    whole = gradients(model)
    accumulate(model, optimizer, 4).split(x, y, F.mse_loss)
    assert_close(taken.found[1], whole, 1e-13)


# --- clipping, schedules, scalers


def test_clipped_once_a_window_after_the_mean_and_scheduled_once():
    model = nn.Linear(4, 1, bias=False)
    optimizer = tm.optim.SGD(model.parameters(), lr=1.0)
    schedule = tm.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    taken = Taken(optimizer)
    with accumulate(model, optimizer, 2, max_norm=1.0, scheduler=schedule) as window:
        for value in (10.0, 30.0, 0.1, 0.3, 8.0):
            window.backward(model(tm.full((1, 4), value)).sum(), weight=1)
    found = [f[0].reshape(-1) for f in taken.found]
    np.testing.assert_allclose(found[0], [0.5] * 4, rtol=1e-5)  # mean 20, norm 40, clipped to 1
    np.testing.assert_allclose(found[1], [0.2] * 4, rtol=1e-5)  # norm 0.4: below, and no clipping of a part
    np.testing.assert_allclose(found[2], [0.5] * 4, rtol=1e-5)
    assert schedule.get_last_lr() == [0.125]


class Scaler:
    """A loss scaler of PyTorch's interface, as small as one can be."""

    def __init__(self) -> None:
        self.factor, self.calls = 1024.0, []

    def scale(self, loss: Any) -> Any:
        return loss * self.factor

    def unscale_(self, optimizer: Any) -> None:
        self.calls.append("unscale_")
        self.inf = False
        for group in optimizer.param_groups:
            for p in group["params"]:
                self.inf = self.inf or not bool(tm.isfinite(p.grad).all())
                p.grad.mul_(1 / self.factor)

    def step(self, optimizer: Any) -> None:
        self.calls.append("step")
        if not self.inf:
            optimizer.step()

    def update(self) -> None:
        self.calls.append("update")
        self.factor *= 0.5 if self.inf else 1.0


def test_a_scaler_unscales_before_clipping_and_an_inf_skips_the_whole_window():
    model = nn.Linear(4, 1, bias=False)
    optimizer = tm.optim.SGD(model.parameters(), lr=1.0)
    schedule = tm.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    taken, scaler = Taken(optimizer), Scaler()
    before = model.weight.tolist()
    window = accumulate(model, optimizer, 2, max_norm=1.0, scheduler=schedule, scaler=scaler)
    assert [window.backward(model(tm.full((1, 4), v)).sum(), weight=1) for v in (math.inf, 1.0)] == [False, False]
    assert model.weight.tolist() == before
    assert scaler.factor == 512
    assert schedule.get_last_lr() == [1.0]
    assert [window.backward(model(tm.full((1, 4), v)).sum(), weight=1) for v in (0.1, 0.3)] == [False, True]
    np.testing.assert_allclose(taken.found[0][0].reshape(-1), [0.2] * 4, rtol=1e-5)
    assert scaler.calls == ["unscale_", "step", "update"] * 2
    assert schedule.get_last_lr() == [0.5]


# --- bytes

LAYERS, WIDTH = 6, 64
WEIGHT = WIDTH * WIDTH * 4


def train(batch: int, steps: int, windows: int = 2) -> None:
    model = nn.Sequential(*[m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())])
    optimizer = tm.optim.Adam(model.parameters())
    x, y = tm.ones(batch, WIDTH), tm.ones(batch, WIDTH)
    for _ in range(windows):
        accumulate(model, optimizer, steps).split(x, y, F.mse_loss)


@pytest.mark.parametrize("steps", [2, 3, 4, 8])
@pytest.mark.parametrize("batch", [192, 768])
def test_peak_is_states_and_gradients_and_the_activations_of_a_part(batch: int, steps: int):
    """At the last layer's backward of a part that is not the first: formula, meta and cpu agree to the byte."""
    a = batch // steps * WIDTH * 4
    data, states, gradients = 2 * batch * WIDTH * 4, 3 * LAYERS * WEIGHT, LAYERS * WEIGHT
    outputs = (LAYERS - 1) * a  # the last one's is gone: its ReLU's backward has run
    temporary = 2 * a + WEIGHT + 3 * 512  # gradients of the layer's output, input and weight; the loss, its seed, the total
    expected = data + states + gradients + outputs + temporary
    assert training.assert_predicted(lambda: train(batch, steps)).peak == expected


SHARE = {
    "vgg16": (0.97, 1.0),
    "resnet50": (0.36, 0.39),
    "unet": (0.2, 0.22),
    "gpt2": (0.22, 0.24),
    "gpt2, 64 tokens": (1.1, 1.2),
}
"""Of the peak of the batch of 8 in one piece. Where weights are most of it nothing is saved: and where the peak had been before
the gradients came, as in the GPT with 64 tokens, it grows, since they are there from the second part on."""


@pytest.mark.parametrize("name", SHARE)
def test_bytes_of_the_big_networks(name: str):
    """The peak of 8 samples in 8 parts is that of one sample that finds gradients from before, and the rest of the data."""
    network, _, short = name.partition(", ")
    named, sample = training.NETWORKS[network], (64,) if short else training.BIG[network][1]

    def run(batch: int, steps: int, windows: int = 1) -> None:
        model = named.make()
        optimizer = tm.optim.SGD(model.parameters(), lr=0.1)
        shape = (batch, *sample)
        x = tm.randint(0, named.classes, shape) if named.tokens else tm.randn(*shape)
        accumulate(model, optimizer, steps).split(x, tm.zeros(batch), lambda out, _: out.square().mean())

    def held() -> None:
        model = named.make()
        x = tm.randint(0, named.classes, (1, *sample)) if named.tokens else tm.randn(1, *sample)
        for _ in range(2):
            model(x).square().mean().backward()

    def plain() -> None:
        model = named.make()
        x = tm.randint(0, named.classes, (8, *sample)) if named.tokens else tm.randn(8, *sample)
        model(x).square().mean().backward()

    one = (8 if named.tokens else 4) * math.prod(sample)
    ours, whole = memory.predict(run, 8, 8).peak, memory.predict(plain).peak
    assert ours - memory.predict(held).peak == 7 * one + 512 + 512, "seven samples more, the targets, the sum of losses"
    low, high = SHARE[name]
    assert low <= ours / whole <= high, f"{ours:,} of {whole:,}"


def pytorch_train(batch: int, steps: int) -> Any:
    layers = [m for _ in range(LAYERS) for m in (torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x, y = torch.ones(batch, WIDTH), torch.ones(batch, WIDTH)
    for _ in range(2):
        for part, target in zip(x.chunk(steps), y.chunk(steps), strict=True):
            (torch.nn.functional.mse_loss(model(part), target) / steps).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("steps", [2, 8])
@pytest.mark.parametrize("batch", [192, 768])
def test_never_above_pytorch_with_the_same_technique(batch: int, steps: int):
    theirs, ours = pytorch_peak(lambda: pytorch_train(batch, steps)), training.requested(memory.predict(train, batch, steps))
    assert 0.5 * theirs <= ours <= theirs, (ours, theirs)


def test_one_graph_at_a_time_and_nothing_left():
    pool = tm.device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        train(64, 4)
        assert pool.used_bytes() == before
    finally:
        gc.enable()


# --- bad input


def small() -> tuple[nn.Module, Any]:
    model = nn.Linear(2, 2)
    return model, tm.optim.SGD(model.parameters(), lr=0.5)


def test_a_window_in_which_something_breaks_begins_anew():
    model, optimizer = small()
    before = [p.tolist() for p in model.parameters()]
    window = accumulate(model, optimizer, 2)
    window.backward(model(tm.ones(1, 2)).sum(), weight=1)
    broken = model(tm.ones(1, 2))
    broken.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        window.backward((broken * broken).sum(), weight=1)
    assert all(p.grad is None for p in model.parameters()), "half a gradient must not be stepped"
    assert window.backward(model(tm.ones(1, 2)).sum(), weight=1) is False
    with pytest.raises(ZeroDivisionError), window:
        window.backward(1 / 0, weight=1)  # type: ignore[arg-type]
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(ZeroDivisionError):
        window.split(tm.ones(4, 2), tm.ones(4, 2), lambda out, y: 1 / 0)  # type: ignore[arg-type,return-value]
    assert [p.tolist() for p in model.parameters()] == before
    assert window.split(tm.ones(4, 2), tm.ones(4, 2), F.mse_loss).item() > 0


def test_gradients_from_before_the_window_are_no_part_of_it():
    model, optimizer = small()
    taken = Taken(optimizer)
    model(tm.ones(1, 2)).sum().backward()
    with accumulate(model, optimizer, 2) as window:
        window.backward(model(tm.ones(1, 2)).sum(), weight=1)
    assert taken.found[0][0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "4"])
def test_steps_are_a_positive_whole_number(steps: Any):
    with pytest.raises(ArgumentError, match="steps is the number of micro-batches in a step, expected 1 or more, found"):
        accumulate(*small(), steps)


def test_other_bad_input():
    model, optimizer = small()
    with pytest.raises(ArgumentError, match="max_norm must be positive, or None for no clipping, found 0"):
        accumulate(model, optimizer, 2, max_norm=0)
    window = accumulate(model, optimizer, 2)
    for weight in (-1, math.inf, math.nan):
        with pytest.raises(ArgumentError, match=f"weight is the number of samples or tokens .* found {weight}"):
            window.backward(model(tm.ones(1, 2)).sum(), weight=weight)
    with pytest.raises(ArgumentTypeError, match="in the mean of the loss, found Tensor"):
        window.backward(model(tm.ones(1, 2)).sum(), weight=tm.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"as many samples, found \[3, 2\] and \[2\]"):
        window.split(tm.ones(3, 2), tm.ones(2), F.mse_loss)
    with pytest.raises(GraphError, match="grad can be implicitly created only for scalar outputs"):
        window.backward(model(tm.ones(1, 2)), weight=1)
    window.backward(model(tm.ones(1, 2)).sum(), weight=1)
    with pytest.raises(GraphError, match=r"a window of 1 backward\(\) calls is open; step\(\) first"):
        window.split(tm.ones(2, 2), tm.ones(2, 2), F.mse_loss)
    assert window.step() is True
    assert window.step() is False


def test_a_weight_that_meta_does_not_know_is_refused_in_words():
    def run() -> None:
        model, optimizer = small()
        y = tm.randint(0, 2, (4,))
        accumulate(model, optimizer, 2).split(tm.ones(4, 2), y, F.cross_entropy, lambda _, t: (t != -100).sum().item())

    with pytest.raises(tm.errors.DataDependenceError, match=r"predict: at .*accumulation"):
        memory.predict(run)


def test_the_parts_of_a_batch_run_in_a_region():
    """Forward and loss of each, and not backward."""
    seen: list[str] = []

    @contextmanager
    def region() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    model = nn.Linear(4, 2)
    model.weight.register_hook(lambda grad: seen.append("backward"))
    window = accumulate(model, tm.optim.SGD(model.parameters(), lr=0.1), 2)

    def loss(output: tm.Tensor, y: tm.Tensor) -> tm.Tensor:
        seen.append("loss")
        return F.mse_loss(output, y)

    window.split(tm.randn(4, 4), tm.randn(4, 2), loss, region=region)
    assert seen == ["in", "loss", "out", "backward"] * 2
