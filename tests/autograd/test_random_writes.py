"""Random programs of views and writes: values, gradients and refusals are PyTorch's, and gradients those of differences.

PyTorch refuses some writes that are none of its own here, so what is recorded of them is compared with small differences.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import every, examples

PROGRAMS = 200
"""Random programs of a case."""
VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda x: x[:2],
    "select": lambda x: x[0],
    "transposed": lambda x: x.transpose(0, -1),
    "new axis": lambda x: x.unsqueeze(0),
    "detached": lambda x: x.detach(),
    "data": lambda x: x.data,
    "gaps": lambda x: x[..., ::2],
    "diagonal": lambda x: x.diagonal(0, 0, -1) if x.ndim > 1 else x[:1],
}
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, other: x * other.sum(),
    "square": lambda x, other: x * x,
    "sine": lambda x, other: x.sin(),
    "sum": lambda x, other: (x + 1.0).sum() * other,
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "mul_": lambda x, other: x.mul_(1.5),
    "mul_ by a tensor": lambda x, other: x.mul_(other.sum()),
    "add_": lambda x, other: x.add_(other.mean(), alpha=2),
    "fill_": lambda x, other: x.fill_(0.5),
    "zero_": lambda x, other: x.zero_(),
    "copy_": lambda x, other: x.copy_(other.mean()),
    "sigmoid_": lambda x, other: x.sigmoid_(),
    "clamp_": lambda x, other: x.clamp_(-0.5, 0.5),
    "key": lambda x, other: x.__setitem__(slice(0, 1), other.sum()),
}
REFUSED, STALE = "refused", "refused by PyTorch alone"
"""STALE: a write to a view that was made before its base began to require grad, which PyTorch takes for a leaf."""
Step = tuple[str, str, int, int, bool]


def program(draw: random.Random) -> list[Step]:
    """Steps: the kind, which of its functions, of which two tensors, and whether under ``no_grad``."""
    kinds: list[tuple[str, dict]] = [("view", VIEWS), ("op", OPS), ("write", WRITES), ("write", WRITES)]
    found: list[Step] = []
    for _ in range(draw.randrange(3, 12)):
        kind, functions = draw.choice(kinds)
        found.append((kind, draw.choice(list(functions)), draw.randrange(99), draw.randrange(99), draw.random() < 0.25))
    return found


def outcome(lib: Any, steps: list[Step], seed: int) -> list[Any]:
    """What each step leaves, and the gradients; a refusal ends the program."""
    rng = np.random.default_rng(seed)
    leaves = [
        lib.tensor(rng.standard_normal((3, 4)), requires_grad=True),
        lib.tensor(rng.standard_normal((2,)), requires_grad=True),
    ]
    tensors = [
        leaves[0] * 1.0,
        leaves[1] * 1.0,
        lib.tensor(rng.standard_normal((3, 3))),
        lib.tensor(rng.standard_normal((2, 2))),
    ]
    left: list[Any] = []
    constant: set[int] = set()  # views made under no_grad: PyTorch's say that they require grad, and give none

    def read(t: Any) -> Any:
        return t.detach() if id(t) in constant else t

    for kind, name, one, two, silent in steps:
        x, other = tensors[one % len(tensors)], tensors[two % len(tensors)]
        x, other = x if kind == "write" else read(x), read(other)
        if not x.ndim or not x.numel():
            continue
        try:
            with lib.no_grad() if silent else contextlib.nullcontext():
                if kind == "view":
                    tensors.append(VIEWS[name](x))
                    if silent:
                        constant.add(id(tensors[-1]))
                elif kind == "op":
                    tensors.append(OPS[name](x, other))
                else:
                    WRITES[name](x, other)
        except RuntimeError as error:
            base = getattr(x, "_base", None)
            stale = base is not None and base.grad_fn is not None and "a leaf Variable" in str(error)
            return [*left, STALE if stale else REFUSED]
        left.append([t.detach().numpy().copy() for t in tensors])
    try:
        total: Any = sum((t * t * (i + 1)).sum() for i, t in enumerate(map(read, tensors)))
        total.backward()
    except RuntimeError:
        return [*left, REFUSED]
    return [*left, [None if t.grad is None else t.grad.numpy() for t in leaves]]


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
        return found.shape == expected.shape and np.allclose(found, expected, 1e-9, 1e-9, equal_nan=True)
    return type(found) is type(expected) and found == expected


@pytest.mark.filterwarnings("ignore")  # of what overflows
@pytest.mark.parametrize("part", range(4))
def test_random_views_and_writes(part: int, reliability: Callable[[str, int], None]):
    wrong, count = [], examples(PROGRAMS) // every(2)
    for number in range(part, 4 * count, 4):
        steps = program(random.Random(number))
        expected = outcome(torch, steps, number)
        if expected[-1] != STALE and not same(outcome(tm, steps, number), expected):
            wrong.append((number, steps))
    reliability("random programs of views and writes", count)
    assert not wrong


def slope(steps: list[Step], seed: int) -> tuple[float, float] | None:
    """The derivative in a random direction: by backward, and by a difference; ``None`` where that cannot be said."""
    rng = np.random.default_rng(seed)
    points = [rng.standard_normal(shape) for shape in ((3, 4), (2,), (3, 3), (2, 2))]
    ways = [rng.standard_normal(point.shape) for point in points[:2]]

    def total(shift: float) -> tuple[Any, list[Any]]:
        leaves = [tm.tensor(p + shift * w, requires_grad=True) for p, w in zip(points[:2], ways, strict=True)]
        tensors = [leaves[0] * 1.0, leaves[1] * 1.0, tm.tensor(points[2]), tm.tensor(points[3])]
        for kind, name, one, two, _ in steps:
            x, other = tensors[one % len(tensors)], tensors[two % len(tensors)]
            if not x.ndim or not x.numel() or name in ("detached", "data", "clamp_"):  # other derivatives, or none at an edge
                continue
            if kind == "write":
                WRITES[name](x, other)
            else:
                tensors.append((VIEWS[name] if kind == "view" else lambda t, name=name, o=other: OPS[name](t, o))(x))
        return sum((t.sin() * (i + 1)).sum() for i, t in enumerate(tensors)), leaves

    try:
        middle, leaves = total(0.0)
        middle.backward()
    except RuntimeError:
        return None
    found = sum(float((leaf.grad.numpy() * way).sum()) for leaf, way in zip(leaves, ways, strict=True) if leaf.grad is not None)
    wide, narrow = ((total(h)[0].item() - total(-h)[0].item()) / (2 * h) for h in STEPS)
    return (found, narrow) if abs(wide - narrow) < NEAR * (1 + abs(narrow)) else None


STEPS, NEAR = (1e-6, 1e-7), 1e-5
"""The differences, and how far apart slopes may be; where the two differences are further apart, the curve is too steep."""


@pytest.mark.parametrize("part", range(4))
def test_gradients_are_those_of_differences(part: int, reliability: Callable[[str, int], None]):
    wrong, tried, count = [], 0, examples(PROGRAMS) // every(2)
    for number in range(part, 4 * count, 4):
        both = slope(program(random.Random(number)), number)
        tried += both is not None
        if both and abs(both[0] - both[1]) > NEAR * (1 + abs(both[1])):
            wrong.append((number, both))
    reliability("random programs of views and writes, against finite differences", tried)
    assert not wrong
