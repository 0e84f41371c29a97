"""Quantiles, medians without nan, modes and integrals, against PyTorch; and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
NAN = st.sampled_from([0.0, 0.3, 1.0])


def distinct(shape, share: float = 0.0) -> np.ndarray:
    """No two alike, but for a share of nan."""
    rng = np.random.default_rng(0)
    x = rng.permutation(int(np.prod(shape))).reshape(shape) / 3.0
    return np.where(rng.random(shape) < share, np.nan, x)


def each(run) -> list:
    return [lambda *x, lib=lib: run(lib, *x) for lib in (tm, torch)]


@given(
    SHAPES,
    NAN,
    st.sampled_from(["linear", "lower", "higher", "midpoint", "nearest"]),
    st.sampled_from([0.0, 0.37, 1.0, [0.1, 0.5, 0.95]]),
    st.booleans(),
    st.data(),
)
def test_quantiles(shape, share, between, q, keep, data):
    dim = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))

    def run(lib, x):
        share = lib.tensor(q, dtype=x.dtype) if isinstance(q, list) else q
        return lib.quantile(x, share, dim, keep, interpolation=between)

    against_torch(*each(run), [distinct(shape, share)], grad=share == 0)


@given(SHAPES)
def test_the_median_of_all_shares_its_gradient_among_equals(shape):
    x = np.random.default_rng(0).integers(-1, 2, shape).astype("f8")
    against_torch(*each(lambda lib, x: x.median()), [x])


def test_medians_of_nothing_and_of_nan():
    for x in (np.empty(0), np.array([1.0, np.nan, 0.0])):
        against_torch(*each(lambda lib, x: x.median()), [x], grad=False)
    for dtype in ("uint8", "int8", "int16", "int32", "int64", "bool"):
        mine, other = (lib.zeros(0, dtype=getattr(lib, dtype)).median() for lib in (tm, torch))
        assert (str(mine.dtype), mine.item()) == (dtype, other.item())


X = tm.ones(3, 4)
REFUSED = {
    "q": (lambda: X.quantile(1.5), r"range \[0, 1\] but got 1.5"),
    "q of a vector": (lambda: X.quantile(tm.tensor([0.5, -1.0])), r"must be in the range \[0, 1\]"),
    "q's dtype": (lambda: X.quantile(tm.tensor([0.5], dtype=tm.float64)), "same dtype as the input tensor"),
    "q's shape": (lambda: X.quantile(tm.full((2, 2), 0.5)), "scalar or 1D tensor"),
    "interpolation": (lambda: X.quantile(0.5, interpolation="cubic"), "must be one of linear, .* but got cubic"),
    "integers": (lambda: X.long().quantile(0.5), "must be either float or double dtype, found int64"),
    "halves": (lambda: X.half().quantile(0.5), "must be either float or double dtype, found float16"),
    "nothing": (lambda: tm.ones(0).quantile(0.5), "must be non-empty"),
    "median of nothing": (lambda: tm.ones(2, 0).median(1), "non-zero size"),
    "a dimension that is not there": (lambda: X.quantile(0.5, 2), "Dimension out of range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    run, words = REFUSED[name]
    with pytest.raises(tm.errors.TinygradMemError, match=words):
        run()


def test_on_meta():
    x = tm.ones(3, 4, device="meta")
    assert tuple(x.quantile(tm.tensor([0.1, 0.5], device="meta"), 1).shape) == (2, 3)


@pytest.mark.parametrize("between", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.3, [0.25, 0.6], 0.0, 1.0, 0.5])
def test_by_a_tensor_that_requires_a_gradient(between: str, q):
    x = np.array([[3.0, 1.0, 2.0, 7.0], [0.0, 5.0, 9.0, 4.0]])
    found = []
    for lib in (tm, torch):
        share = lib.tensor(q, dtype=lib.float64, requires_grad=True)
        y = lib.quantile(lib.tensor(x, requires_grad=True), share, dim=1, interpolation=between)
        (y * y).sum().backward()
        found.append(share.grad)
    assert (found[0] is None) == (found[1] is None)
    if found[0] is not None:
        np.testing.assert_allclose(found[0].numpy(), found[1].numpy(), rtol=1e-12)
