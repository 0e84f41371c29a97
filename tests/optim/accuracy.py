"""The table of ``docs/optimizers.md``: how well optimizers for little memory learn, beside AdamW.

``python -m tests.optim.accuracy`` trains and prints it; ``--write`` writes the page. It takes some minutes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tinygrad_mem as tm
from tinygrad_mem import nn, optim
from tinygrad_mem.data.digits import load_digits
from tinygrad_mem.data.docstrings import encode, load_docstrings
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
}
"""Name -> (how it is made, its rate for the digits, its rate for the text)."""

EPOCHS, BATCH, STEPS, LENGTH, HELD_OUT = 8, 64, 400, 64, 64
_HEAD = """# How well optimizers for little memory learn

Digits: the share of held-out handwritten digits that a network of 64 - 96 - 10 neurons classifies right after {epochs} epochs.
Text: the bits that a GPT (2 layers, width 64, {parameters:,} parameters) needs for a byte of held-out text after {steps} steps;
the text is the documentation of Python's standard library ({python}). State: bytes for each parameter of the GPT, whose
matrices are small: see the table in `tinygrad_mem/optim` for large ones. Each rate is the best of three, a factor of about 3
apart, for each task. Projections change every 20 steps, `GaLore` has `scale=1`, `Muon` has
`adjust_lr_fn="match_rms_adamw"`, and `Lomo` and `AdaLomo` make their steps in backward. There is one seed for each number:
differences of a percent, or of 0.1 bits, say nothing.

`python -m tests.optim.accuracy --write` trains all, and writes this page; `pytest --thorough` compares.

| optimizer | digits | rate | text | rate | state |
|---|---:|---:|---:|---:|---:|
"""


def stepped(model: nn.Module, made: Callable[..., Any], rate: float, losses: Any) -> Any:
    """Train on each loss of ``losses(model)``; returns the optimizer."""
    rule = made(model.parameters(), lr=rate)
    if isinstance(rule, (optim.Lomo, optim.AdaLomo)):
        optimizer_in_backward(rule)
    for loss in losses(model):
        loss.backward()
        if rule._in_backward is None:
            rule.step()
            rule.zero_grad()
    return rule


def digits(made: Callable[..., Any], rate: float) -> float:
    """The share of held-out digits that are right."""
    train_x, train_y, test_x, test_y = (tm.tensor(each) for each in load_digits())
    tm.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))

    def losses(model: Any) -> Any:
        for _ in range(EPOCHS):
            for chosen in tm.randperm(len(train_y)).split(BATCH):
                yield F.cross_entropy(model(train_x[chosen]), train_y[chosen])

    stepped(model, made, rate, losses)
    with tm.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


def text(made: Callable[..., Any], rate: float) -> tuple[float, float]:
    """The bits for a byte of held-out text, and the bytes of state for a parameter."""
    every = encode("\n\n".join(load_docstrings())).astype(np.int64)
    cut = len(every) // LENGTH * LENGTH
    lines = every[:cut].reshape(-1, LENGTH)[np.random.default_rng(0).permutation(cut // LENGTH)]
    held_out, rest = tm.tensor(lines[:HELD_OUT]), lines[HELD_OUT:]
    tm.manual_seed(0)
    model = GPT(2, 4, 64, context=LENGTH, vocabulary=256)

    def losses(model: Any) -> Any:
        for step in range(STEPS):
            chosen = tm.tensor(rest[np.arange(16 * step, 16 * step + 16) % len(rest)])
            yield model.loss(chosen[:, :-1], chosen[:, 1:])

    rule = stepped(model, made, rate, losses)
    kept = sum(t.nbytes for state in rule.state.values() for t in state.values() if isinstance(t, tm.Tensor))
    with tm.no_grad():
        loss = model.loss(held_out[:, :-1], held_out[:, 1:]).item()
    return loss / math.log(2), kept / sum(p.numel() for p in model.parameters())


def measured() -> dict[str, tuple[float, float, float]]:
    """(digits, text, state) of each."""
    return {name: (digits(made, fast), *text(made, slow)) for name, (made, fast, slow) in RULES.items()}


def page(found: dict[str, tuple[float, float, float]]) -> str:
    """The text of the page."""
    count = sum(p.numel() for p in GPT(2, 4, 64, context=LENGTH, vocabulary=256).parameters())
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    lines = [
        f"| `{name}` | {share:.1%} | {RULES[name][1]:g} | {bits:.2f} | {RULES[name][2]:g} | {state:.3f} |\n"
        for name, (share, bits, state) in found.items()
    ]
    return _HEAD.format(epochs=EPOCHS, steps=STEPS, parameters=count, python=python) + "".join(lines)


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(measured()), encoding="utf-8")
    else:
        print(page(measured()))
