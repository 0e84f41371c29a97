"""Views by strides, shapes changed in place, parts replaced, diagonals: against PyTorch; and what they refuse."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tinygrad_mem.devices import device

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3)


def numbers(shape) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def each(run) -> list:
    return [lambda *x, lib=lib: run(lib, *x) for lib in (tm, torch)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=3), st.integers(0, 5))
def test_as_strided(axes, offset):
    """Gaps, overlaps and repetition: gradients of what is shown several times add up."""
    size, stride = [n for n, _ in axes], [s for _, s in axes]
    against_torch(*each(lambda lib, x: (x * 1).as_strided(size, stride, offset)), [numbers((6, 10))])


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1), (2, 1, 0)])
def test_as_strided_of_a_permuted_tensor(axes):
    """Windowed attention shows chunks that overlap, of a tensor whose batch and tokens were swapped."""
    against_torch(*each(lambda lib, x: (x * 1).permute(axes).as_strided((3, 4, 2), (14, 7, 1), 2).exp()), [numbers((4, 5, 3))])


def test_as_strided_shares_memory_and_writes_reach_the_base():
    x = tm.zeros(6, requires_grad=True) * 1
    window = x.as_strided((2, 2), (3, 1), 1)
    assert window.data_ptr() == x.data_ptr() + x.element_size()
    window.mul_(2).add_(1)
    assert x.tolist() == [0, 1, 1, 0, 1, 1]
    part = tm.arange(6)[2:]
    assert part.as_strided((3,), (1,)).tolist() == [2, 3, 4]
    assert part.as_strided((3,), (1,), 0).tolist() == [0, 1, 2]


VIEWS = {
    "new first axis": lambda x: x[None],
    "new middle axis": lambda x: x.unsqueeze(1),
    "new last axis": lambda x: x[..., None],
    "new axes of a number": lambda x: x[0, 0][None, None],
    "new axis, then swapped": lambda x: x[:, None].permute(1, 2, 0),
    "repeated": lambda x: x[:1].expand(3, 5),
    "repeated once": lambda x: x[0].expand(1, 5),
    "new axis of a repeated one": lambda x: x[:1].expand(3, 5).unsqueeze(1),
    "one column": lambda x: x[:, :1],
    "no rows": lambda x: x.new_zeros(0, 3),
    "no columns": lambda x: x.new_zeros(2, 0, 3),
}


@pytest.mark.parametrize("view", VIEWS)
def test_strides_are_those_of_pytorch(view: str):
    mine, theirs = (VIEWS[view](lib.zeros(4, 5)) for lib in (tm, torch))
    assert mine.stride() == theirs.stride()
    assert [mine.stride(i) for i in range(mine.ndim)] == list(theirs.stride())


def test_a_write_through_a_strided_view_is_recorded():
    def run(lib, x):
        y = x * 1
        y.as_strided((2, 2), (3, 1), 1).mul_(3)
        return y * y

    against_torch(*each(run), [numbers(6)])


IN_PLACE = {
    "squeeze_": ((2, 1, 4, 1), lambda x: x.squeeze_()),
    "squeeze_ one": ((2, 1, 4, 1), lambda x: x.squeeze_(1)),
    "unsqueeze_": ((2, 3), lambda x: x.unsqueeze_(1)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_shape_changed_in_place(name: str):
    shape, change = IN_PLACE[name]

    def run(lib, x):
        y = x * 2
        before = y.view(-1)[1:]
        z = change(y)
        assert z is y
        after = y[:1]
        y.mul_(3)  # seen through the views that were made before and after
        return y, before * before, after

    against_torch(*each(run), [numbers(shape)])
    plain = tm.tensor(numbers(shape))
    where = plain.data_ptr()
    change(plain)
    assert plain.data_ptr() == where
    with tm.no_grad():
        leaf = tm.tensor(numbers(shape), requires_grad=True)
        assert change(leaf).is_leaf
        assert leaf.requires_grad
    with pytest.raises(RuntimeError, match=r"a leaf Variable that requires grad is being used in an in-place"):
        change(tm.tensor(numbers(shape), requires_grad=True))


def test_a_view_changed_in_place_stays_a_view():
    base = tm.zeros(2, 3, requires_grad=True) * 1
    view = base[0].unsqueeze_(0)
    view.add_(1)
    assert base.tolist() == [[1, 1, 1], [0, 0, 0]]
    with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
        tm.zeros(2, 3, requires_grad=True)[0].unsqueeze_(0)


def test_shapes_changed_in_place_make_no_cycle():
    pool = device("cpu").pool
    gc.collect()
    gc.disable()
    try:
        before = pool.used_bytes()
        x = tm.zeros(100, 3, requires_grad=True) * 2
        rows = x[1:]
        (x.unsqueeze_(0).sum() + rows.sum()).backward()
        del x, rows
        assert pool.used_bytes() == before
    finally:
        gc.enable()


@given(SHAPES, st.integers(-2, 2), st.data())
def test_diagonals(shape, offset, data):
    dims = data.draw(st.permutations(range(-len(shape) - 1, len(shape) + 1)).map(lambda d: d[:2]))
    if (dims[0] - dims[1]) % (len(shape) + 1):
        against_torch(*each(lambda lib, x: lib.diag_embed(x, offset, *dims)), [numbers(shape)])


X = tm.zeros(2, 3)
REFUSED = {
    "lengths": (lambda: X.as_strided((2, 2), (1,)), "mismatch in length of strides and shape"),
    "negative": (lambda: X.as_strided((2,), (-1,)), "Negative sizes and strides are not supported"),
    "outside": (lambda: X.as_strided((7,), (1,)), "out of bounds for storage of 6 elements"),
    "before": (lambda: X.as_strided((1,), (1,), -1), "out of bounds"),
    "no gradient": (lambda: tm.zeros(2, 1, requires_grad=True).expand(2, 3).as_strided((2,), (1,)), "give it .contiguous"),
    "one diagonal twice": (lambda: tm.diag_embed(X, 0, 1, 1), "cannot be identical 1, 1"),
    "the diagonal of a number": (lambda: tm.diag_embed(tm.tensor(1.0)), "Dimension out of range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    run, words = REFUSED[name]
    with pytest.raises((tm.errors.TinygradMemError, TypeError), match=words):
        run()
