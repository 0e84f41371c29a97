"""Reductions against PyTorch, over all shapes and axes; and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, assert_same
from tests.profiles import pairs

SIZES = st.lists(st.integers(0, 4), min_size=0, max_size=4)
FULL = st.lists(st.integers(1, 4), min_size=0, max_size=4)
LAYOUTS = st.sampled_from(["plain", "transposed", "strided", "expanded"])


def values(shape: Any, seed: int = 0, ties: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(-2, 3, shape).astype(float) if ties else rng.standard_normal(shape)


@st.composite
def shape_and_dims(draw, sizes=SIZES):
    shape = draw(sizes)
    if not shape:
        return shape, None
    back = draw(st.booleans()) * len(shape)
    some = st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1).map(lambda axes: tuple(a - back for a in axes))
    return shape, draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1), some))


def laid_out(layout: str):
    """The same values in another layout, by methods that both have."""

    def turn(x):
        if layout == "transposed" and x.ndim > 1:
            return x.transpose(0, -1)
        if layout == "strided" and x.ndim and x.shape[-1]:
            return x[..., ::2]
        if layout == "expanded":
            return x.unsqueeze(0).expand(2, *x.shape)
        return x

    return turn


@given(shape_and_dims(), st.booleans(), LAYOUTS, st.sampled_from(["sum", "mean"]), st.sampled_from(["float64", "float32"]))
def test_sum_and_mean(case, keepdim, layout, name, dtype):
    shape, dim = case
    turn = laid_out(layout)
    if name == "mean" and np.prod(shape) == 0:
        return  # nan, and 0 / 0 in its gradient, checked below
    run = lambda x: getattr(turn(x), name)(dim, keepdim=keepdim) if dim is not None else getattr(turn(x), name)()  # noqa: E731
    against_torch(run, run, [values(shape)], dtype)


@given(shape_and_dims(FULL), st.booleans(), LAYOUTS, st.sampled_from(["amax", "amin"]))
def test_extrema_share_the_gradient(case, keepdim, layout, name):
    shape, dim = case
    turn = laid_out(layout)
    run = lambda x: getattr(turn(x), name)(() if dim is None else dim, keepdim=keepdim)  # noqa: E731
    against_torch(run, run, [values(shape, ties=True)])


@given(FULL, st.booleans(), LAYOUTS, st.sampled_from(["max", "min"]), st.data())
def test_extrema_along_a_dimension(shape, keepdim, layout, name, data):
    turn = laid_out(layout)
    x = values(shape)
    ndim = max(turn(torch.tensor(x)).ndim, 1)
    dim = data.draw(st.integers(-ndim, ndim - 1))
    run = lambda x: getattr(turn(x), name)(dim, keepdim=keepdim)  # noqa: E731
    against_torch(run, run, [x])
    arg = lambda x: getattr(turn(x), "arg" + name)(dim, keepdim=keepdim)  # noqa: E731
    against_torch(arg, arg, [x])
    against_torch(lambda x: getattr(turn(x), "arg" + name)(), lambda x: getattr(turn(x), "arg" + name)(), [x])


@given(shape_and_dims(FULL), st.booleans(), LAYOUTS, st.sampled_from([0, 0.5, 1, 2]), st.sampled_from(["var", "std"]))
def test_variance(case, keepdim, layout, correction, name):
    shape, dim = case
    turn = laid_out(layout)
    x = values(shape)
    turned = turn(torch.tensor(x))
    dims = range(turned.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    if np.prod([turned.shape[d] for d in dims], dtype=int) - correction <= 0:
        return  # a division by 0, checked below
    run = lambda x: getattr(turn(x), name)(dim, correction=correction, keepdim=keepdim)  # noqa: E731
    against_torch(run, run, [x])
    both = lambda lib: lambda x: getattr(lib, name + "_mean")(turn(x), dim, correction=correction, keepdim=keepdim)  # noqa: E731
    against_torch(both(tm), both(torch), [x])


@given(
    shape_and_dims(FULL),
    st.booleans(),
    LAYOUTS,
    st.sampled_from([0, 0.5, 1, 1.5, 2, 3, 4.5, float("inf"), -float("inf"), "fro"]),
)
def test_norm(case, keepdim, layout, p):
    shape, dim = case
    turn = laid_out(layout)
    dim = dim if dim is not None else tuple(range(turn(torch.zeros(shape)).ndim))
    if p == "fro" and (turn(torch.zeros(shape)).ndim == 0 or np.size(dim) > 2):  # PyTorch refuses "fro" over three dimensions
        return
    run = lambda x: turn(x).norm(p, dim=dim, keepdim=keepdim)  # noqa: E731
    against_torch(run, run, [values(shape)])


@pytest.mark.parametrize("p", [1, 2, 3, 1.5, float("inf")])
def test_norm_of_zeros_has_the_gradient_of_pytorch(p):
    run = lambda x: x.norm(p, dim=1)  # noqa: E731
    against_torch(run, run, [np.array([[0.0, 0.0], [0.0, 2.0]])])


@given(shape_and_dims(FULL), st.booleans(), LAYOUTS)
def test_logsumexp(case, keepdim, layout):
    shape, dim = case
    turn = laid_out(layout)
    x = values(shape) * 50
    dim = dim if dim is not None else tuple(range(turn(torch.zeros(shape)).ndim))
    run = lambda x: turn(x).logsumexp(dim, keepdim=keepdim)  # noqa: E731
    against_torch(run, run, [x])


def test_logsumexp_of_infinities():
    inf = float("inf")
    run = lambda x: x.logsumexp(1)  # noqa: E731
    against_torch(run, run, [np.array([[-inf, -inf], [inf, 1.0], [-inf, 2.0]])], grad=False)
    run = lambda x: x[:, :0].logsumexp(1)  # noqa: E731
    against_torch(run, run, [np.ones((2, 3))], grad=False)


@given(FULL, st.booleans(), LAYOUTS, st.data())
def test_prod_with_zeros(shape, keepdim, layout, data):
    turn = laid_out(layout)
    x = values(shape, data.draw(st.integers(0, 9)), ties=True)
    ndim = turn(torch.tensor(x)).ndim
    against_torch(lambda x: turn(x).prod(), lambda x: turn(x).prod(), [x])
    if ndim:
        dim = data.draw(st.integers(-ndim, ndim - 1))
        run = lambda x: turn(x).prod(dim, keepdim=keepdim)  # noqa: E731
        against_torch(run, run, [x])


@given(shape_and_dims(), st.sampled_from([np.int64, np.int32, np.uint8, np.bool_, np.float64]))
def test_integers_and_truth(case, dtype):
    shape, dim = case
    x = np.random.default_rng(0).integers(0, 3, shape).astype(dtype)
    for name in ("sum", "all", "any"):
        run = lambda x, name=name: getattr(x, name)() if dim is None else getattr(x, name)(dim)  # noqa: E731
        against_torch(run, run, [x], grad=False)
    run = lambda x: x.count_nonzero() if dim is None else x.count_nonzero(dim)  # noqa: E731
    against_torch(run, run, [x], grad=False)
    if dim is None or isinstance(dim, int):
        run = lambda x: x.prod() if dim is None else x.prod(dim)  # noqa: E731
        against_torch(run, run, [x], grad=False)


def test_dtype_is_the_dtype_of_the_sum():
    x = np.random.default_rng(0).standard_normal((3, 4))
    for ours, theirs in ((tm.float64, torch.float64), (tm.float16, torch.float16)):
        for name in ("sum", "mean", "prod"):
            assert_same(
                getattr(tm.tensor(x.astype("f4")), name)(1, dtype=ours),
                getattr(torch.tensor(x.astype("f4")), name)(1, dtype=theirs),
                (2e-3, 2e-3),
            )
    against_torch(
        lambda x: x.sum(0, dtype=tm.float64), lambda x: x.sum(0, dtype=torch.float64), [x], "float32", tolerance=(1e-6, 1e-6)
    )


@pytest.mark.parametrize("shape", [(300, 700), (700, 300), (3, 5000, 20), (600000,), (70000, 5), (2, 400000)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_sums_are_as_accurate_as_pytorch(shape, dtype):
    x = np.random.default_rng(0).random(shape).astype(dtype)
    for dim in [None, *range(len(shape))]:
        run = lambda x, dim=dim: x.sum() if dim is None else x.sum(dim)  # noqa: E731
        exact = x.astype(np.longdouble).sum(dim)
        found = run(tm.tensor(x)).numpy()
        np.testing.assert_allclose(found, exact.astype("f8"), rtol=1.3e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "norm", "logsumexp"])
def test_float16_is_reduced_in_float32(name):
    x = np.random.default_rng(0).random((4, 3000)).astype(np.float16) * 8
    arguments = {"norm": (2, 1)}.get(name, (1,))
    found = getattr(tm.tensor(x), name)(*arguments)
    assert found.dtype == tm.float16
    expected = getattr(torch.tensor(x.astype("f8")), name)(*arguments)
    np.testing.assert_allclose(found.numpy().astype("f8"), expected.numpy(), rtol=1e-3)
    y = tm.tensor(x).requires_grad_()
    getattr(y, name)(*arguments).sum().backward()
    assert y.grad is not None
    assert y.grad.dtype == tm.float16
    assert np.isfinite(y.grad.numpy()).all()


def test_the_gradient_of_a_float16_product_does_not_overflow(dev):
    """The product of the others is beyond float16; its share of a small gradient is not."""
    x = np.array([1e-4, 300, 300], np.float16)
    y = tm.tensor(x, device=dev, requires_grad=True)
    (y.prod() * 0.1).backward()
    assert y.grad is not None
    expected = float(np.float16(0.1)) * np.array([9e4, x[0] * 300.0, x[0] * 300.0], "f8")
    np.testing.assert_allclose(y.grad.cpu().numpy().astype("f8"), expected, rtol=2e-3)


def test_the_gradient_of_a_sum_takes_no_memory():
    x = tm.zeros(1000, 1000, requires_grad=True)
    seen = []
    y = x * 1
    y.register_hook(lambda grad: seen.append(grad.array.strides))
    y.sum().backward()
    assert seen == [(0, 0)]


def test_nan_wins():
    x = np.array([[1.0, np.nan, 3.0, np.nan], [4.0, 1.0, 2.0, 9.0]])
    for name in ("max", "min"):
        run = lambda x, name=name: getattr(x, name)(1)  # noqa: E731
        against_torch(run, run, [x], grad=False)
    against_torch(tm.nansum, torch.nansum, [x])
    against_torch(lambda x: tm.nanmean(x, 1), lambda x: torch.nanmean(x, 1), [x])


@pytest.mark.parametrize("name", ["max", "min", "median", "amax", "amin"])
def test_gradients_at_nan(name: str):
    """Of all elements, those that are nan share it; amax and amin spread nan."""
    x = np.array([[1.0, np.nan, 3.0, np.nan], [4.0, 1.0, 2.0, 9.0]])
    for a in (x, x[1:], x[:1, 1:2], x[0, 1]):
        against_torch(getattr(tm, name), getattr(torch, name), [a])
    if name.startswith("a"):
        run = lambda x: getattr(x, name)(1)  # noqa: E731
        against_torch(run, run, [x])


def test_max_of_two_tensors():
    a, b = values((3, 4)), values((4,), 1)
    run = lambda a, b: a.max(b)  # noqa: E731
    against_torch(run, run, [a, b])
    assert tm.max(tm.tensor(a), other=tm.tensor(b)).shape == (3, 4)


@pytest.mark.filterwarnings("ignore")
def test_values_over_nothing():
    for name in ("sum", "prod"):
        run = lambda x, name=name: getattr(x, name)(0)  # noqa: E731
        against_torch(run, run, [np.zeros((0, 3))])
    for run in (lambda x: x.mean(), lambda x: x.var(), lambda x: x.mean(0), lambda x: x.norm(2, dim=0)):
        against_torch(run, run, [np.zeros((0, 3))], grad=False)
    for run in (lambda x: x.var(), lambda x: x.std(0), lambda x: x.var(1, correction=5)):
        against_torch(run, run, [np.ones((1, 3))], grad=False)


def test_named_results_and_views():
    result = tm.tensor([[1.0, 2.0]]).max(1)
    assert (result.values.tolist(), result.indices.tolist()) == ([2.0], [1])
    assert tm.tensor([[3.0, 1.0]]).argmin(keepdim=True).tolist() == [[1]]


@pytest.mark.parametrize(
    ("run", "error", "match"),
    [
        (
            lambda: tm.zeros(2, 3).sum(2),
            IndexError,
            r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)",
        ),
        (lambda: tm.zeros(2, 3).sum((0, -2)), RuntimeError, "appears multiple times in the list of dims"),
        (lambda: tm.zeros(3, dtype=tm.int64).mean(), RuntimeError, "could not infer output dtype"),
        (lambda: tm.zeros(3, dtype=tm.int64).var(), RuntimeError, "only support floating point dtypes"),
        (lambda: tm.zeros(3, dtype=tm.int64).norm(), RuntimeError, "should be floating"),
        (lambda: tm.zeros(0, 3).amax(0), RuntimeError, "non-zero size"),
        (lambda: tm.zeros(0, 3).max(0), RuntimeError, "non-zero size"),
        (lambda: tm.zeros(0, 3).max(), RuntimeError, "non-zero size"),
        (lambda: tm.zeros(0, 3).argmax(0), RuntimeError, "non-zero size"),
        (lambda: tm.zeros(0).norm(float("inf"), dim=0), RuntimeError, "non-zero size"),
        (lambda: tm.zeros(3).norm("nuclear"), ValueError, "p must be a number"),
        (lambda: tm.zeros(3).sum(dtype="complex64"), RuntimeError, "expected one of"),
    ],
)
def test_refusals(run, error, match):
    with pytest.raises(error, match=match):
        run()


DIMS = [(0, 2), (1,), (0, 1), (2,), (0, 1, 2), (1, 2)]


@pytest.mark.parametrize(("shape", "dims"), pairs([(6, 7, 300), (40, 3, 5000), (2, 2000, 40), (3, 1100, 70)], DIMS))
def test_shapes_of_several_tiles(shape, dims):
    x = np.random.default_rng(0).standard_normal(shape)
    for run in (
        lambda x: x.sum(dims),
        lambda x: x.mean(dims),
        lambda x: x.var(dims),
        lambda x: x.norm(2, dim=dims),
        lambda x: x.norm(3, dim=dims),
        lambda x: x.logsumexp(dims),
    ):
        against_torch(run, run, [x], tolerance=(1e-10, 1e-9))


@pytest.mark.parametrize("which", [0, 1])
def test_one_of_two_outputs_is_used(which):
    for name in ("var_mean", "std_mean"):
        run = lambda lib, name=name: lambda x: getattr(lib, name)(x, 1)[which]  # noqa: E731
        against_torch(run(tm), run(torch), [values((3, 4))])


def test_var_in_all_its_forms():
    x = values((3, 4))
    for run in (
        lambda x: x.var(False),
        lambda x: x.var(unbiased=False),
        lambda x: x.std(0, False),
        lambda x: x.var(dim=1, unbiased=True, keepdim=True),
        lambda x: x.std(dim=(0, 1)),
    ):
        against_torch(run, run, [x])


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("correction", [2, 3, 3.5, 4, 10])
def test_var_with_a_correction_near_the_count_and_above(name: str, correction: float):
    x = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0], [5.0, 1.0, 0.0]])
    for dim in (0, 1, (0, 1)):
        run = lambda lib, dim=dim: lambda x: getattr(lib, name)(x, dim, correction=correction)  # noqa: E731
        against_torch(run(tm), run(torch), [x])
    t = tm.tensor(x, requires_grad=True)  # PyTorch's infinite gradients ignore the sign of x - mean
    out = getattr(tm, name)(t, correction=3 * correction)
    (out[0] if isinstance(out, tuple) else out).backward()
    assert np.isfinite(t.grad.numpy()).all() == (3 * correction < 9)  # type: ignore[union-attr]


def test_std_of_equal_elements_has_gradient_zero():
    run = lambda x: x.std(1)  # noqa: E731
    against_torch(run, run, [np.array([[2.0, 2.0, 2.0], [1.0, 2.0, 4.0]])])


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min"])
def test_many_short_lines(name):
    x = np.random.default_rng(0).integers(-9, 9, (700, 3, 5)).astype(np.float64)
    x[3, 1, 2] = np.nan
    run = lambda x: getattr(x, name)(-1)  # noqa: E731
    against_torch(run, run, [x], grad=False)
    against_torch(run, run, [np.nan_to_num(x).astype(np.int64)], grad=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["constant", "offset", "mixed", "signs", "beyond"])
def test_sums_beyond_1e14(kind: str, dtype: str):
    """Against ``math.fsum``: what is summed in a row, or squared, is summed in more digits than it is kept in."""
    rng = np.random.default_rng(0)
    lines = {
        "constant": np.full((3, 3000), 3e14),
        "offset": 1e8 + rng.standard_normal((3, 3000)),
        "mixed": np.where(rng.random((3, 3000)) < 0.5, 1e15, 1.0),
        "signs": rng.uniform(-1, 1, (3, 3000)) * 1e15,
        "beyond": rng.uniform(-1, 1, (3, 3000)) * 1e20,
    }[kind].astype(dtype)
    eps, t = float(np.finfo(dtype).eps), tm.tensor(lines)
    rows = [[float(v) for v in row] for row in lines]
    sums = np.array([math.fsum(row) for row in rows])
    sizes = np.array([math.fsum(map(abs, row)) for row in rows])
    spread = np.array([math.fsum((v - s / 3000) ** 2 for v in row) / 2999 for row, s in zip(rows, sums, strict=True)])
    rounding = (8 * eps * np.abs(lines).max()) ** 2 if dtype == "float64" else 0.0  # of the mean, in its own dtype
    for found, exact, allowed in (
        (t.sum(1), sums, 64 * eps * sizes),  # added by a product with ones, in BLAS's order
        (t.mean(1), sums / 3000, 64 * eps * sizes / 3000),
        (t.cumsum(1)[:, -1], sums, (1 if dtype == "float32" else 300) * eps * sizes),
        (t.T.cumsum(0)[-1], sums, (1 if dtype == "float32" else 300) * eps * sizes),
        (t.var(1), spread, (4 if dtype == "float32" else 64) * eps * spread + rounding)
        if kind != "beyond"
        else (t.std(1), np.sqrt(spread), 4 * eps * 1e20),
    ):
        assert (np.abs(found.numpy().astype(np.float64) - exact) <= allowed).all(), (found.numpy(), exact)


def test_running_products_of_float32_are_those_of_float64():
    x = np.random.default_rng(1).uniform(0.9, 1.1, (2, 40000)).astype(np.float32)
    exact = np.cumprod(x.astype(np.float64), 1)
    np.testing.assert_allclose(tm.tensor(x).cumprod(1).numpy(), exact, rtol=2e-7)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["all", "any", "sum", "amax", "mean"])
def test_no_axis_is_all_of_them_but_for_truth(name: str, keepdim: bool):
    x = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert_same(getattr(tm, name)(tm.tensor(x), (), keepdim), getattr(torch, name)(torch.tensor(x), (), keepdim), (0, 0))
