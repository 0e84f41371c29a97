"""Bags of embeddings against PyTorch, and against the embeddings themselves; their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch, values
from tests.optim.test_sparse import same
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import device
from tinygrad_mem.functional import embedding as ours

ROWS = 6
modes = st.sampled_from(["sum", "mean", "max"])
integers = st.sampled_from([np.int64, np.int32])
marks = st.lists(st.integers(0, 9), max_size=5).map(sorted)


def table(width: int = 3, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, width)).astype(dtype)


@given(
    st.lists(st.integers(0, ROWS - 1), min_size=9, max_size=12),
    marks,
    st.integers(0, 5),
    st.none() | st.integers(-ROWS, ROWS - 1),
    modes,
    integers,
    integers,
    st.sampled_from(["float64", "float32"]),
)
def test_equals_pytorch(index: list, cuts: list, width: int, padding: Any, mode: str, kind: Any, other: Any, dtype: str):
    options = {"mode": mode, "padding_idx": padding}
    arrays = [np.array(index, kind), table(width), np.array([0, *cuts], other)]
    against_torch(
        lambda i, w, o: ours.embedding_bag(i, w, o, **options),
        lambda i, w, o: T.embedding_bag(i, w, o, **options),
        arrays,
        dtype,
    )
    arrays[2] = np.array([0, *cuts, len(index)], other)  # PyTorch reads beyond its memory where the last bag ends earlier
    options["include_last_offset"] = True
    against_torch(
        lambda i, w, o: ours.embedding_bag(i, w, o, **options),
        lambda i, w, o: T.embedding_bag(i, w, o, **options),
        arrays,
        dtype,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_behind_the_last_offset_is_in_no_bag(mode: str, dtype: str):
    """As PyTorch's documentation says. PyTorch itself does so in float32 sums alone; elsewhere the rest is in the last bag, and
    its gradients are from memory that nobody wrote.
    """
    index, weight = tm.tensor([1, 2, 3, 1, 5]), tm.tensor(table(dtype=dtype), requires_grad=True)
    options = {"mode": mode, "include_last_offset": True}
    bags = ours.embedding_bag(index, weight, tm.tensor([0, 2, 4]), **options)
    bags.sum().backward()
    behind, weight.grad = weight.grad, None
    expected = ours.embedding_bag(index[:4], weight, tm.tensor([0, 2, 4]), **options)
    expected.sum().backward()
    assert tm.equal(bags, expected)
    assert tm.equal(behind, weight.grad)
    if (mode, dtype) == ("sum", "float32"):
        theirs = T.embedding_bag(
            torch.tensor([1, 2, 3, 1, 5]), torch.tensor(table(dtype=dtype)), torch.tensor([0, 2, 4]), **options
        )
        np.testing.assert_allclose(bags.detach().numpy(), theirs.numpy(), 1e-6)


@given(st.integers(0, 4), st.integers(1, 5), st.none() | st.integers(0, ROWS - 1), modes, integers)
def test_bags_of_one_length_equal_pytorch(bags: int, length: int, padding: Any, mode: str, kind: Any):
    index = np.random.default_rng(1).integers(0, ROWS, (bags, length)).astype(kind)
    options = {"mode": mode, "padding_idx": padding}
    against_torch(
        lambda i, w: ours.embedding_bag(i, w, **options), lambda i, w: T.embedding_bag(i, w, **options), [index, table()]
    )


@given(st.lists(st.integers(0, ROWS - 1), min_size=9, max_size=12), marks, st.none() | st.integers(0, ROWS - 1))
def test_weights_per_sample_equal_pytorch(index: list, cuts: list, padding: Any):
    shares = np.random.default_rng(2).standard_normal(len(index))
    arrays = [np.array(index), table(), np.array([0, *cuts]), shares]

    def run(of: Any) -> Any:
        return lambda i, w, o, s: of(i, w, o, mode="sum", per_sample_weights=s, padding_idx=padding)

    against_torch(run(ours.embedding_bag), run(T.embedding_bag), arrays)


@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12), st.sampled_from(["sum", "mean"]), st.booleans())
def test_frequency_counts_the_whole_batch(index: list, mode: str, half: bool):
    """As the embedding's own option does it. (PyTorch's bags divide by the count of another row, on the CPU.)"""
    weight, dtype = table().astype("f2"), "f2" if half else "f8"
    found, other = (tm.tensor(weight.astype(dtype), requires_grad=True) for _ in range(2))
    i = tm.tensor([index])
    ours.embedding_bag(i, found, mode=mode, scale_grad_by_freq=True).sum().backward()
    getattr(ours.embedding(i, other, scale_grad_by_freq=True), mode)(1).sum().backward()
    np.testing.assert_allclose(values(found.grad), values(other.grad), rtol=2e-3 if half else 1e-12)


@given(
    st.lists(st.integers(0, ROWS - 1), min_size=9, max_size=12),
    marks,
    st.none() | st.integers(0, ROWS - 1),
    st.sampled_from(["sum", "mean", "shares"]),
)
def test_sparse_gradients_equal_pytorchs(index: list, cuts: list, padding: Any, mode: str):
    """But for the padding, whose rows are there and are 0: their number depends on no values."""
    grads = []
    for m, of in ((tm, ours.embedding_bag), (torch, T.embedding_bag)):
        weight = m.tensor(table(), requires_grad=True)
        options: dict = {"mode": "sum", "per_sample_weights": m.tensor(np.arange(1.0, len(index) + 1))}
        y = of(
            m.tensor(index),
            weight,
            m.tensor([0, *cuts]),
            sparse=True,
            padding_idx=padding,
            **(options if mode == "shares" else {"mode": mode}),
        )
        (y * m.tensor(np.random.default_rng(3).standard_normal(tuple(y.shape)))).sum().backward()
        grads.append(weight.grad)
    if padding is None:
        same(*grads)
    np.testing.assert_allclose(values(grads[0].to_dense()), grads[1].to_dense().numpy(), atol=1e-12)
    assert grads[0]._nnz() == len(index)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [300, 20_000])
def test_wide_rows_and_long_bags(mode: str, width: int):
    """Beyond what is side by side at a time."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, 200), rng.standard_normal((9, width)), np.array([0, 150])]
    against_torch(lambda *a: ours.embedding_bag(*a, mode=mode), lambda *a: T.embedding_bag(*a, mode=mode), arrays)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_half_precision_is_float32_rounded(mode: str):
    rng = np.random.default_rng(0)
    index, weight = rng.integers(0, 40, (6, 30)), rng.standard_normal((40, 600)).astype(np.float16)
    grad = rng.standard_normal((6, 600)).astype(np.float16)
    found = []
    for dtype in (tm.float16, tm.float32):
        w = tm.tensor(weight, dtype=dtype).requires_grad_()
        y = ours.embedding_bag(tm.tensor(index), w, mode=mode)
        y.backward(tm.tensor(grad, dtype=dtype))
        found.append([values(y), values(w.grad)])
    for half, full in zip(*found, strict=True):
        np.testing.assert_array_equal(half, full.astype(np.float16))


