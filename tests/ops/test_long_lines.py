"""Long lines of float32, against float64: roundings in a row add up, and no reduction here may show it.

Numbers that are all alike are the hardest, for each rounding then has the same sign.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import pairs
from tinygrad_mem.nn import functional as F

EPS = float(np.finfo(np.float32).eps)
MANY = 3 << 18
LAYOUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int | tuple[int, ...]]] = {
    "line": (lambda x: x, 0),
    "rows": (lambda x: x.reshape(2, -1), 1),
    "columns": (lambda x: x.reshape(-1, 2), 0),
    "columns, many": (lambda x: x.reshape(-1, 48), 0),
    "columns, wide": (lambda x: x.reshape(-1, 512), 0),
    "between": (lambda x: x.reshape(3, -1, 2), 1),
    "first and last": (lambda x: x.reshape(-1, 2, 2), (0, 2)),
    "both ends long": (lambda x: x.reshape(1024, 2, -1), (0, 2)),
    "transposed columns": (lambda x: x.reshape(-1, 2).T, 1),
    "every other": (lambda x: np.repeat(x, 2).reshape(-1, 4)[:, ::2], 0),
}
REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: x.mean(dim),
    "var": lambda x, dim: x.var(dim),
    "std": lambda x, dim: x.std(dim),
    "norm 1": lambda x, dim: x.norm(1, dim),
    "norm 2": lambda x, dim: x.norm(2, dim),
    "norm 3": lambda x, dim: x.norm(3, dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
}
LINES: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda f, x: f.softmax(x, 0),
    "log_softmax": lambda f, x: f.log_softmax(x, 0),
    "cross_entropy": lambda f, x: f.cross_entropy(x[None], x[:1].long(), reduction="none"),
    "label smoothing": lambda f, x: f.cross_entropy(x[None], x[:1].long(), reduction="none", label_smoothing=0.5),
    "mse_loss": lambda f, x: f.mse_loss(x, 0 * x),
    "l1_loss": lambda f, x: f.l1_loss(x, 0 * x),
    "avg_pool": lambda f, x: f.adaptive_avg_pool1d(x[None, None], 1),
    "cumsum": lambda f, x: x.cumsum(0),
}


def numbers(kind: str) -> np.ndarray:
    if kind == "alike":
        return np.full(MANY, 0.1, np.float32)
    return np.random.default_rng(0).random(MANY).astype(np.float32)


def off(found: Any, exact: torch.Tensor) -> float:
    """How many eps of float32 an answer is off, at most."""
    wanted = exact.numpy()
    return float((np.abs(found.numpy().astype(np.float64) - wanted) / np.abs(wanted)).max() / EPS)


@pytest.mark.parametrize(("kind", "layout"), pairs(["alike", "drawn"], [*LAYOUTS]))
def test_reductions(kind: str, layout: str):
    shape, dim = LAYOUTS[layout]
    x = shape(numbers(kind))
    names = REDUCTIONS if kind == "drawn" else [name for name in REDUCTIONS if name not in ("var", "std")]
    exact, mine = torch.tensor(x.astype(np.float64)), tm.from_numpy(x)
    found = {name: off(REDUCTIONS[name](mine, dim), REDUCTIONS[name](exact, dim)) for name in names}
    assert max(found.values()) < 16, found


@pytest.mark.parametrize("name", LINES)
def test_lines(name: str):
    for kind in ("alike", "drawn"):
        x = numbers(kind)
        line = LINES[name]
        wanted = line(torch.nn.functional, torch.tensor(x.astype(np.float64)))
        assert off(line(F, tm.from_numpy(x)), wanted) < 16, kind
