"""Writes into parts of a tensor against PyTorch: values, gradients, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import against_torch
from tinygrad_mem.errors import DataDependenceError, DTypeError, ShapeError


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape)


@pytest.mark.parametrize("name", ["tril_", "triu_"])
@pytest.mark.parametrize("diagonal", [-2, 0, 1])
def test_triangles(name: str, diagonal: int):
    against_torch(*[lambda x: getattr(x * 2, name)(diagonal)] * 2, [normal(2, 4, 3)])


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (7, 3), (9, 2), (0, 3), (3, 0), (4, 4, 4), (1, 1)])
@pytest.mark.parametrize("wrap", [False, True])
def test_fill_diagonal(shape: tuple, wrap: bool):
    against_torch(*[lambda x: (x * 2).fill_diagonal_(5.0, wrap)] * 2, [normal(*shape)])


@pytest.mark.parametrize(
    ("shape", "mask"),
    [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 4), (3, 1)), ((2, 3, 4), (1,)), ((5,), (5,)), ((), ()), ((0, 2), (2,))],
)
def test_masked_scatter(shape: tuple, mask: tuple):
    chosen = np.random.default_rng(3).random(mask) < 0.6
    source = normal(4, 7)
    against_torch(
        lambda x, s: (x * 2).masked_scatter(tm.tensor(chosen), s),
        lambda x, s: (x * 2).masked_scatter(torch.tensor(chosen), s),
        [normal(*shape), source],
    )
    against_torch(
        lambda x, s: (x * 2).masked_scatter_(tm.tensor(chosen), s),
        lambda x, s: (x * 2).masked_scatter_(torch.tensor(chosen), s),
        [normal(*shape), source],
    )


def test_masked_scatter_broadcasts_the_input_too():
    mask, x = np.array([[True, False, True], [False, True, True]]), np.zeros(3)
    found = tm.masked_scatter(tm.tensor(x), tm.tensor(mask), tm.arange(6.0, dtype=tm.float64))
    wanted = torch.masked_scatter(torch.tensor(x), torch.tensor(mask), torch.arange(6.0, dtype=torch.float64))
    assert found.tolist() == wanted.tolist()


def test_refusals():
    x = tm.zeros(2, 3)
    with pytest.raises(ShapeError, match="dimensions must larger than 1"):
        tm.zeros(3).fill_diagonal_(1)
    with pytest.raises(ShapeError, match="equal length"):
        tm.zeros(2, 3, 4).fill_diagonal_(1)
    with pytest.raises(DTypeError, match="bool"):
        x.masked_scatter_(tm.zeros(2, 3), x)
    with pytest.raises(DTypeError, match="same dtypes"):
        x.masked_scatter_(tm.ones(2, 3, dtype=tm.bool), tm.zeros(6, dtype=tm.int64))
    with pytest.raises(ShapeError, match="at least the 6"):
        x.masked_scatter_(tm.ones(2, 3, dtype=tm.bool), tm.zeros(5))
    with pytest.raises(DataDependenceError):
        tm.zeros(2, device="meta").masked_scatter_(tm.ones(2, dtype=tm.bool, device="meta"), tm.zeros(2, device="meta"))
    assert (x == 0).all()


VALUES = {"float32": 5.5, "float64": 2.25, "int64": 3}


@pytest.mark.parametrize("target", ["float32", "float64", "int64"])
@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("name", ["masked_fill", "masked_fill_", "index_fill", "index_fill_", "fill_"])
def test_a_value_that_is_a_tensor(name: str, dtype: str, target: str):
    """It is a number: it decides no dtype, and gets a gradient; one with dimensions is refused, as PyTorch does."""
    found = []
    for lib in (tm, torch):
        grad = target != "int64" and dtype != "int64"
        x = lib.arange(6).reshape(2, 3).to(getattr(lib, target))
        value = lib.tensor(VALUES[dtype], dtype=getattr(lib, dtype), requires_grad=grad)
        x = x.requires_grad_() if grad else x
        where = {"m": [x.detach() > 2], "i": [1, lib.tensor([0, 2])], "f": []}[name[0]]
        y = getattr(x * 2, name)(*where, value)
        if grad:
            (y * y).sum().backward()
        found.append([y.detach().numpy(), *([x.grad.numpy(), value.grad.numpy()] if grad else [])])
        for shape in ((1,), (2,)):
            with pytest.raises(RuntimeError, match="0-dim"):
                getattr(x * 2, name)(*where, value.detach().expand(shape))
    for mine, other in zip(*found, strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", ["masked_fill", "index_fill", "index_fill_", "fill_"])
def test_a_value_that_is_a_tensor_on_meta(name: str):
    x, value = tm.zeros(2, 3, device="meta"), tm.tensor(5.0, device="meta")
    where = {"m": [x > 2], "i": [1, tm.tensor([0, 2], device="meta")], "f": []}[name[0]]
    assert getattr(x, name)(*where, value).shape == (2, 3)
