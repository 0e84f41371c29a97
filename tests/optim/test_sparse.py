"""Gradients of a few rows: PyTorch's, equal to dense ones, their bytes; optimizers that take them and those that do not."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tests.profiles import examples
from tinygrad_mem import memory, nn, optim
from tinygrad_mem.autograd.gradients import SparseTensor
from tinygrad_mem.devices import device
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.nn import functional as F

torch.sparse.check_sparse_tensor_invariants.disable()  # said aloud, or PyTorch warns
ROWS, WIDTH = 7, 3
indices = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12)


def tables(dtype: str = "float64") -> tuple[Any, Any]:
    array = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(dtype)
    return tm.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def looked_up(framework: Any, table: Any, index: list, **options: Any) -> Any:
    """A loss whose gradient differs from row to row and from entry to entry."""
    found = framework.nn.functional.embedding(framework.tensor(index), table, sparse=True, **options)
    weights = np.random.default_rng(len(index)).standard_normal(tuple(found.shape)).astype(str(found.dtype).rpartition(".")[2])
    return (found * framework.tensor(weights)).sum()


def same(found: Any, expected: torch.Tensor, atol: float = 1e-12) -> None:
    """A sparse gradient and PyTorch's: the same rows once coalesced, the same whole."""
    assert isinstance(found, SparseTensor)
    mine, other = found.coalesce(), expected.coalesce()
    np.testing.assert_array_equal(values(mine.indices()), other.indices().numpy())
    np.testing.assert_allclose(values(mine.values()), other.values().numpy(), atol=atol)
    np.testing.assert_allclose(values(found.to_dense()), expected.to_dense().numpy(), atol=atol)


@given(indices, indices, st.sampled_from(["float64", "float32"]))
def test_accumulates_as_pytorch(first: list, second: list, dtype: str):
    ours, theirs = tables(dtype)
    atol = {"float64": 1e-12, "float32": 1e-5}[dtype]
    for index in (first, second):
        looked_up(tm, ours, index).backward()
        looked_up(torch, theirs, index).backward()
        same(ours.grad, theirs.grad, atol)
    assert ours.grad._nnz() == len(first) + len(second)
    looked_up(tm, ours, [first, first]).backward()
    (looked_up(tm, ours, first) + looked_up(tm, ours, second)).backward()
    assert ours.grad._nnz() == 4 * len(first) + 2 * len(second)


@given(indices, st.booleans())
def test_with_a_dense_gradient_it_is_dense(index: list, sparse_first: bool):
    """Whatever comes first, in one backward or in two."""
    for together in (True, False):
        results = []
        for framework, table in zip((tm, torch), tables(), strict=True):
            losses = [looked_up(framework, table, index), (table * table).sum()]
            losses = losses if sparse_first else losses[::-1]
            if together:
                (losses[0] + losses[1]).backward()
            else:
                for loss in losses:
                    loss.backward()
            results.append(table.grad)
        assert isinstance(results[0], tm.Tensor)
        np.testing.assert_allclose(values(results[0]), results[1].to_dense().numpy(), atol=1e-12)


def test_padding_and_derived_tables():
    ours, theirs = tables()
    looked_up(tm, ours, [1, 2, 2, 5], padding_idx=2).backward()
    looked_up(torch, theirs, [1, 2, 2, 5], padding_idx=2).backward()
    np.testing.assert_allclose(values(ours.grad.to_dense()), theirs.grad.to_dense().numpy())
    assert ours.grad._nnz() == 4, "its bytes depend on no values"
    ours.grad = None
    looked_up(tm, ours * 2, [1, 2]).backward()
    assert isinstance(ours.grad, tm.Tensor), "an op's backward wants an array"
    index = tm.tensor([1, 2])
    F.embedding(index, (table := tables()[0]), sparse=True).sum().backward()
    index.fill_(0)
    assert table.grad._indices().tolist() == [[1, 2]], "the indices are its own"


def test_asked_for_by_grad_and_seen_by_hooks():
    table, _ = tables()
    (found,) = tm.autograd.grad(looked_up(tm, table, [1, 1, 3]), [table])
    assert found.is_sparse
    assert table.grad is None
    seen: list = []
    table.register_hook(seen.append)
    table.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
    looked_up(tm, table, [1, 1, 3]).backward()
    assert [type(grad) for grad in seen] == [SparseTensor] * 2
    np.testing.assert_allclose(values(found.to_dense()), values(table.grad.to_dense()))


