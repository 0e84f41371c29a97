"""Lighter optimizers train: the loss on real digits after an equal number of steps, beside their 32-bit original's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import tinygrad_mem as tm
from tinygrad_mem import nn, optim
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.nn import functional as F

STEPS, DIGITS = 80, 250
MARGIN = 0.03  # of the loss, which falls from 2.3 to about 0.15


def adam(parameters: Any) -> optim.Adam:
    return optim.Adam(parameters, lr=3e-3)


def sgd(parameters: Any) -> optim.SGD:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "8-bit Adam": (lambda p: optim.Adam8bit(p, lr=3e-3, min_8bit_size=0), adam),
    "8-bit AdamW, blocks of 256": (
        lambda p: optim.AdamW8bit(p, lr=3e-3, min_8bit_size=0, block_size=256),
        lambda p: optim.AdamW(p, lr=3e-3),
    ),
    "Adam with half moments": (lambda p: optim.Adam(p, lr=3e-3, state_dtype=tm.float16), adam),
    "8-bit momentum": (
        lambda p: optim.SGD8bit(p, lr=0.1, momentum=0.9, min_8bit_size=0),
        sgd,
    ),
    "half momentum": (
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, state_dtype=tm.float16),
        sgd,
    ),
}


def trained(make: Callable[..., Any], dtype: tm.dtype = tm.float32) -> tuple[float, float]:
    """The first and the last loss of a small network on some of the digits, all at once."""
    images, labels, _, _ = load_digits()
    x, y = tm.tensor(images[:DIGITS]).flatten(1).to(dtype), tm.tensor(labels[:DIGITS])
    tm.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10)).to(dtype)
    optimizer, losses = make(model.parameters()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses[0], losses[-1]


@cache
def reference(make: Callable[..., Any] = adam) -> float:
    """The last loss of the 32-bit original."""
    return trained(make)[1]


@pytest.mark.parametrize("name", RULES)
def test_as_well_as_in_32_bits(name: str):
    first, last = trained(RULES[name][0])
    assert first > 2.2
    assert last < 0.2
    assert abs(last - reference(RULES[name][1])) < MARGIN


def test_adafactor():
    """Another rule than Adam's, not an approximation of it: it gets there too."""
    _, last = trained(lambda p: optim.Adafactor(p, lr=0.05))  # at several times that its losses jump, as PyTorch's do
    assert last < reference() + 0.1


FEW: dict[str, Callable[..., Any]] = {
    "Lion": lambda p: optim.Lion(p, lr=4e-3),
    "AdamMini": lambda p: optim.AdamMini(p, lr=3e-3),
    "Muon": lambda p: optim.Muon(p, lr=3e-2, adjust_lr_fn="match_rms_adamw", adamw=True),
    "GaLore": lambda p: optim.GaLore(p, lr=1e-2, rank=8, update_proj_gap=20, scale=1.0),
    "APOLLO": lambda p: optim.APOLLO(p, lr=1e-2, rank=8, update_proj_gap=20),
    "APOLLOMini": lambda p: optim.APOLLOMini(p, lr=1e-2, update_proj_gap=20),
    "AdamW4bit": lambda p: optim.AdamW4bit(p, lr=1e-2, min_4bit_size=0),
    "Lomo": lambda p: optim.Lomo(p, lr=1.0),
    "AdaLomo": lambda p: optim.AdaLomo(p, lr=0.05),
}


@pytest.mark.parametrize("name", FEW)
def test_rules_with_few_moments(name: str):
    """Other rules than Adam's, with rates of their own: they get there too. ``docs/optimizers.md`` says how well."""
    first, last = trained(FEW[name])
    assert first > 2.2
    assert last < 0.2


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.Adam(p, lr=3e-3, master_weights=True),
        lambda p: optim.Adam8bit(p, lr=3e-3, min_8bit_size=0, master_weights=True),
        lambda p: optim.Adam(p, lr=3e-3, master_weights=True, state_dtype=tm.float16),
    ],
    ids=["Adam", "8-bit Adam", "half moments"],
)
def test_a_float16_network_with_masters(make: Callable[..., Any]):
    _, last = trained(make, tm.float16)
    assert abs(last - reference()) < 2 * MARGIN
