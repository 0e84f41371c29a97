"""``_foreach_NAME``: the operations on lists of tensors with which published optimizers are written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.stand_ins.foreach import FOREACH

ARGUMENTS: dict[str, list[tuple]] = {
    "add mul div": [(2.0,), ([0.5, 2.0],), ("tensors",), ("0-d",)],
    "sub pow maximum minimum clamp_min clamp_max": [(0.5,), ([0.5, 2.0],), ("tensors",)],
    "lerp": [("tensors", 0.25), ("tensors", [0.25, 0.5]), ("tensors", "tensors")],
    "addcdiv addcmul": [("tensors", "tensors"), ("tensors", "tensors", 0.5), ("tensors", "tensors", [0.5, 2.0])],
    "norm": [(), (1,), (float("inf"),)],
    "copy": [("tensors",)],
}
OF = {name: forms for names, forms in ARGUMENTS.items() for name in names.split()}


def lists(lib: Any, seed: int) -> list:
    rng = np.random.default_rng(seed)
    return [lib.tensor(rng.uniform(0.1, 0.9, shape)) for shape in ((3,), (2, 2))]


def arguments(lib: Any, form: tuple) -> list:
    made = {"tensors": lambda i: lists(lib, i + 1), "0-d": lambda i: lib.tensor(2.0, dtype=lib.float64)}
    return [made[a](i) if isinstance(a, str) else a for i, a in enumerate(form)]


@pytest.mark.parametrize("name", sorted(FOREACH))
def test_as_pytorch(name: str):
    plain = name.removeprefix("_foreach_").rstrip("_")
    for form in OF.get(plain, [()]):
        found, expected, results = lists(tm, 0), lists(torch, 0), []
        for lib, tensors in ((tm, found), (torch, expected)):
            results.append(getattr(lib, name)(tensors, *arguments(lib, form)))
        assert (results[0] is found) == name.endswith("_")
        for ours, theirs in zip([*found, *results[0]], [*expected, *results[1]], strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-14)


def test_named_arguments():
    for name, more in (("add_", {"alpha": 0.5}), ("addcmul_", {"value": 2})):
        found, expected = lists(tm, 0), lists(torch, 0)
        for lib, tensors in ((tm, found), (torch, expected)):
            others = [lists(lib, i) for i in range(2 if name == "addcmul_" else 1)]
            getattr(lib, f"_foreach_{name}")(tensors, *others, **more)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-14)


@pytest.mark.parametrize("others", [[1.0], [1.0] * 3])
def test_lists_of_other_lengths_are_refused(others: list):
    with pytest.raises(tm.errors.ShapeError, match=r"_foreach_add_: lists of one length, of at least one tensor, found 2 and"):
        tm._foreach_add_(lists(tm, 0), others)
    with pytest.raises(tm.errors.ShapeError, match="found 0 and"):
        tm._foreach_neg([])
