"""Images at places between their pixels, and affine maps of places, against PyTorch: modes, paddings, corners, messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tinygrad_mem.nn import functional as F

T = torch.nn.functional


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3),
    st.sampled_from(["bilinear", "nearest", "bicubic"]),
    st.sampled_from(["zeros", "border", "reflection"]),
    st.booleans(),
    st.integers(0, 2),
    st.integers(0, 1 << 16),
)
def test_grid_sample(sizes, mode, padding, align, images, seed):
    rng = np.random.default_rng(seed)
    mode = "bilinear" if mode == "bicubic" and len(sizes) == 3 else mode
    options = {"mode": mode, "padding_mode": padding, "align_corners": align}
    outs = rng.integers(0, 4, len(sizes)) if seed % 8 == 0 else rng.integers(1, 4, len(sizes))
    grid = rng.uniform(-3, 3, (images, *outs, len(sizes)))
    x = rng.standard_normal((images, int(rng.integers(1, 4)), *sizes))
    run, reference = [lambda x, g, f=f: f(x, g, **options) for f in (F.grid_sample, T.grid_sample)]
    against_torch(run, reference, [x, grid])


def test_more_channels_and_points_than_a_tile_has():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 70, 6, 7)), rng.uniform(-1.1, 1.1, (1, 41, 30, 2))]
    run, reference = [lambda x, g, f=f: f(x, g, align_corners=False) for f in (F.grid_sample, T.grid_sample)]
    against_torch(run, reference, arrays)
    against_torch(run, reference, arrays, "float32", tolerance=(1e-4, 1e-3))


def test_what_lies_outside_is_not_read():
    x = tm.full((1, 1, 2, 2), float("inf"))
    grid = tm.tensor([[[[5.0, 5.0], [float("inf"), -1e30]]]])
    for mode in ("bilinear", "nearest", "bicubic"):
        assert F.grid_sample(x, grid, mode=mode, align_corners=False).tolist() == [[[[0.0, 0.0]]]]


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_place_far_away_is_beyond_its_own_end(dev: str, mode: str):
    """PyTorch gives nan for bicubic, or for a reflection some pixel, and may crash in backward."""
    inf = float("inf")
    grid = [[[[inf, 0.0], [-inf, 0.0], [1e20, 0.0], [-1e20, 0.0]]]]
    x = tm.tensor([[[[1.0, 2.0, 3.0]]]], device=dev, requires_grad=True)
    y = F.grid_sample(x, tm.tensor(grid, device=dev), mode=mode, padding_mode="border", align_corners=True)
    assert values(y).tolist() == [[[[3.0, 1.0, 3.0, 1.0]]]]
    y.sum().backward()
    assert values(x.grad).tolist() == [[[[2.0, 0.0, 2.0]]]]
    y = F.grid_sample(x, tm.tensor(grid, device=dev), mode=mode, padding_mode="reflection", align_corners=True)
    assert np.isnan(values(y)).tolist() == [[[[True, True, False, False]]]]


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "d"), [("bilinear", 2), ("bilinear", 3), ("nearest", 2), ("nearest", 3), ("bicubic", 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_place_that_is_nan_gives_nan(dev: str, mode: str, d: int, padding: str, dtype: str):
    """PyTorch says that such a place is read as -1, and gives nan, or some pixel."""
    places = np.random.default_rng(0).uniform(-1, 1, (1, *[4] * d, d))
    for axis in range(d):
        places[(0,) * d + (axis, axis)] = np.nan
    gone = np.isnan(places).any(-1)
    x = tm.ones((1, 2, *[3] * d), dtype=dtype, device=dev, requires_grad=True)
    grid = tm.tensor(places, dtype=dtype, device=dev, requires_grad=True)
    y = F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False)
    assert np.array_equal(np.isnan(values(y)), np.broadcast_to(gone[:, None], y.shape))
    y.sum().backward()
    assert np.isfinite(values(x.grad)).all()
    assert np.array_equal(np.isnan(values(grid.grad)).all(-1), gone if mode != "nearest" else gone & False)


def test_half_precision_sums_in_float32(dev: str):
    rng = np.random.default_rng(0)
    x = tm.tensor(rng.standard_normal((2, 3, 4, 4)).astype("f2"), device=dev, requires_grad=True)
    grid = tm.tensor(rng.uniform(-1, 1, (2, 9, 9, 2)).astype("f2"), device=dev, requires_grad=True)
    wide = [torch.tensor(values(t).astype("f8"), requires_grad=True) for t in (x, grid)]
    F.grid_sample(x, grid, align_corners=False).sum().backward()
    T.grid_sample(*wide, align_corners=False).sum().backward()
    for mine, theirs in zip((x, grid), wide, strict=True):
        np.testing.assert_allclose(values(mine.grad), theirs.grad.numpy(), rtol=4e-3, atol=4e-3)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 1, 3), (2, 1, 2, 3, 4), (1, 2, 1, 1, 2)])
def test_affine_grid(size, align):
    d = len(size) - 2
    theta = np.random.default_rng(0).standard_normal((size[0], d, d + 1))
    run, reference = [lambda t, f=f: f(t, size, align_corners=align) for f in (F.affine_grid, T.affine_grid)]
    against_torch(run, reference, [theta])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, g: F.grid_sample(x, g, mode="best"), ValueError, "expected mode to be"),
        (lambda x, g: F.grid_sample(x, g, padding_mode="best"), ValueError, "expected padding_mode to be"),
        (lambda x, g: F.grid_sample(x[0], g), RuntimeError, "expected 4D or 5D input"),
        (lambda x, g: F.grid_sample(x, g[0]), RuntimeError, "expected 4D or 5D input"),
        (lambda x, g: F.grid_sample(x, g[:1]), RuntimeError, "expected grid to have one place"),
        (lambda x, g: F.grid_sample(x, g[..., :1]), RuntimeError, "expected grid to have one place"),
        (lambda x, g: F.grid_sample(x[..., :0], g), RuntimeError, "non-empty spatial dimensions"),
        (lambda x, g: F.grid_sample(x, g.double()), RuntimeError, "to have same dtype"),
        (
            lambda x, g: F.grid_sample(tm.zeros(1, 1, 2, 2, 2), tm.zeros(1, 1, 1, 1, 3), "bicubic"),
            RuntimeError,
            "only supports 4D",
        ),
        (lambda x, g: F.affine_grid(tm.zeros(1, 2, 3).long(), (1, 1, 2, 2)), ValueError, "floating point type"),
        (lambda x, g: F.affine_grid(tm.zeros(1, 2, 2), (1, 1, 2, 2)), ValueError, "of 1 affine matrices of shape 2x3"),
        (lambda x, g: F.affine_grid(tm.zeros(1, 2, 3), (1, 2, 2)), NotImplementedError, "only supports 4D and 5D sizes"),
        (lambda x, g: F.affine_grid(tm.zeros(1, 2, 3), (1, 1, 0, 2)), ValueError, "non-zero, positive output size"),
    ],
)
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call(tm.zeros(2, 3, 4, 5), tm.zeros(2, 2, 2, 2))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int64", "float16", "float32"])
def test_bounds_of_random_(dtype: str, dev: str):
    """One bound is the upper one: it was taken for the lower. Without it the largest integer of the dtype is drawn, too."""
    kind = getattr(tm, dtype)
    cases = [((1,), 0, 0), ((0, 1), 0, 0)] if dtype == "bool" else [((5,), 0, 4), ((3, 5), 3, 4), ((120, 122), 120, 121)]
    whole = {"bool": 1, "uint8": 255, "int8": 127, "int64": 2**63 - 1, "float16": 2**11, "float32": 2**24}[dtype]
    for bounds, least, most in [*cases, ((), 0, whole), ((whole, None), whole, whole)]:
        drawn = tm.zeros(20_000, dtype=kind, device=dev).random_(*bounds).cpu().numpy().astype(object)
        assert least <= drawn.min() <= drawn.max() <= most, bounds
        if most - least < 300:
            assert {int(each) for each in drawn} == set(range(least, most + 1)), bounds
    drawn = tm.zeros(9, dtype=kind, device=dev).random_(to=1)
    assert not drawn.any()
