"""Random keys read and write as PyTorch's: integers, slices, ``None``, ``...``, ``True``, lists, index tensors, masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import EllipsisType
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.profiles import every, examples

Part = int | slice | list | bool | EllipsisType | np.ndarray | None
WAYS = ("read", "write", "add")
KEYS = 200
"""Random keys of a case."""


def key(draw: random.Random, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Parts that fit the shape; an array is an index tensor or a mask."""
    made: list[Part] = []
    axis = 0
    while axis < len(shape):
        size = shape[axis]
        kind = draw.choice(
            ["integer", "slice", "slice", "new", "list", "array", "array", "mask", "wide mask", "rest", "bool", "end"]
        )
        taken, rest = 1, any(part is Ellipsis for part in made)
        if kind in ("integer", "list", "array") and not size:
            continue
        if kind == "integer":
            made.append(draw.randrange(-size, size))
        elif kind == "slice":
            start, stop = (draw.choice([None, draw.randrange(-size - 1, size + 2)]) for _ in range(2))
            made.append(slice(start, stop, draw.choice([None, 1, 2, 3])))
        elif kind == "list":
            made.append([draw.randrange(-size, size) for _ in range(3)])
        elif kind == "array":
            form = draw.choice([(3,), (2, 3), (1,), (), (3, 1), (0,)])
            numbers = [draw.randrange(-size, size) for _ in range(int(np.prod(form)))]
            made.append(np.array(numbers, draw.choice([np.int64, np.int32])).reshape(form))
        elif kind in ("mask", "wide mask"):
            taken = 1 if kind == "mask" or axis + 1 == len(shape) else 2
            form = shape[axis : axis + taken]
            made.append(np.array([draw.random() < 0.5 for _ in range(int(np.prod(form)))], bool).reshape(form))
        elif kind == "rest" and not rest:
            made.append(...)
            taken = draw.randrange(len(shape) - axis + 1)
        elif kind == "end" and not rest:  # what is behind ``...`` fits the last axes
            break
        elif kind in ("new", "bool") and len(made) < 6:
            made.append(draw.random() < 0.7 if kind == "bool" else None)
            taken = 0
        else:
            continue
        axis += taken
    return tuple(made)


def laid_out(lib: Any, x: Any, which: int) -> Any:
    """The same numbers, plain, transposed or with gaps."""
    if which == 0 or not x.ndim:
        return x * 1
    return (x.transpose(0, -1) * 1).transpose(0, -1) if which == 1 else lib.stack([x, x], -1)[..., 0]


def answers(lib: Any, array: np.ndarray, parts: tuple[Part, ...], how: str, seed: int) -> list[Any] | str:
    """Result and gradients; the name of the kind of error, where it is refused."""
    x = lib.tensor(array, requires_grad=True)
    at = tuple(lib.tensor(part) if isinstance(part, np.ndarray) else part for part in parts)
    rng = np.random.default_rng(seed)
    leaves = [x]
    try:
        y = laid_out(lib, x, seed % 3)
        if how == "read":
            y = y[at]
        else:
            form = tuple(y[at].shape)
            form = (form, form[-1:], ())[seed % 3]  # of the places' shape, or broadcast to it
            leaves.append(lib.tensor(rng.standard_normal(form), requires_grad=True))
            if how == "add":
                y[at] += leaves[1]
            else:
                y[at] = leaves[1]
        y.backward(lib.tensor(rng.standard_normal(tuple(y.shape))))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return "refused"
    return [y.detach().numpy(), *[None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]]


def same(found: list[Any] | str, expected: list[Any] | str) -> bool:
    if isinstance(found, str) or isinstance(expected, str):
        return found == expected
    pairs = zip(found, expected, strict=True)
    return all(f is e or (f is not None and e is not None and f.shape == e.shape and np.allclose(f, e)) for f, e in pairs)


@pytest.mark.parametrize("how", WAYS)
def test_random_keys_as_pytorch(how: str, reliability: Callable[[str, int], None]):
    wrong, count = [], examples(KEYS) // every(2)
    for seed in range(count):
        draw = random.Random(seed)
        shape = tuple(draw.choice([1, 2, 3, 4, 5] if draw.random() < 0.95 else [0]) for _ in range(draw.randrange(1, 5)))
        array, parts = np.random.default_rng(seed).standard_normal(shape), key(draw, shape)
        if not same(answers(tm, array, parts, how, seed), answers(torch, array, parts, how, seed)):
            wrong.append((shape, parts))
    reliability("random keys, read and written as in PyTorch", count)
    assert not wrong
