"""Recurrent layers in half precision, step after step: beside float64 they err less than PyTorch's do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm

STEPS, BATCH, INPUTS, WIDTH = 20, 4, 24, 32


def gradients(framework: Any, model: Any, x: Any, gy: Any) -> dict[str, np.ndarray]:
    """The outputs of a run and all its gradients, as float64."""
    y, _ = model(x)
    y.backward(gy)
    found = {"y": y.detach(), "x": x.grad, **{name: p.grad for name, p in model.named_parameters()}}
    return {name: value.to(framework.float64).numpy() for name, value in found.items()}


def pytorch(kind: str, options: dict[str, Any], state: dict[str, Any], x: Any, gy: Any, dtype: Any) -> dict[str, np.ndarray]:
    model = getattr(torch.nn, kind)(INPUTS, WIDTH, **options).to(dtype)
    model.load_state_dict({name: value.to(dtype) for name, value in state.items()})
    return gradients(torch, model, x.to(dtype).clone().requires_grad_(), gy.to(dtype))


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}], ids=["one", "two", "both ways"])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_errors_are_below_pytorchs(dtype: str, kind: str, options: dict[str, Any]):
    """Over four seeds: root mean squares below PyTorch's, and no number further off than twice its furthest."""
    ours: dict[str, list[np.ndarray]] = {}
    theirs: dict[str, list[np.ndarray]] = {}
    half = getattr(torch, dtype)
    for seed in range(4):
        torch.manual_seed(seed)
        model = getattr(torch.nn, kind)(INPUTS, WIDTH, **options).to(half)
        width = WIDTH * (2 if options.get("bidirectional") else 1)
        state, x, gy = model.state_dict(), torch.randn(STEPS, BATCH, INPUTS).to(half), torch.randn(STEPS, BATCH, width).to(half)
        exact = pytorch(kind, options, state, x, gy, torch.float64)
        for name, value in pytorch(kind, options, state, x, gy, half).items():
            theirs.setdefault(name, []).append(value - exact[name])
        mine = getattr(tm.nn, kind)(INPUTS, WIDTH, **options).to(getattr(tm, dtype))
        mine.load_state_dict({name: tm.tensor(value.float().numpy()).to(getattr(tm, dtype)) for name, value in state.items()})
        inputs = [tm.tensor(value.float().numpy()).to(getattr(tm, dtype)) for value in (x, gy)]
        for name, value in gradients(tm, mine, inputs[0].requires_grad_(), inputs[1]).items():
            ours.setdefault(name, []).append(value - exact[name])
    for name, errors in ours.items():
        a, b = np.stack(errors), np.stack(theirs[name])
        assert 0 < np.sqrt((a**2).mean()) < np.sqrt((b**2).mean()), name
        assert np.abs(a).max() <= 2 * np.abs(b).max(), name
