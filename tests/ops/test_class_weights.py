"""Weights of classes at their borders, of every loss of classes: 0, negative, infinite and nan, on targets and beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import on_devices, pairs

inf, nan = np.inf, np.nan
WEIGHTS = [[0, 0, 0], [1, 0, 2], [0, 0, 1], [nan, 1, 1], [inf, 1, 1], [1, inf, nan], [-1, 1, 0], [1e-300, 0, 1e300]]
TARGETS = [[1, 1], [0, 1], [0, 2], [-100, -100], [-100, 1], [2, -100]]
SCORES = np.array([[0.1, 0.2, 0.3], [1, 2, 0.0]])


def cross_entropy(lib: Any, x: Any, t: Any, **options: Any) -> Any:
    return lib.nn.functional.cross_entropy(x, t, **options)


def cross_entropy_of_pixels(lib: Any, x: Any, t: Any, **options: Any) -> Any:
    return lib.nn.functional.cross_entropy(x[:, :, None, None], t[:, None, None], **options)


def linear_cross_entropy(lib: Any, x: Any, t: Any, **options: Any) -> Any:
    """A tile of 2 classes, and one of the third."""
    matrix = lib.eye(3, dtype=x.dtype, device=x.device)
    if lib is tm:
        tile = tm.nn.LinearCrossEntropyOptions(batch_chunk_size=1, class_chunk_size=2)
        return tm.nn.functional.linear_cross_entropy(x, matrix, t, options=tile, **options)
    return torch.nn.functional.cross_entropy(x @ matrix, t, **options)


def nll_loss(lib: Any, x: Any, t: Any, label_smoothing: float, **options: Any) -> Any:
    return lib.nn.functional.nll_loss(x, t, **options)


def of_probabilities(lib: Any, x: Any, t: Any, **options: Any) -> Any:
    return lib.nn.functional.cross_entropy(x, lib.tensor([[0.5, 0.5, 0], [0, 0, 1]], dtype=x.dtype, device=x.device), **options)


def answer(lib: Any, loss: Callable[..., Any], dtype: str, device: str, weight: list, target: list, **options: Any) -> list:
    kind = getattr(lib, dtype)
    x = lib.tensor(SCORES, dtype=kind, device=device, requires_grad=True)
    w = lib.tensor(weight, dtype=kind, device=device)
    y = loss(lib, x, lib.tensor(target, device=device), weight=w, **options)
    y.sum().backward()
    return [y.detach().cpu().numpy(), x.grad.cpu().numpy()]


@pytest.mark.parametrize("loss", [cross_entropy, cross_entropy_of_pixels, linear_cross_entropy, nll_loss, of_probabilities])
@pytest.mark.parametrize(("dtype", "dev"), on_devices(pairs(["float64", "float32"], ["cpu", "cuda"])))
@pytest.mark.filterwarnings("ignore")
def test_weights_at_their_borders(loss: Callable[..., Any], dtype: str, dev: str, reliability: Any):
    """A weight that no target has counts only where the loss is spread: an infinite one made all gradients nan."""
    wrong, tried = [], 0
    smoothings = (0.0,) if loss is nll_loss else (0.0, 0.1, 1.0)
    spread = [(smoothing, reduction) for smoothing in smoothings for reduction in ("mean", "sum", "none")]
    targets = TARGETS[:1] if loss is of_probabilities else TARGETS
    for weight, (smoothing, reduction), target in pairs(WEIGHTS, spread, targets):
        if reduction == "mean" and min(weight) < 0 and smoothing:
            continue  # they cancel: the loss is infinite or nan there, nan here
        if dtype == "float32" and max(weight) == 1e300:
            continue
        tried += 1
        options = {"reduction": reduction, "label_smoothing": smoothing}
        with np.errstate(all="ignore"):
            found = answer(tm, loss, dtype, dev, weight, target, **options)
            expected = answer(torch, loss, dtype, "cpu", weight, target, **options)
            if (
                loss is linear_cross_entropy and inf in weight
            ):  # the denominator's part and the score's are summed apart: inf - inf
                found[0], expected[0] = (np.where(np.isfinite(a[0]), a[0], nan) for a in (found, expected))
            if not all(np.allclose(a, b, 1e-5, 1e-6, equal_nan=True) for a, b in zip(found, expected, strict=True)):
                wrong.append(f"{weight} {target} {smoothing} {reduction}: {found}, PyTorch {expected}")
    assert not wrong, "\n".join(wrong)
    reliability("weights of classes at their borders", tried)
