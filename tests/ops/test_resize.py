"""Resampling against PyTorch: every mode, sizes and factors, corners; shuffles; messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tests.profiles import pairs
from tinygrad_mem.devices import device
from tinygrad_mem.kernels.numpy.fast import threads
from tinygrad_mem.nn import functional as F

T = torch.nn.functional
MODES = {1: ["nearest", "nearest-exact", "linear", "area"], 2: ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]}
MODES[3] = ["nearest", "nearest-exact", "trilinear", "area"]


def normal(*shape):
    return [np.random.default_rng(1).standard_normal(shape)]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data(), st.booleans(), st.sampled_from(["float64", "float32"]))
def test_interpolate_to_a_size(sizes, data, align, dtype):
    mode = data.draw(st.sampled_from(MODES[len(sizes)]))
    size = [data.draw(st.integers(1, 9)) for _ in sizes]
    corners = align if mode.endswith(("linear", "cubic")) else None
    tolerance = (1e-4, 1e-4) if dtype == "float32" else None
    run, reference = [lambda x, f=f: f(x, size=size, mode=mode, align_corners=corners) for f in (F.interpolate, T.interpolate)]
    against_torch(run, reference, normal(2, 3, *sizes), dtype, tolerance=tolerance)


@pytest.mark.parametrize("factor", [2, 0.5, 1.7, (2, 1.5)])
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("mode", MODES[2])
def test_interpolate_by_a_factor(factor, recompute, mode):
    options = {"scale_factor": factor, "mode": mode, "recompute_scale_factor": recompute}
    against_torch(lambda x: F.interpolate(x, **options), lambda x: T.interpolate(x, **options), normal(2, 3, 5, 6))


@given(
    st.lists(st.integers(2, 12), min_size=2, max_size=2),  # PyTorch repeats one row of an image that is 1 wide
    st.lists(st.integers(2, 12), min_size=2, max_size=2),
    st.sampled_from(["bilinear", "bicubic"]),
    st.booleans(),
)
def test_interpolate_antialiased(sizes, size, mode, align):
    options = {"size": size, "mode": mode, "align_corners": align, "antialias": True}
    against_torch(lambda x: F.interpolate(x, **options), lambda x: T.interpolate(x, **options), normal(1, 2, *sizes))


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.7, (0.4, 2)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolate_antialiased_by_a_factor(factor, mode):
    options = {"scale_factor": factor, "mode": mode, "antialias": True}
    against_torch(lambda x: F.interpolate(x, **options), lambda x: T.interpolate(x, **options), normal(2, 3, 9, 8))


@pytest.mark.parametrize(
    ("name", "shape"), [("pixel_shuffle", (2, 8, 3, 4)), ("pixel_unshuffle", (2, 3, 4, 6)), ("channel_shuffle", (2, 6, 3, 4))]
)
def test_shuffles(name, shape):
    ours, theirs = getattr(F, name), getattr(T, name)
    against_torch(lambda x: ours(x, 2), lambda x: theirs(x, 2), normal(*shape))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.interpolate(tm.zeros(1, 1, 2)), ValueError, "either size or scale_factor"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 2, 2.0), ValueError, "either size or scale_factor"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 2, mode="bilinear"), RuntimeError, "does not fit an input of 3 dimensions"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 2, mode="best"), ValueError, "unknown mode"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 2, antialias=True), ValueError, "restricted to bilinear and bicubic"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 2, align_corners=True), ValueError, "align_corners option"),
        (
            lambda: F.interpolate(tm.zeros(1, 1, 2), 2, recompute_scale_factor=True),
            ValueError,
            "not meaningful with an explicit",
        ),
        (lambda: F.interpolate(tm.zeros(1, 1, 2), 0), RuntimeError, "should be greater than 0"),
        (lambda: F.interpolate(tm.zeros(1, 1, 2, 2), (2, 2, 2)), ValueError, "one number or 2"),
        (lambda: F.pixel_shuffle(tm.zeros(1, 3, 2, 2), 2), RuntimeError, "divisible by 4"),
        (lambda: F.pixel_unshuffle(tm.zeros(1, 3, 3, 2), 2), RuntimeError, "divisible by 2"),
        (lambda: F.channel_shuffle(tm.zeros(1, 3, 3, 2), 2), RuntimeError, "divisible by groups"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


LARGE = [((1, 1, 3, 300_000), (4, 300_000)), ((300, 2, 20, 30), (41, 17)), ((1, 1, 700, 900), (900, 700))]


@pytest.mark.parametrize(("sizes", "mode", "dtype"), pairs(LARGE, ["nearest", "bilinear"], ["float32", "float16"]))
def test_planes_larger_and_smaller_than_a_chunk(sizes, mode, dtype):
    shape, size = sizes
    x = normal(*shape)
    run, reference = [lambda x, f=f: f(x, size=size, mode=mode) for f in (F.interpolate, T.interpolate)]
    against_torch(run, reference, x, dtype, tolerance=(2e-3, 2e-3) if dtype == "float16" else (1e-3, 1e-3))


def test_what_is_infinite_stays_where_it_is():
    x = np.zeros((1, 1, 6, 6))
    x[0, 0, 2, 3] = np.inf
    run, reference = [lambda x, f=f: f(x, scale_factor=2.0, mode="bilinear") for f in (F.interpolate, T.interpolate)]
    np.testing.assert_array_equal(run(tm.tensor(x)).numpy(), reference(torch.tensor(x)).numpy())


def test_memory_beside_the_result_is_tables_and_a_chunk():
    x = tm.zeros(64, 8, 32, 32, device="meta")
    with tm.no_grad():
        before = device("meta").pool.used_bytes()
        device("meta").pool.reset_peak()
        y = F.interpolate(x, scale_factor=2.0, mode="bilinear")
        peak = device("meta").pool.peak_used - before
    chunk = (1 << 17) // (64 * 64) * 64 * 32 * 4  # planes of a chunk, rows of the result, columns of the input
    lanes = threads.threads()
    tables = 64 * 2 * (8 + 4) * 2 + 32 * 4 * (8 + 4) * 2
    assert y.nbytes + lanes * chunk <= peak <= y.nbytes + lanes * chunk + tables + 8 * 512


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("align", [False, True])
def test_where_no_size_changes_linear_modes_copy_whatever_the_scale(axes: int, align: bool):
    x = tm.arange(60.0).reshape(1, 1, 5, 4, 3)[(..., *[0] * (3 - axes))]
    y = F.interpolate(x, scale_factor=1.1, mode=["linear", "bilinear", "trilinear"][axes - 1], align_corners=align)
    assert y.tolist() == x.tolist()


@pytest.mark.parametrize("how", [{"size": (20, 7)}, {"scale_factor": 1.04}])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "area"])
def test_a_size_that_stays_gives_a_copy(mode: str, how: dict):
    """PyTorch copies images whose size stays; the nearest ones whatever the scale."""
    array = np.random.default_rng(0).standard_normal((1, 2, 20, 7))
    found = []
    for lib in (tm, torch):
        x = lib.tensor(array, requires_grad=True)
        y = lib.nn.functional.interpolate(x, mode=mode, **how)
        (y * lib.arange(7)).sum().backward()
        found.append((y.detach().numpy(), x.grad.numpy()))
        with lib.no_grad():
            y += 1
        np.testing.assert_array_equal(x.detach().numpy(), array)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)