def test_the_interface():
    table, other = tables()
    looked_up(tm, table, [4, 1, 4]).backward()
    looked_up(torch, other, [4, 1, 4]).backward()
    mine, theirs = table.grad, other.grad
    for name in ("is_sparse", "dtype", "shape", "requires_grad", "is_leaf"):
        assert str(getattr(mine, name)).rpartition(".")[2].strip("Size()[] ") in str(getattr(theirs, name))
    for name in ("sparse_dim", "dense_dim", "_nnz", "is_coalesced", "dim", "numel"):
        assert getattr(mine, name)() == getattr(theirs, name)(), name
    assert (mine.size(), mine.size(0)) == (tuple(theirs.size()), theirs.size(0))
    assert mine.coalesce().is_coalesced()
    assert mine.coalesce().coalesce()._nnz() == 2
    for name in ("indices", "values"):
        with pytest.raises(RuntimeError, match=f"Cannot get {name} on an uncoalesced tensor, please call .coalesce"):
            getattr(mine, name)()
    np.testing.assert_allclose(values(mine.clone().mul_(2).to_dense()), 2 * values(mine.to_dense()))
    assert mine.detach() is mine
    assert repr(mine) == "SparseTensor(shape=[7, 3], rows=3, dtype=float64, device=cpu)"
    table.grad = mine.clone()
    with pytest.raises(RuntimeError, match="assigned grad has data of a different size"):
        tm.zeros(3, 3, requires_grad=True).grad = mine
    with pytest.raises(TypeError):
        tm.exp(mine)


@pytest.mark.parametrize("index", [[0, 1, 2], [3] * 50, list(range(100))], ids=["few", "one", "many"])
def test_bytes_are_those_of_the_rows(index: list):
    """8 bytes and a row for each index, whatever the table's size; in a step as much again, and nothing after it."""
    with tm.device("meta"):
        pool = device("meta").pool
        layer = nn.Embedding(1_000_000, 64, sparse=True)
        ids = tm.tensor(index)
        gc.collect()
        before = pool.used_bytes()
        with memory.track("meta") as track:
            layer(ids).sum().backward()
        n = len(index)
        rounded = sum(-(-size // 512) * 512 for size in (8 * n, 4 * 64 * n))
        assert layer.weight.grad.nbytes == 8 * n + 4 * 64 * n
        assert pool.used_bytes() - before == rounded
        assert track.peak - before <= 3 * rounded
        assert {c.value: size for c, size in track.by_category("end").items()}["gradients"] == rounded
        update = optim.SparseAdam(layer.parameters())
        state = 2 * 4 * 64 * 1_000_000
        with memory.track("meta") as track:
            update.step()
        assert track.peak - before == rounded + -(-264 * n // 512) * 512 + state
        assert pool.used_bytes() - before == rounded + state
        layer.zero_grad()
        assert pool.used_bytes() - before == state


RULES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    ("Adagrad", {}),
    ("SparseAdam", {"lr": 0.1}),
    ("SparseAdam", {"lr": 0.1, "betas": (0.7, 0.8), "eps": 1e-3, "maximize": True}),
]


@pytest.mark.parametrize(("rule", "options"), RULES, ids=str)
@given(steps=st.lists(indices, min_size=1, max_size=4))
@settings(max_examples=examples(20))
def test_steps_as_pytorch(rule: str, options: dict, steps: list):
    ours, theirs = tables()
    mine, other = getattr(optim, rule)([ours], **options), getattr(torch.optim, rule)([theirs], **options)
    for index in steps:
        mine.zero_grad()
        other.zero_grad()
        looked_up(tm, ours, index).backward()
        looked_up(torch, theirs, index).backward()
        mine.step()
        other.step()
        np.testing.assert_allclose(values(ours), theirs.detach().numpy(), rtol=1e-9, atol=1e-11)
    for key, value in other.state[theirs].items():
        if key != "step":
            np.testing.assert_allclose(values(mine.state[ours][key]), value.to_dense().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_sparse_equals_dense(rule: str):
    sparse, dense = nn.Embedding(20, 8, sparse=True), nn.Embedding(20, 8)
    dense.load_state_dict(sparse.state_dict())
    steps = [getattr(optim, rule)(layer.parameters(), lr=0.1) for layer in (sparse, dense)]
    for seed in range(5):
        index = tm.tensor(np.random.default_rng(seed).integers(0, 20, (4, 6)))
        for layer, update in zip((sparse, dense), steps, strict=True):
            update.zero_grad()
            layer(index).square().mean().backward()
            update.step()
    np.testing.assert_allclose(values(sparse.weight), values(dense.weight), rtol=1e-5, atol=1e-6)


def test_half_precision_steps():
    table = tm.tensor(np.ones((5, 4), np.float16), requires_grad=True)
    update = optim.SparseAdam([table], lr=0.5)
    F.embedding(tm.tensor([1, 1, 3]), table, sparse=True).sum().backward()
    update.step()
    assert update.state[table]["exp_avg"].dtype == tm.float16
    np.testing.assert_allclose(values(table)[:, 0], [1, 0.5, 1, 0.5, 1], atol=1e-3)


@given(indices, st.sampled_from([1.0, 2.0, float("inf")]))
def test_clipping(index: list, power: float):
    ours, theirs = tables()
    looked_up(tm, ours, index).backward()
    looked_up(torch, theirs, index).backward()
    dense = theirs.grad.to_dense().detach()
    expected = torch.linalg.vector_norm(dense, power)
    found = nn.utils.clip_grad_norm_([ours], 0.5, power)
    np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-9)
    scaled = dense * min(1.0, 0.5 / (expected.item() + 1e-6))
    np.testing.assert_allclose(values(ours.grad.to_dense()), scaled.numpy(), atol=1e-12)


def test_zero_grad():
    layer = nn.Embedding(5, 3, sparse=True)
    for zero in (optim.SGD(layer.parameters()).zero_grad, layer.zero_grad):
        layer(tm.tensor([1, 2])).sum().backward()
        zero(set_to_none=False)
        assert layer.weight.grad._nnz() == 0
        assert not values(layer.weight.grad.to_dense()).any()
        layer(tm.tensor([1, 2])).sum().backward()
        assert layer.weight.grad._nnz() == 2
        zero()
        assert layer.weight.grad is None


def test_predicted_and_what_meta_cannot_know():
    def run() -> None:
        layer = nn.Embedding(50, 8, sparse=True)
        update = optim.SparseAdam(layer.parameters())
        for _ in range(2):
            update.zero_grad()
            layer(tm.randint(0, 50, (4, 6))).square().mean().backward()
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            update.step()

    gc.collect()
    with memory.track("cpu") as track:
        run()
    older = track.by_category().get(memory.Category.UNTRACKED, 0)  # other tests': some of it may go at any time
    assert memory.predict(run).peak == track.peak - older
    with tm.device("meta"):
        layer = nn.Embedding(5, 3, sparse=True)
        layer(tm.tensor([1, 1])).sum().backward()
        with pytest.raises(DataDependenceError, match="no values"):
            layer.weight.grad.coalesce()


REFUSED = {
    "Adam": "Adam does not support sparse gradients, please consider SparseAdam instead",
    "RMSprop": "RMSprop does not support sparse gradients",
    "Adadelta": "Adadelta does not support sparse gradients",
    "Adamax": "Adamax does not support sparse gradients",
    "NAdam": "NAdam does not support sparse gradients",
    "RAdam": "RAdam does not support sparse gradients",
}


@pytest.mark.parametrize("rule", REFUSED)
def test_other_rules_refuse_and_change_nothing(rule: str):
    dense, layer = tm.ones(3, requires_grad=True), nn.Embedding(5, 3, sparse=True)
    before = values(layer.weight).copy()
    update = getattr(optim, rule)([dense, *layer.parameters()])
    (layer(tm.tensor([1, 2])).sum() + dense.sum()).backward()
    with pytest.raises(RuntimeError, match=REFUSED[rule]):
        update.step()
    np.testing.assert_array_equal(values(dense), np.ones(3))
    np.testing.assert_array_equal(values(layer.weight), before)
    assert not update.state


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda p: optim.SGD(p, 0.1, momentum=0.9), "SGD: momentum=0.9 would move all rows, and a sparse gradient has a few"),
        (lambda p: optim.SGD(p, 0.1, weight_decay=0.9), "SGD: weight_decay=0.9 would move all rows"),
        (lambda p: optim.Adagrad(p, 0.1, weight_decay=0.9), "weight_decay option is not compatible with sparse gradients"),
        (lambda p: optim.AdamW(p, 0.1), "AdamW does not support sparse gradients, please consider SparseAdam instead"),
    ],
)
def test_refused_options(build: Any, match: str):
    layer = nn.Embedding(5, 3, sparse=True)
    layer(tm.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match=match):
        build(layer.parameters()).step()


