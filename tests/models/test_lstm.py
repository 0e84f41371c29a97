"""The language model over characters: PyTorch's losses, a real training, its bytes."""

from __future__ import annotations

import argparse
import collections
import gc
import inspect
import math
import os
import subprocess
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.networks import MORE, our_peak, run_under, under_pytorch
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import memory
from tinygrad_mem.models.lstm import LSTMLanguageModel
from tinygrad_mem.nn import functional as F

WORKLOAD = next(workload for workload in MORE if workload.module == "lstm")


def text() -> np.ndarray:
    """Docstrings of the standard library, which ship with Python, as numbers below 128."""
    found = [inspect.getdoc(f) or "" for module in (argparse, collections, os, subprocess) for f in vars(module).values()]
    return np.frombuffer("\n".join(found).encode("ascii", "replace"), np.uint8).astype(np.int64)


@pytest.mark.parametrize("options", [{}, {"layers": 2, "tied": True, "width": 32, "hidden": 32}], ids=str)
def test_twenty_steps_have_pytorchs_losses(options: dict):
    torch.manual_seed(0)
    arguments = {"width": 24, "hidden": 32, **options}
    other = under_pytorch("lstm").LSTMLanguageModel(**arguments).double()
    mine = LSTMLanguageModel(**arguments).double()
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    assert len(list(mine.parameters())) == len(list(other.parameters()))
    steps = {tm: tm.optim.Adam(mine.parameters(), lr=1e-2), torch: torch.optim.Adam(other.parameters(), lr=1e-2)}
    data = text()[: 20 * 4 * 12].reshape(20, 4, 12)
    for batch in data:
        losses = []
        for framework, model in ((tm, mine), (torch, other)):
            x = framework.tensor(batch)
            loss = framework.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            steps[framework].zero_grad()
            loss.backward()
            steps[framework].step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_it_learns_text():
    """From ln 128 = 4.85 a character to far below what their frequencies alone allow (3.2): in pieces, the state handed on."""
    tm.manual_seed(0)
    model = LSTMLanguageModel(width=32, hidden=64)
    optimizer = tm.optim.Adam(model.parameters(), lr=1e-2)
    lines = text()
    lines = lines[: len(lines) // 16 * 16].reshape(16, -1)  # 16 places of the text at once
    counts = np.bincount(lines.reshape(-1), minlength=128) / lines.size
    entropy = -(counts[counts > 0] * np.log(counts[counts > 0])).sum()
    losses: list[float] = []
    for _ in range(3):
        state: Any = None
        for i in range(0, 40 * 32, 32):
            x, y = tm.tensor(lines[:, i : i + 32]), tm.tensor(lines[:, i + 1 : i + 33])
            scores, state = model.run(x, state)
            state = tuple(part.detach() for part in state)  # backward ends where the piece began
            loss = F.cross_entropy(scores.flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            tm.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(128), abs=0.3)
    assert np.mean(losses[-10:]) < 2.1 < entropy - 1


def test_a_step_needs_half_of_pytorchs_bytes():
    theirs = pytorch_peak(run_under(torch, WORKLOAD))
    gc.collect()
    assert 0.35 * theirs <= our_peak(WORKLOAD, "meta") <= 0.55 * theirs


def test_tied_weights_count_once():
    def parameters(tied: bool) -> int:
        with memory.track("meta") as track, tm.device("meta"):
            model = LSTMLanguageModel(1000, 64, 64, tied=tied)
            moment = track.by_category("end")
        assert model.head.weight is (model.embedding.weight if tied else model.head.weight)
        return sum(size for category, size in moment.items() if category.value == "parameters")

    assert parameters(False) - parameters(True) == 1000 * 64 * 4
    with pytest.raises(ValueError, match="tied weights need width == hidden, found 8 and 16"):
        LSTMLanguageModel(10, 8, 16, tied=True)
