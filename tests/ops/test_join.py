"""Stacking, cutting, turning and counting, compared with PyTorch."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import against_torch, assert_same
from tests.predicted import difference
from tinygrad_mem.errors import DataDependenceError, ShapeError


def _both(call, *shapes):
    """Values and gradients of ``call(library, *tensors)`` in both libraries."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    found = []
    for library in (tm, torch):
        xs = [library.tensor(a, requires_grad=True) for a in arrays]
        out = call(library, *xs)
        out = list(out) if isinstance(out, (tuple, list)) else [out]
        sum((y * y).sum() for y in out).backward()
        found.append([y.detach().numpy() for y in out] + [x.grad.numpy() for x in xs])
    for mine, theirs in zip(*found, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=1e-10)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_stacks(shape):
    for name in ("hstack", "row_stack"):
        _both(lambda lib, a, b, name=name: getattr(lib, name)([a, b]), shape, shape)
    _both(lambda lib, a: lib.atleast_1d(a), shape)


def test_broadcast_tensors():
    _both(lambda lib, a, b: lib.broadcast_tensors(a, b), (3, 1), (2, 1, 4))


@pytest.mark.parametrize("name", ["index_copy", "index_fill"])
def test_index_writes_on_a_copy(name):
    index = np.array([2, 0])
    if name == "index_copy":
        _both(lambda lib, a, b: lib.index_copy(a, 1, lib.tensor(index), b), (2, 3), (2, 2))
    else:
        _both(lambda lib, a: lib.index_fill(a, 1, lib.tensor(index), 4.0), (2, 3))


def test_bincount():
    values, weights = np.array([3, 1, 1, 0]), np.array([0.5, 1.0, 2.0, 4.0])
    for kwargs in ({}, {"minlength": 7}, {"minlength": 2}):
        mine, theirs = tm.bincount(tm.tensor(values), **kwargs), torch.bincount(torch.tensor(values), **kwargs)
        assert mine.tolist() == theirs.tolist()
        assert mine.dtype == np.int64
    weighted = tm.bincount(tm.tensor(values), tm.tensor(weights))
    assert weighted.tolist() == torch.bincount(torch.tensor(values), torch.tensor(weights)).tolist()
    assert tm.bincount(tm.tensor(values[:0])).tolist() == []
    for least in (0, 3):
        mine, theirs = (lib.bincount(lib.tensor(values[:0]), lib.ones(0), least) for lib in (tm, torch))
        assert mine.tolist() == theirs.tolist()
        assert mine.dtype == np.int64


def test_all_combinations_of_entries():
    made: list[tuple] = []
    for framework in (tm, torch):
        axes = [
            framework.tensor([1.0, 2.0], requires_grad=True),
            framework.tensor([3.0, 4.0, 5.0]),
            framework.tensor([6.0, 7.0]),
        ]
        rows: Any = framework.cartesian_prod(*axes)
        (rows * rows).sum().backward()
        assert framework.cartesian_prod(axes[1]) is axes[1]
        made.append((rows, axes[0].grad))
    for mine, other in zip(*made, strict=True):
        assert_same(mine, other, (0, 0))
    for wrong in ((), (tm.ones(()), tm.ones(2)), (tm.ones(2, 2),)):
        with pytest.raises(tm.errors.ShapeError, match="cartesian_prod: expected"):
            tm.cartesian_prod(*wrong)
    with pytest.raises(tm.errors.DTypeError, match="all tensors to have the same dtype"):
        tm.cartesian_prod(tm.ones(2), tm.arange(2))


def test_a_turned_gradient_of_tensors_of_which_one_is_empty():
    """An empty line fits every shape, and has an empty gradient."""

    def run() -> list[tm.Tensor]:
        leaves, gradient = [tm.ones(*shape).requires_grad_() for shape in ((0,), (2, 3), (4, 3))], tm.rand(3, 6).t()
        tm.cat([x * 1.0 for x in leaves]).backward(gradient)
        return [gradient, *(x.grad for x in leaves)]

    gradient, *found = run()
    assert [x.tolist() for x in found] == [[], gradient[:2].tolist(), gradient[2:].tolist()]
    assert difference(run) == ""


def test_refusals():
    with pytest.raises(ShapeError, match="1-d non-negative integral"):
        tm.bincount(tm.tensor([-1]))
    with pytest.raises(ShapeError, match="same length"):
        tm.bincount(tm.tensor([1]), tm.ones(2))
    with pytest.raises(DataDependenceError):
        tm.bincount(tm.zeros(3, dtype=tm.int64, device="meta"))


def _result(run) -> object:
    try:
        return run()
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("shape", [(5,), (3, 4)])
def test_circular_padding_goes_round_what_is_left(shape: tuple, reliability):
    """Crops come first: every pair of amounts, on each axis, against PyTorch; what goes round twice is refused by both."""
    x = np.arange(np.prod(shape)).reshape(1, 1, *shape)
    amounts = range(-3, 4) if len(shape) == 1 else range(-2, 3)
    tried = list(itertools.product(amounts, repeat=2 * len(shape)))
    for pad in tried:
        mine, theirs = (
            _result(lambda lib=lib, pad=pad: lib.nn.functional.pad(lib.tensor(x), pad, mode="circular").tolist())
            for lib in (tm, torch)
        )
        assert mine == theirs or (mine == "refused" and 0 in np.shape(theirs)), pad
    reliability("circular paddings compared with PyTorch", len(tried))


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("which", ["prepend", "append"])
@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (2, 2), (2, 0), (0, 3), (2, 3), (3,), (0,), ()])
def test_diff_of_more_at_an_end(shape: tuple, which: str, dim: int, n: int):
    mine, theirs = (
        _result(lambda lib=lib: lib.diff(lib.arange(6).reshape(2, 3), n, dim, **{which: lib.ones(shape)}).tolist())
        for lib in (tm, torch)
    )
    if n:
        assert mine == theirs
    else:  # PyTorch looks at the shapes though it needs neither
        assert mine == [[0, 1, 2], [3, 4, 5]]
        assert theirs in (mine, "refused")


def test_diff_needs_a_dimension():
    with pytest.raises(ShapeError, match="at least one-dimensional"):
        tm.diff(tm.tensor(1.0))


EMPTY_LINES = [
    (0, [(0,), (2, 3)]),
    (1, [(2, 3), (0,), (2, 3)]),
    (0, [(0,), (0,)]),
    (1, [(0,), (2, 0), (2, 3)]),
]


@pytest.mark.parametrize(("dim", "shapes"), EMPTY_LINES, ids=str)
def test_an_empty_line_joins_anything_and_gets_an_empty_gradient(dim: int, shapes: list):
    against_torch(
        lambda *xs: tm.cat(xs, dim), lambda *xs: torch.cat(xs, dim), [np.arange(np.prod(s)).reshape(s) + 0.5 for s in shapes]
    )
