"""The in-place activations against PyTorch: results, gradients, and that no new array is made; accuracy far from zero."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, ours
from tinygrad_mem.nn import functional as F

IN_PLACE = [
    ("relu_", ()),
    ("leaky_relu_", (0.2,)),
    ("elu_", (0.7,)),
]


@pytest.mark.parametrize(("name", "arguments"), IN_PLACE)
def test_in_place(name: str, arguments: tuple):
    x = [np.random.default_rng(1).standard_normal((3, 4))]
    against_torch(
        lambda t: getattr(F, name)(t * 1, *arguments), lambda t: getattr(torch.nn.functional, name)(t * 1, *arguments), x
    )
    [t] = ours(x, "float64", grad=False)
    assert getattr(F, name)(t, *arguments) is t


EXTREMES = [0.0, -0.0, 1e-30, -1e-30, 3.8, -3.8, 4.5, 19.9, 20.1, -20.1, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4]

numbers = st.lists(st.floats(-12, 12, width=32), min_size=1, max_size=40)


def test_the_error_function_near_the_ends_of_its_series():
    """Where the recurrence rounds most; 1.4e-15 was found there, and 1.5e-15 from coefficients that were rounded themselves."""
    x = np.concatenate([np.linspace(-0.5, 0.5, 20001), np.linspace(-6, 6, 20001)])
    exact = np.array([math.erf(v) for v in x.tolist()])
    assert np.abs(tm.erf(tm.tensor(x)).numpy() - exact).max() <= 1e-15


@given(numbers)
def test_the_error_function_is_as_accurate_as_its_dtype(values: list[float]):
    for dtype, most in (("float64", 1e-15), ("float32", 3e-7), ("float16", 5e-4)):
        x = np.array(values, dtype)
        exact = np.array([math.erf(v) for v in x.tolist()])
        assert np.abs(tm.erf(tm.tensor(x)).numpy() - exact).max() <= most
    small = np.array(values, np.float32) * np.float32(1e-3)
    exact = np.array([math.erf(v) for v in small.tolist()])
    np.testing.assert_allclose(tm.erf(tm.tensor(small)).numpy(), exact, rtol=5e-7, atol=1e-40)


SMOOTH_AND_SHARP = "gelu mish softplus logsigmoid elu leaky_relu silu"


@pytest.mark.parametrize("name", SMOOTH_AND_SHARP.split())
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_activations_far_from_zero(name: str, dtype: str):
    x = np.tile(np.array(EXTREMES, dtype), 600)  # more than a tile without bookkeeping
    run, reference = getattr(F, name), getattr(torch.nn.functional, name)
    against_torch(run, reference, [x], dtype, tolerance=(2e-3, 1e-3) if dtype == "float16" else None)


@pytest.mark.parametrize("name", f"{SMOOTH_AND_SHARP} relu relu6 selu celu hardtanh hardswish hardsigmoid".split())
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_gradients_at_nan(name: str, dtype: str):
    """Those of PyTorch's plain loop, which computes few numbers: its vectorised loop gives others."""
    run, reference = getattr(F, name), getattr(torch.nn.functional, name)
    close = (2e-3, 1e-3) if dtype == "float16" else (1e-6, 1e-6)  # PyTorch's hardsigmoid has a sixth of float32's digits
    against_torch(run, reference, [np.array([np.nan, 0.5, -0.5], dtype)], dtype, tolerance=close)


@pytest.mark.parametrize("name", SMOOTH_AND_SHARP.split())
def test_nan_stays(name: str):
    assert np.isnan(getattr(F, name)(tm.full((2, 3), float("nan"))).numpy()).all()


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.7), (0.1, 0.7), (-0.7, -0.1), (-0.3, 0.3)])
def test_a_limit_that_half_precision_rounds_still_ends_the_gradient(dev: str, low: float, high: float):
    names, values_of_x = ("hardtanh", "clamp"), [-3.0, -0.31, -0.05, 0.0, 0.05, 0.31, 5.0]
    for dtype, name in itertools.product(HALVES[dev], names):
        found = []
        for lib, device in ((torch, "cpu"), (tm, dev)):
            x = lib.tensor(values_of_x, dtype=getattr(lib, dtype), device=device, requires_grad=True)
            (lib.nn.functional.hardtanh if name == "hardtanh" else lib.clamp)(x, low, high).sum().backward()
            found.append(x.grad.tolist())
        assert found[0] == found[1], (dtype, name)


@pytest.mark.parametrize("limit", [0.3, 0.7, -0.1])
def test_a_value_at_a_rounded_limit_is_inside_of_clamp(dev: str, limit: float):
    for dtype in HALVES[dev]:
        for lib, device in ((torch, "cpu"), (tm, dev)):
            x = lib.tensor([limit], dtype=getattr(lib, dtype), device=device, requires_grad=True)
            (lib.clamp(x, min=limit) + lib.clamp(x, max=limit)).sum().backward()
            assert x.grad.tolist() == [2.0], (lib, dtype)


HALVES = {"cpu": ("float16", "bfloat16"), "cuda": ("float16",)}
