"""Orders and scans against PyTorch; and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)
DTYPES = st.sampled_from(["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"])
LAYOUTS = st.sampled_from(["plain", "transposed", "strided", "expanded"])


def numbers(shape, dtype: str, kind: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if kind == "ties":
        x = rng.integers(-3, 4, shape).astype("f8")
    elif kind == "special":
        x = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -1.5], shape)
    else:
        x = rng.permutation(int(np.prod(shape))).reshape(shape) - 4.0
    if not dtype.startswith("f"):
        x = np.abs(np.nan_to_num(x, posinf=9, neginf=9)) if dtype == "uint8" else np.nan_to_num(x, posinf=9, neginf=-9)
    return x.astype(dtype)


def turned(x, layout: str):
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1)
    if layout == "strided":
        return x[..., ::2]
    return x.unsqueeze(0).expand(2, *x.shape) if layout == "expanded" else x


@given(SHAPES, DTYPES, st.sampled_from(["distinct", "ties", "special"]), LAYOUTS, st.booleans(), st.data())
def test_sort_is_pytorchs_stable_sort(shape, dtype, kind, layout, descending, data):
    x = numbers(shape, dtype, kind)
    floating = dtype in ("float64", "float32")
    ndim = len(shape) + (layout == "expanded")
    dim = data.draw(st.integers(-ndim, ndim - 1))
    ours = lambda x: turned(x, layout).sort(dim, descending)  # noqa: E731
    theirs = lambda x: turned(x, layout).sort(dim=dim, descending=descending, stable=True)  # noqa: E731
    against_torch(ours, theirs, [x], dtype if floating else "float16", grad=floating)
    order = lambda x: turned(x, layout).argsort(dim=dim, descending=descending, stable=True)  # noqa: E731
    against_torch(order, order, [x], dtype if floating else "float16", grad=False)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_special_numbers_have_pytorchs_order(dtype: str, descending: bool, dim: int):
    x = numbers((9, 9), dtype, "special")
    x[:, 3] = x[4] = [1.5, np.nan, -np.inf, 0.0, np.nan, -0.0, np.inf, -1.5, np.nan]
    stable = lambda x: x.sort(dim=dim, descending=descending, stable=True)  # noqa: E731
    against_torch(stable, stable, [x], dtype, grad=dtype != "float16")
    best = lambda x: x.topk(5, dim, descending).values  # noqa: E731  # which of several nan gets the gradient is left open
    against_torch(best, best, [x], dtype, grad=False)


@given(SHAPES, LAYOUTS, st.booleans(), st.data(), st.sampled_from(["float64", "float32"]))
def test_topk(shape, layout, flag, data, dtype):
    x = numbers(shape, "float64", "distinct")
    size = turned(torch.tensor(x), layout).shape
    dim = data.draw(st.integers(-len(size), len(size) - 1))
    k = data.draw(st.integers(1, size[dim]))
    if layout != "expanded":
        run = lambda x: turned(x, layout).topk(k, dim, flag)  # noqa: E731
        against_torch(run, run, [x], dtype)


@given(
    SHAPES, LAYOUTS, st.booleans(), st.data(), st.sampled_from(["distinct", "special"]), st.sampled_from(["float64", "float32"])
)
def test_median(shape, layout, keepdim, data, kind, dtype):
    x = numbers(shape, "float64", kind)
    ndim = len(shape) + (layout == "expanded")
    dim = data.draw(st.integers(-ndim, ndim - 1))
    pick = (lambda r: r) if kind == "distinct" else (lambda r: r.values)
    run = lambda x: pick(turned(x, layout).median(dim, keepdim))  # noqa: E731
    # of an expanded dim PyTorch 2.13 returns what lay in memory: it gets a copy
    theirs = lambda x: pick(turned(x, layout).contiguous().median(dim, keepdim))  # noqa: E731
    against_torch(run, theirs, [x], dtype, grad=kind == "distinct")
    if layout != "expanded":
        against_torch(
            lambda x: turned(x, layout).median(), lambda x: turned(x, layout).median(), [x], dtype, grad=kind == "distinct"
        )


@pytest.mark.parametrize("shape", [(100000,), (3, 40000), (40000, 3), (2, 300, 200)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
def test_long_lines(shape, dtype):
    x = np.random.default_rng(0).integers(0, 1000, shape).astype(dtype)
    for dim in range(len(shape)):
        found, expected = tm.tensor(x).sort(dim), torch.tensor(x).sort(dim=dim, stable=True)
        np.testing.assert_array_equal(found.values.numpy(), expected.values.numpy())
        np.testing.assert_array_equal(found.indices.numpy(), expected.indices.numpy())
        k = min(7, shape[dim])
        np.testing.assert_array_equal(tm.tensor(x).topk(k, dim).values.numpy(), torch.tensor(x).topk(k, dim).values.numpy())
        assert (tm.tensor(x).argmax(dim).numpy() == x.argmax(dim)).all()
        assert (tm.tensor(x).cummax(dim).indices.numpy() == torch.tensor(x).cummax(dim).indices.numpy()).all()


def test_scalars():
    for run in (
        lambda x: x.sort(),
        lambda x: x.topk(1),
        lambda x: x.median(0),
        lambda x: x.median(),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(-1),
        lambda x: x.cummax(0),
        lambda x: x.max(0),
    ):
        against_torch(run, run, [np.array(2.5)])
    against_torch(lambda x: x.argsort(), lambda x: x.argsort(), [np.array(2.5)], grad=False)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing(shape):
    for run in (
        lambda x: x.sort(0),
        lambda x: x.topk(0, 0),
        lambda x: x.cumsum(0),
        lambda x: x.cumprod(0),
        lambda x: x.cummax(0),
    ):
        against_torch(run, run, [np.zeros(shape)])


@given(SHAPES, LAYOUTS, st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]), st.booleans(), st.data())
def test_scans(shape, layout, name, ties, data):
    x = numbers(shape, "float64", "ties" if ties else "distinct", data.draw(st.integers(0, 5)))
    ndim = len(shape) + (layout == "expanded")
    dim = data.draw(st.integers(-ndim, ndim - 1))
    run = lambda x: getattr(turned(x, layout), name)(dim)  # noqa: E731
    against_torch(run, run, [x], tolerance=(1e-9, 1e-9))


def test_scans_of_integers_and_dtypes():
    x = np.random.default_rng(0).integers(0, 3, (3, 4))
    for dtype in (np.int64, np.int32, np.uint8, np.bool_):
        for name in ("cumsum", "cumprod"):
            run = lambda x, name=name: getattr(x, name)(1)  # noqa: E731
            against_torch(run, run, [x.astype(dtype)], grad=False)
    run = lambda lib: lambda x: x.cumsum(0, dtype=lib.float64)  # noqa: E731
    against_torch(run(tm), run(torch), [x.astype("f8")], "float32")
    half = np.random.default_rng(0).random((2, 70000)).astype(np.float16) / 64
    found = tm.tensor(half).cumsum(1).numpy().astype("f8")
    np.testing.assert_allclose(found, half.astype("f8").cumsum(1), rtol=2e-3, atol=1e-3)


def test_cumsum_in_place():
    x = tm.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x.cumsum_(0).tolist() == [[1, 2], [4, 6]]
    y = tm.tensor([1.0, 2.0], requires_grad=True)
    (y * 1).cumsum_(0).sum().backward()
    assert y.grad.tolist() == [2, 1]


def test_nan_in_running_extrema():
    x = np.array([[1.0, np.nan, 3.0, np.nan, 0.0]])
    for run in (lambda x: x.cummax(1), lambda x: x.cummin(1)):
        against_torch(run, run, [x], grad=False)


def test_every_nan_is_another_value(dev: str):
    x = tm.tensor([np.nan, 1.0, np.nan, -0.0, 1.0, 0.0], device=dev)
    found, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(found.cpu().numpy(), [0, 1, np.nan, np.nan])
    assert (inverse.tolist(), counts.tolist()) == ([2, 1, 3, 0, 1, 0], [2, 2, 1, 1])
    rows = tm.tensor([[2, 1], [1, 2], [1, 1], [2, 1]], device=dev).unique(dim=0, return_inverse=True, return_counts=True)
    assert [t.tolist() for t in rows] == [[[1, 1], [1, 2], [2, 1]], [2, 1, 0, 2], [1, 1, 2]]
    nan = np.nan  # PyTorch's rows with nan are as many, in an order that is left open: it compares them with <
    rows = tm.tensor([[nan, 1], [2, 0], [1, nan], [nan, 1], [2, 0]], device=dev)
    found, *others = rows.unique(dim=0, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(found.cpu().numpy(), [[1, nan], [2, 0], [nan, 1], [nan, 1]])
    assert [t.tolist() for t in others] == [[2, 1, 0, 3, 1], [1, 2, 1, 1]]
    assert rows.unique_consecutive(dim=0).size(0) == 5
    assert rows[:, 0].unique(dim=0).size(0) == 4


@given(SHAPES, st.sampled_from(["float64", "int64"]), st.booleans(), st.booleans())
def test_unique(shape, dtype, inverse, counts):
    x = np.random.default_rng(0).integers(0, 4, shape).astype(dtype)
    run = lambda x: x.unique(return_inverse=inverse, return_counts=counts)  # noqa: E731
    against_torch(run, run, [x], grad=False)
    for dim in range(len(shape)):
        along = lambda x, dim=dim: x.unique(return_inverse=inverse, return_counts=counts, dim=dim)  # noqa: E731
        against_torch(along, along, [x], grad=False)


@pytest.mark.parametrize(
    ("run", "error", "match"),
    [
        (lambda: tm.zeros(2, 3).sort(2), IndexError, "Dimension out of range"),
        (lambda: tm.zeros(2, 3).topk(4), RuntimeError, "selected index k out of range"),
        (lambda: tm.tensor(1.0).topk(0), RuntimeError, "k is 0 for a 0-d tensor"),
        (lambda: tm.zeros(2, 0).median(1), IndexError, "non-zero size"),
        (lambda: tm.zeros(2).bool().median(), tm.errors.DTypeError, "median.*bool"),
        (lambda: tm.zeros(0, 3).bool().median(1), tm.errors.DTypeError, "median.*bool"),
        (lambda: tm.zeros(2, 3).cumsum(-3), IndexError, "Dimension out of range"),
        (lambda: tm.zeros(3, device="meta").unique(), tm.errors.DataDependenceError, "the number of results depends on values"),
        (
            lambda: tm.zeros(3, 0).unique(dim=0),
            tm.errors.ShapeError,
            r"slices along dimension 0 of .* \[3, 0\] have no elements",
        ),
    ],
)
def test_refusals(run, error, match):
    with pytest.raises(error, match=match):
        run()


def test_median_of_nothing_is_nan():
    assert np.isnan(tm.zeros(0).median().item())


def test_median_along_a_dim_names_the_first_nan(dev: str):
    x = np.array([[5.0, np.nan, 1.0, 2.0, np.nan, 0.0], [np.nan] * 6, [3.0, 1.0, 2.0, 0.0, 5.0, np.nan]])
    for dim in (0, 1):
        ours, theirs = tm.tensor(x, device=dev).median(dim), torch.tensor(x).median(dim)
        np.testing.assert_array_equal(ours[0].cpu().numpy(), theirs[0].numpy())
        assert ours[1].tolist() == theirs[1].tolist()
