"""The table of ``docs/optimizers.md``: how well optimizers for little memory learn, beside AdamW.

``python -m tests.optim.accuracy`` trains and prints it; ``--write`` writes the page. It takes ten minutes of one core.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

import tinygrad_mem as tm
from tests.texts import encode, load_docstrings
from tinygrad_mem import nn, optim
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.models.gpt import GPT
from tinygrad_mem.nn import functional as F
from tinygrad_mem.techniques import optimizer_in_backward

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
FEW = {"rank": 8, "update_proj_gap": 20}
RULES: dict[str, tuple[Callable[..., Any], float, float]] = {
    "AdamW": (optim.AdamW, 3e-2, 1e-3),
    "AdamW8bit": (optim.AdamW8bit, 1e-2, 1e-3),
    "AdamW4bit": (optim.AdamW4bit, 3e-2, 1e-3),
    "AdamMini": (optim.AdamMini, 3e-2, 1e-3),
    "Lion": (optim.Lion, 3e-3, 3e-4),
    "Muon(adamw=True)": (partial(optim.Muon, adjust_lr_fn="match_rms_adamw", adamw=True), 1e-2, 1e-2),
    "GaLore(rank=8)": (partial(optim.GaLore, scale=1.0, **FEW), 3e-2, 1e-2),
    "APOLLO(rank=8)": (partial(optim.APOLLO, **FEW), 3e-2, 1e-2),
    "APOLLOMini": (partial(optim.APOLLOMini, update_proj_gap=20), 3e-2, 1e-3),
    "Adafactor": (optim.Adafactor, 3e-2, 3e-2),
    "AdaLomo": (optim.AdaLomo, 3e-2, 3e-2),
    "Lomo(clip_grad_value=1.0)": (partial(optim.Lomo, clip_grad_value=1.0), 1.0, 0.3),
    "Lomo, max_norm=1.0": (optim.Lomo, 1.0, 0.3),
}
"""Name -> (how it is made, its rate for the digits, its rate for the text)."""
BY_NORM = {"Lomo, max_norm=1.0": 1.0}
"""Those whose gradients are clipped by their common norm -> the norm."""
SEEDS = (0, 1, 2)

EPOCHS, BATCH, STEPS, LENGTH, HELD_OUT = 8, 64, 400, 64, 64
_HEAD = """# How well optimizers for little memory learn

Digits: the share of held-out handwritten digits that a network of 64 - 96 - 10 neurons classifies right after {epochs} epochs.
Text: the bits that a GPT (2 layers, width 64, {parameters:,} parameters) needs for a byte of held-out text after {steps} steps;
the text is the documentation of Python's standard library ({python}). State: bytes for each parameter of the GPT, whose
matrices are small: see the table in `tinygrad_mem/optim` for large ones. Each rate is the best of three, a factor of about 3
apart, for each task and with one seed. Projections change every 20 steps, `GaLore` has `scale=1`, `Muon` has
`adjust_lr_fn="match_rms_adamw"`, and `Lomo` and `AdaLomo` make their steps in backward, the last row by going back twice.

Each number is the mean of {seeds} seeds, which choose the first weights and the order of the data. Behind ± is the largest
distance of one seed's number from this mean: a difference between two rows that is not larger says nothing.

`python -m tests.optim.accuracy --write` trains all, and writes this page; `pytest --thorough` compares.

| optimizer | digits | rate | text | rate | state |
|---|---:|---:|---:|---:|---:|
"""


def stepped(model: nn.Module, name: str, rate: float, losses: Any) -> Any:
    """Train on each loss of ``losses(model)``; returns the optimizer."""
    rule, norm = RULES[name][0](model.parameters(), lr=rate), BY_NORM.get(name)
    in_backward = isinstance(rule, (optim.Lomo, optim.AdaLomo))
    steps: Any = optimizer_in_backward(rule, max_norm=norm) if in_backward else None
    for loss in losses(model):
        if norm is not None:
            steps.backward(loss)
            continue
        loss.backward()
        if not in_backward:
            rule.step()
            rule.zero_grad()
    return rule


def digits(name: str, seed: int, rate: float) -> float:
    """The share of held-out digits that are right."""
    train_x, train_y, test_x, test_y = (tm.tensor(each) for each in load_digits())
    tm.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))

    def losses(model: Any) -> Any:
        for _ in range(EPOCHS):
            for chosen in tm.randperm(len(train_y)).split(BATCH):
                yield F.cross_entropy(model(train_x[chosen]), train_y[chosen])

    stepped(model, name, rate, losses)
    with tm.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


@cache
def lines() -> tuple[Any, Any]:
    """The lines of text, in a random order: those held out, and the rest."""
    every = encode("\n\n".join(load_docstrings())).astype(np.int64)
    cut = len(every) // LENGTH * LENGTH
    mixed = every[:cut].reshape(-1, LENGTH)[np.random.default_rng(0).permutation(cut // LENGTH)]
    return mixed[:HELD_OUT], mixed[HELD_OUT:]


def text(name: str, seed: int, rate: float) -> tuple[float, float]:
    """The bits for a byte of held-out text, and the bytes of state for a parameter."""
    held_out, rest = tm.tensor(lines()[0]), lines()[1]
    order = np.random.default_rng(seed).permutation(len(rest))
    tm.manual_seed(seed)
    model = GPT(2, 4, 64, context=LENGTH, vocabulary=256)

    def losses(model: Any) -> Any:
        for step in range(STEPS):
            chosen = tm.tensor(rest[order[np.arange(16 * step, 16 * step + 16) % len(rest)]])
            yield model.loss(chosen[:, :-1], chosen[:, 1:])

    rule = stepped(model, name, rate, losses)
    kept = sum(t.nbytes for state in rule.state.values() for t in state.values() if isinstance(t, tm.Tensor))
    with tm.no_grad():
        loss = model.loss(held_out[:, :-1], held_out[:, 1:]).item()
    return loss / math.log(2), kept / sum(p.numel() for p in model.parameters())


class Found(NamedTuple):
    """What was found of a rule: means over the seeds, and how far a seed is from them."""

    digits: float
    digits_spread: float
    bits: float
    bits_spread: float
    state: float


def measured(name: str) -> Found:
    """Train with each seed."""
    _, fast, slow = RULES[name]
    shares = [digits(name, seed, fast) for seed in SEEDS]
    bits, (state, *_) = zip(*[text(name, seed, slow) for seed in SEEDS], strict=True)
    middles = [(mean(each), max(abs(x - mean(each)) for x in each)) for each in (shares, bits)]
    return Found(*middles[0], *middles[1], state)


def page(found: dict[str, Found]) -> str:
    """The text of the page."""
    count = sum(p.numel() for p in GPT(2, 4, 64, context=LENGTH, vocabulary=256).parameters())
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    rows = [
        f"| `{name}` | {row.digits:.1%} ± {100 * row.digits_spread:.1f} | {RULES[name][1]:g} "
        f"| {row.bits:.2f} ± {row.bits_spread:.2f} | {RULES[name][2]:g} | {row.state:.3f} |\n"
        for name, row in found.items()
    ]
    head = _HEAD.format(epochs=EPOCHS, steps=STEPS, parameters=count, python=python, seeds=len(SEEDS))
    return head + "".join(rows)


if __name__ == "__main__":
    written = page({name: measured(name) for name in RULES})
    if "--write" in sys.argv:
        PAGE.write_text(written, encoding="utf-8")
    else:
        print(written)