def test_sparse_adam_refuses_dense_gradients_and_rates():
    p = tm.ones(2, requires_grad=True)
    p.sum().backward()
    with pytest.raises(RuntimeError, match="SparseAdam does not support dense gradients, please consider Adam instead"):
        optim.SparseAdam([p]).step()
    with pytest.raises(ValueError, match="Invalid learning rate: 0"):
        optim.SparseAdam([p], lr=0)
    with pytest.raises(ValueError, match="Invalid epsilon value: 0"):
        optim.SparseAdam([p], eps=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("SGD", {"lr": 0.1}), ("SGD", {"maximize": True}), ("SparseAdam", {"lr": 0.05}), ("Adagrad", {"lr_decay": 0.1})],
)
def test_steps_on_every_device_are_those_of_float64(name: str, options: dict, dtype: str, dev: str):
    def trained(dtype: str, dev: str) -> np.ndarray:
        start = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype("float16").astype(dtype)
        table = tm.tensor(start, device=dev, requires_grad=True)
        rule = getattr(optim, name)([table], **options)
        for index in ([1, 5, 1], [0, 6], [5, 5, 2, 1]):
            rule.zero_grad()
            found = F.embedding(tm.tensor(index, device=dev), table, sparse=True)
            weights = np.random.default_rng(len(index)).integers(1, 5, tuple(found.shape)).astype(dtype)
            (found * tm.tensor(weights, device=dev)).sum().backward()
            rule.step()
        return values(table.detach().cpu()).astype("float64")

    tolerance = {"float64": 1e-12, "float32": 1e-6, "float16": 4e-3}[dtype]
    np.testing.assert_allclose(trained(dtype, dev), trained("float64", "cpu"), atol=tolerance)
