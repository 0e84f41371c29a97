"""Softmax against PyTorch over shapes, axes and dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tests.profiles import pairs
from tinygrad_mem.functional import softmax as ours

shapes = st.lists(st.integers(0, 5), min_size=0, max_size=4)


@given(shapes, st.integers(-4, 3), st.sampled_from(["softmax", "log_softmax"]), st.sampled_from(["float64", "float32"]))
def test_equals_pytorch(shape: list, dim: int, name: str, dtype: str):
    dim = dim % max(len(shape), 1) - (max(len(shape), 1) if dim < 0 else 0)
    x = np.asarray(np.random.default_rng(0).standard_normal(shape) * 4)
    against_torch(lambda x: getattr(ours, name)(x, dim), lambda x: getattr(T, name)(x, dim), [x], dtype)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    ("shape", "dim"), [((2, 70_000), 1), ((40_000, 3), 0), ((1, 40_000, 2), 1), ((3000, 40), 1), ((30, 9, 50, 4), 1)]
)
def test_long_and_many_lines(name: str, shape: tuple, dim: int):
    x = np.random.default_rng(0).standard_normal(shape)
    against_torch(lambda x: getattr(ours, name)(x, dim), lambda x: getattr(T, name)(x, dim), [x])
    exact = getattr(torch, name)(torch.tensor(x), dim).numpy()
    found = getattr(ours, name)(tm.tensor(x.astype(np.float32)), dim).numpy()
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(4, 9), (2, 5, 3), (2, 70_000)])
def test_half_precision_is_computed_in_float32(name: str, shape: tuple):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float16)
    against_torch(lambda x: getattr(ours, name)(x, 1), lambda x: getattr(T, name)(x, 1), [x], "float16", tolerance=(2e-3, 2e-3))


def test_extremes():
    x = np.array([[1e4, 0.0, -1e4], [-np.inf, 0.0, 1.0], [np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0], [-np.inf] * 3])
    for name in ("softmax", "log_softmax"):
        found, expected = getattr(ours, name)(tm.tensor(x), 1).numpy(), getattr(T, name)(torch.tensor(x), 1).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_dtype_argument_and_method():
    x = tm.tensor([1, 2, 3])
    assert ours.softmax(x, 0, dtype=tm.float64).dtype == tm.float64
    assert x.float().softmax(0).tolist() == ours.softmax(x.float(), 0).tolist()


def test_gumbel():
    logits = tm.tensor(np.log(np.array([[0.7, 0.2, 0.1]] * 4000)))
    soft = ours.gumbel_softmax(logits, tau=0.5)
    np.testing.assert_allclose(soft.sum(-1).numpy(), 1, rtol=1e-12)
    logits.requires_grad_()
    hard = ours.gumbel_softmax(logits, hard=True)
    assert set(np.unique(np.round(hard.detach().numpy(), 12))) == {0.0, 1.0}
    np.testing.assert_allclose(hard.detach().numpy().mean(0), [0.7, 0.2, 0.1], atol=0.05)
    (hard * tm.tensor([1.0, 2.0, 3.0], dtype=tm.float64)).sum().backward()
    assert np.abs(logits.grad.numpy()).max() > 0


def test_refusals():
    with pytest.raises(IndexError, match="Dimension out of range"):
        ours.softmax(tm.zeros(2, 3), 2)
    with pytest.raises(TypeError, match="expected a floating tensor, found int64"):
        ours.softmax(tm.tensor([1, 2]), 0)


@given(st.integers(0, 9), st.sampled_from([0.0, 1.0, 8.0, 30.0, 300.0]), st.sampled_from([-400.0, -20.0, 0.0, 20.0, 90.0]))
def test_numbers_of_any_size(seed: int, spread: float, middle: float):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, 70, 3)) * spread + middle
    x[rng.random(x.shape) < 0.2] = -np.inf
    for dim in range(3):
        for dtype in ("float64", "float32"):
            tolerance = None if dtype == "float64" else (4e-6 * max(spread, 1), 1e-5)
            run = lambda t, dim=dim: t.softmax(dim)  # noqa: E731
            against_torch(run, run, [x], dtype, tolerance=tolerance)


LONG = [(3000, 300), (300, 3000), (2, 40000), (3, 20000, 5), (70000,)]


@pytest.mark.parametrize(("name", "shape", "dtype"), pairs(["softmax", "log_softmax"], LONG, ["float32", "float16"]))
def test_lines_longer_than_a_tile(name: str, shape: tuple[int, ...], dtype: str):
    """A usual run takes any two of function, shape and dtype."""
    x = np.random.default_rng(1).standard_normal(shape)
    tolerance = (4e-3, 4e-3) if dtype == "float16" else None
    for dim in range(len(shape)):
        run = lambda t, dim=dim: getattr(t, name)(dim)  # noqa: E731
        against_torch(run, run, [x], dtype, tolerance=tolerance)
