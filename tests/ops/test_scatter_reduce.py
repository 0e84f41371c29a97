"""Numbers that come together at a place, against PyTorch; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)
REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


def few(shape, seed: int) -> np.ndarray:
    """Zeros, and equal numbers, are among them."""
    return np.random.default_rng(seed).integers(-1, 3, shape).astype("f8")


@given(SHAPES, st.sampled_from(REDUCTIONS), st.booleans(), st.sampled_from(["float64", "float32"]), st.data())
def test_scatter_reduce(shape, reduce, own, dtype, data):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    index = np.random.default_rng(2).integers(0, shape[dim], [data.draw(st.integers(1, n)) for n in shape])
    source = index.shape
    run = lambda x, s, i: x.scatter_reduce(dim, i, s, reduce, include_self=own)  # noqa: E731
    against_torch(run, run, [few(shape, 0), few(source, 1), index], dtype)
    in_place = lambda x, s, i: (x * 1).scatter_reduce_(dim, i, s, reduce, include_self=own)  # noqa: E731
    against_torch(in_place, in_place, [few(shape, 0), few(source, 1), index], dtype)


@pytest.mark.parametrize("own", [True, False])
def test_gradients_of_products_with_no_zero_one_and_several(own: bool):
    index = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3])
    source = np.array([0.0, 2.0, 3.0, 0.0, 0.0, 5.0, 4.0, 6.0, 0.0])
    run = lambda x, s, i: x.scatter_reduce(0, i, s, "prod", include_self=own)  # noqa: E731
    for x in ([2.0, 3.0, 5.0, 7.0, 11.0], [0.0, 0.0, 0.0, 7.0, 0.0]):
        against_torch(run, run, [np.array(x), source, index])


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("own", [True, False])
def test_integers(reduce: str, own: bool):
    x, source = np.arange(12).reshape(3, 4), np.arange(8).reshape(2, 4) - 3
    index = np.array([[0, 1, 2, 0], [0, 1, 1, 2]])
    found, expected = [
        lib.tensor(x).scatter_reduce(0, lib.tensor(index), lib.tensor(source), reduce, include_self=own) for lib in (tm, torch)
    ]
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_a_source_larger_than_the_index(reduce: str):
    x, source, index = few((3, 4), 0), few((5, 6), 1), np.array([[0, 2, 2]])
    run = lambda x, s, i: x.scatter_reduce(0, i, s, reduce)  # noqa: E731
    against_torch(run, run, [x, source, index], grad=False)
    s = tm.tensor(source, requires_grad=True)
    run(tm.tensor(x), s, tm.tensor(index)).sum().backward()
    assert s.grad is not None
    part = tm.tensor(source[:1, :3], requires_grad=True)
    run(tm.tensor(x), part, tm.tensor(index)).sum().backward()
    assert part.grad is not None
    assert s.grad[:1, :3].tolist() == part.grad.tolist()
    assert s.grad.count_nonzero().item() == part.grad.count_nonzero().item()


def test_nan_wins():
    index, source = np.zeros(2, np.int64), np.array([np.nan, 3.0])
    for reduce in ("amax", "amin"):
        run = lambda x, s, i, reduce=reduce: x.scatter_reduce(0, i, s, reduce)  # noqa: E731
        against_torch(run, run, [np.ones(2), source, index], grad=False)


X, I, S = tm.zeros(3, 4), tm.zeros(2, 4, dtype=tm.int64), tm.ones(2, 4)
REFUSED = {
    "reduction": (lambda: X.scatter_reduce(0, I, S, "max"), "must be one of sum, prod, mean, amax, amin, got 'max'"),
    "source": (lambda: X.scatter_reduce(0, I, 1.0, "sum"), "argument 'src'"),
    "source's dtype": (lambda: X.scatter_reduce(0, I, S.double(), "sum"), "equal to src.dtype"),
    "source's size": (lambda: X.scatter_reduce(0, I, S[:1], "sum"), "no larger size than src"),
    "index": (lambda: X.scatter_reduce(0, I + 3, S, "sum"), "out of bounds"),
    "index's dtype": (lambda: X.scatter_reduce(0, I.short(), S, "sum"), "Expected dtype int32/int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    run, words = REFUSED[name]
    before = X.clone()
    with pytest.raises(tm.errors.TinygradMemError, match=words):
        run()
    assert tm.equal(X, before)
