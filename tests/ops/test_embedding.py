"""Embeddings against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tests.conftest import DEVICES
from tinygrad_mem.functional import embedding as ours
from tinygrad_mem.nn import functional as F


@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 6),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(-1, 0)),
    st.booleans(),
    st.sampled_from(["float64", "float32"]),
)
def test_equals_pytorch(shape: list, rows: int, width: int, padding: int | None, by_frequency: bool, dtype: str):
    rng = np.random.default_rng(0)
    index, weight = np.asarray(rng.integers(0, rows, shape)), rng.standard_normal((rows, width))
    options = {"padding_idx": padding, "scale_grad_by_freq": by_frequency}
    against_torch(
        lambda i, w: ours.embedding(i, w, **options), lambda i, w: T.embedding(i, w, **options), [index, weight], dtype
    )


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64"])
def test_rows_of_integers(dtype: str, dev: str):
    index, weight = np.array([[3, 0], [3, 1]]), np.arange(20).reshape(4, 5).astype(dtype)
    against_torch(ours.embedding, T.embedding, [index, weight], device=dev, grad=False)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("count", "rows", "width"), [(700, 40, 16), (300, 1000, 3), (500, 9, 2), (20_000, 60, 5), (60, 12, 2100), (52, 4, 20_000)]
)
def test_rows_taken_often_have_the_sum_in_order_bit_for_bit(count: int, rows: int, width: int, dtype: str, padding: int | None):
    rng = np.random.default_rng(count)
    index = np.minimum(rng.integers(0, rows, count), rng.integers(0, rows, count))  # low rows more often than high ones
    grad = rng.standard_normal((count, width)).astype(dtype)
    grad[index == 3] = np.inf  # of the padding nothing is added, and nothing of one row to another
    weight = tm.zeros(rows, width, dtype=getattr(tm, dtype), requires_grad=True)
    ours.embedding(tm.tensor(index), weight, padding_idx=padding).backward(tm.tensor(grad))
    expected = np.zeros((rows, width), dtype)
    np.add.at(expected, index, grad)
    if padding is not None:
        expected[padding] = 0
    assert np.array_equal(weight.grad.numpy(), expected)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, float("inf")])
def test_max_norm_shrinks_the_table_itself(power: float):
    rng = np.random.default_rng(0)
    index, weight = rng.integers(0, 9, (3, 4)), rng.standard_normal((12, 7))
    mine, other = tm.tensor(weight).requires_grad_(), torch.tensor(weight, requires_grad=True)
    found = ours.embedding(tm.tensor(index), mine, max_norm=1.2, norm_type=power)
    expected = T.embedding(torch.tensor(index), other, max_norm=1.2, norm_type=power)
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=1e-12)
    assert mine._version == 1
    found.sum().backward()


@pytest.mark.parametrize("power", [2.0, float("inf")])
def test_a_row_with_nan_is_not_shrunk(power: float, dev: str):
    weight = tm.full((2, 40), 5.0, device=dev)
    weight[1, 7] = float("nan")
    ours.embedding(tm.tensor([0, 1], device=dev), weight, max_norm=1.0, norm_type=power)
    assert weight[0, 0].item() < 5
    assert weight[1, 0].item() == 5


def test_the_table_is_not_saved_and_may_change():
    weight = tm.zeros(4, 3, requires_grad=True)
    out = ours.embedding(tm.tensor([1, 1]), weight)
    with tm.no_grad():
        weight.fill_(3)
    out.sum().backward()
    assert weight.grad.tolist() == [[0.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3]


def test_half_precision_and_turned_tables():
    weight = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float16)
    against_torch(lambda i, w: ours.embedding(i, w), T.embedding, [np.array([1, 4, 1]), weight], "float16")
    table = tm.tensor(weight.T.copy()).t()
    np.testing.assert_array_equal(ours.embedding(tm.tensor([3, 0]), table).numpy(), weight[[3, 0]])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_table_in_which_nothing_is_looked_up_has_a_gradient_of_zeros(dtype: str, dev: str):
    weight = tm.zeros(4, 3, dtype=dtype, device=dev, requires_grad=True)
    ours.embedding(tm.zeros(2, 0, dtype=tm.int64, device=dev), weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[0.0] * 3] * 4


@pytest.mark.parametrize("dev", [*DEVICES, "meta"])
def test_an_empty_table_has_no_row(dev: str):
    """That needs no value of an index, so a GPU and a prediction refuse it, too."""
    index, table = tm.zeros(1, 2, dtype=tm.int64, device=dev), tm.zeros(0, 3, device=dev)
    for call in (F.embedding, F.embedding_bag):
        with pytest.raises(IndexError, match="index out of range in self: the table has no rows, found 2 indices"):
            call(index, table)
        assert call(index[:0], table).shape[-1] == 3


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (([11], (4, 3)), {}, IndexError, "index out of range in self: expected 0 to 3, found 11"),
        (([-1], (4, 3)), {}, IndexError, "index out of range in self"),
        (([1.0], (4, 3)), {}, TypeError, "scalar types: Long, Int"),
        (([1], (4,)), {}, RuntimeError, "'weight' must be 2-D"),
        (([1], (4, 3)), {"padding_idx": 5}, IndexError, "Padding_idx must be within num_embeddings"),
        (([1], (4, 3)), {"sparse": True, "scale_grad_by_freq": True}, RuntimeError, "not supported with sparse gradients"),
    ],
)
def test_refusals(arguments: tuple, options: dict, error: type, match: str):
    index, shape = arguments
    with pytest.raises(error, match=match):
        ours.embedding(tm.tensor(index), tm.zeros(*shape), **options)


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("held", [True, False])
def test_rows_as_a_gradient_leave_that_of_others_as_it_is(padding: int | None, held: bool):
    found = []
    for lib in (tm, torch):
        w = lib.ones(5, 3).requires_grad_()
        y = lib.nn.functional.embedding(lib.tensor([1, 2, 1, 4]), w, padding, sparse=True)
        seed = lib.arange(12.0).reshape(4, 3)
        y.backward(seed) if held else (y * seed).sum().backward()
        found.append([w.grad.to_dense().tolist(), seed.tolist()])
    assert found[0] == found[1]
