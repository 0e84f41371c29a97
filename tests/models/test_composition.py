"""An LSTM, a GPT and a masked language model with the techniques: predicted, accounted for, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import values
from tests.memory.test_predict import assert_predicted
from tinygrad_mem.models.bert import MaskedLanguageModel
from tinygrad_mem.models.gpt import GPT
from tinygrad_mem.models.lstm import LSTMLanguageModel
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import accumulate
from tinygrad_mem.utils.checkpoint import checkpoint

TOKENS = 40
MODELS: dict[str, Callable[[], Any]] = {
    "LSTM": lambda: LSTMLanguageModel(TOKENS, 16, 16, layers=2, tied=True),
    "GPT": lambda: GPT(2, 2, 16, context=12, vocabulary=TOKENS),
    "masked": lambda: MaskedLanguageModel(2, 2, 16, context=12, vocabulary=TOKENS, dropout=0.0),
}
every_model = pytest.mark.parametrize("name", MODELS)


def loss_of(model: Any, x: tm.Tensor, run: Callable[..., Any] | None = None) -> tm.Tensor:
    """The mean over the tokens that are not 0."""
    scores = model(x) if run is None else run(model, x)
    return F.cross_entropy(scores.float().flatten(0, 1), x.flatten(), ignore_index=0)


def again(model: Any, x: tm.Tensor) -> tm.Tensor:
    return checkpoint(model, x, use_reentrant=False)


def gradients(model: Any) -> list[np.ndarray]:
    return [values(p.grad) for p in model.parameters()]


@every_model
@pytest.mark.parametrize("technique", ["none", "recompute", "autocast"])
def test_a_step_is_as_predicted_and_adds_up(name: str, technique: str):
    def step() -> None:
        model, x = MODELS[name](), tm.ones(3, 12, dtype=tm.int64)
        rule = tm.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(2):
            with tm.autocast("cpu", dtype=tm.float16, enabled=technique == "autocast"):
                loss = loss_of(model, x, again if technique == "recompute" else None)
            rule.zero_grad()
            loss.backward()
            rule.step()

    track = assert_predicted(step)
    for when in ("peak", "end"):
        assert sum(track.by_category(when).values()) == track.pool(when).used


@every_model
def test_recompute_gives_the_same_gradients_bit_for_bit(name: str):
    tm.manual_seed(0)
    model, x, found = MODELS[name](), tm.randint(1, TOKENS, (3, 12)), []
    for run in (None, again):
        model.zero_grad()
        loss_of(model, x, run).backward()
        found.append(gradients(model))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@every_model
def test_micro_batches_weighted_by_their_tokens_are_the_whole_batch(name: str):
    """Padded to different lengths: of means over samples, those of short texts would count too much."""
    tm.manual_seed(0)
    model = MODELS[name]().double()
    x = tm.randint(1, TOKENS, (4, 12))
    x[0, 3:] = 0
    x[1, 5:] = 0
    loss_of(model, x).backward()
    whole, found = gradients(model), []
    model.zero_grad()
    rule = tm.optim.SGD(model.parameters(), 0.0)
    rule.register_step_pre_hook(lambda *_: found.append(gradients(model)))
    with accumulate(model, rule, 2) as window:
        for part in (x[:2], x[2:]):
            window.backward(loss_of(model, part), weight=int((part != 0).sum().item()))
    for a, b in zip(found[0], whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