def test_nothing_of_the_padding_arrives():
    """Not even its inf and nan."""
    weight = table()
    weight[2] = np.nan
    for mode in ("sum", "mean", "max"):
        w = tm.tensor(weight, requires_grad=True)
        y = ours.embedding_bag(tm.tensor([[1, 2, 3], [2, 2, 2]]), w, mode=mode, padding_idx=2)
        assert np.isfinite(values(y)).all()
        assert not values(y)[1].any()
        y.sum().backward()
        assert not values(w.grad)[2].any()


def test_max_norm_shrinks_the_table_itself():
    mine, other = tm.tensor(table(), requires_grad=True), torch.tensor(table(), requires_grad=True)
    found = ours.embedding_bag(tm.tensor([[1, 2]]), mine, max_norm=0.5)
    expected = T.embedding_bag(torch.tensor([[1, 2]]), other, max_norm=0.5)
    np.testing.assert_allclose(values(found), expected.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(values(mine), other.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_rows_are_never_side_by_side(where: str):
    """64 bags of 100 indices in a table of 1,000 rows of 256: the rows of all indices would take 6.25 MiB."""
    index, weight = tm.ones(64, 100, dtype=tm.int64, device=where), tm.ones(1000, 256, device=where, requires_grad=True)
    table, result, pool = weight.nbytes, 64 * 256 * 4, device(where).pool

    def peak(run: Any) -> int:
        before = pool.used_bytes()
        with memory.track(where) as t:
            run().sum().backward()
        weight.grad = None
        return t.peak - before

    assert peak(lambda: ours.embedding(index, weight).mean(1)) > index.numel() * 256 * 4
    parts = {"sum": 4 * index.numel(), "mean": 8 * index.numel(), "max": result}  # and the table's gradient, and the result's
    for mode, bytes in parts.items():
        found = peak(lambda mode=mode: ours.embedding_bag(index, weight, mode=mode))
        assert table + bytes < found <= table + bytes + 2 * result + 2048, mode


BAD = [
    (([1, 2], (4, 3)), {}, RuntimeError, "offsets has to be a 1D Tensor but got None"),
    (([1, 2], (4, 3), [[0]]), {}, ValueError, r"offsets has to be a 1D Tensor but got shape \[1, 1\]"),
    (([[1, 2]], (4, 3), [0]), {}, ValueError, "if input is 2D, then offsets has to be None"),
    (([[[1]]], (4, 3)), {}, ValueError, "input has to be 1D or 2D Tensor, but got Tensor of dimension 3"),
    (([[1]], (4,)), {}, ValueError, "weight has to be a 2D Tensor, but got Tensor of dimension 1"),
    (([1, 2], (4, 3), [1]), {}, RuntimeError, r"offsets\[0\] has to be 0.* However, got 1"),
    (([1, 2], (4, 3), [0, 5]), {}, RuntimeError, "can not be greater than input's length 2 but got .* of 5"),
    (([1, 2], (4, 3), [0, 2, 1]), {}, RuntimeError, "offsets must not decrease, found 2 and then 1 at position 2"),
    (([1, 2], (4, 3), []), {"include_last_offset": True}, RuntimeError, "number of offset should be at least 1"),
    (([[1, 4]], (4, 3)), {}, IndexError, "expected 0 to 3, found 4"),
    (([[1, -1]], (4, 3)), {"mode": "max"}, IndexError, "expected 0 to 3, found -1"),
    (([[1.0]], (4, 3)), {}, TypeError, "scalar types: Long, Int; but got float32"),
    (([1], (4, 3), [0.0]), {}, TypeError, "scalar types: Long, Int; but got float32"),
    (([[1]], (4, 3)), {"mode": "median"}, ValueError, "mode has to be one of sum, mean or max, found 'median'"),
    (([[1]], (4, 3)), {"mode": "max", "sparse": True}, ValueError, "max mode does not support sparse weights"),
    (([[1]], (4, 3)), {"mode": "max", "scale_grad_by_freq": True}, ValueError, "max mode does not support scaling"),
    (([[1]], (4, 3)), {"sparse": True, "scale_grad_by_freq": True}, RuntimeError, "not supported with sparse gradients"),
    (([[1]], (4, 3)), {"padding_idx": 4}, RuntimeError, "within the number of embeddings, -4 through 3, but got 4"),
]


@pytest.mark.parametrize(("arguments", "options", "error", "match"), BAD, ids=[b[3][:30] for b in BAD])
def test_refusals(arguments: tuple, options: dict, error: type, match: str):
    index, shape, *offsets = arguments
    made = [tm.tensor(o, dtype=tm.int64) if o == [] else tm.tensor(o) for o in offsets]
    with pytest.raises(error, match=match):
        ours.embedding_bag(tm.tensor(index), tm.zeros(*shape), *made, **options)


@pytest.mark.parametrize(
    ("shares", "options", "error", "match"),
    [
        (tm.ones(3), {"mode": "sum"}, ValueError, "must have the same shape as the input"),
        (tm.ones(1, 2), {"mode": "mean"}, NotImplementedError, "only supported for mode='sum'"),
        (tm.ones(1, 2).double(), {"mode": "sum"}, RuntimeError, "float32 does not equal float64"),
    ],
)
def test_weights_per_sample_that_do_not_fit(shares: Any, options: dict, error: type, match: str):
    with pytest.raises(error, match=match):
        ours.embedding_bag(tm.tensor([[1, 2]]), tm.zeros(4, 3), per_sample_weights=shares, **options)


def test_a_layer_over_a_given_table():
    table = tm.randn(5, 3)
    layer = nn.EmbeddingBag.from_pretrained(table, mode="max", padding_idx=-1)
    assert not layer.weight.requires_grad
    assert layer.weight.array is table.array
    assert (layer.mode, layer.padding_idx) == ("max", 4)
    assert nn.EmbeddingBag.from_pretrained(table, freeze=False).weight.requires_grad
    with pytest.raises(ValueError, match="expected to be 2-dimensional"):
        nn.EmbeddingBag.from_pretrained(tm.ones(2))
    with pytest.raises(ValueError, match="Shape of weight does not match"):
        nn.EmbeddingBag(3, 2, _weight=tm.ones(2, 2))
    with pytest.raises(ValueError, match="Padding_idx must be within num_embeddings, found 3 for 3"):
        nn.EmbeddingBag(3, 2, padding_idx=3)
    assert not values(nn.EmbeddingBag(5, 3, padding_idx=2).weight)[2].any()
