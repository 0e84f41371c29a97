"""Copies and pickles keep what is shared, and where it lies, as PyTorch's do."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.devices import device

WAYS = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "old pickle": lambda x: pickle.loads(pickle.dumps(x, 2)),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def made(lib: Any) -> dict[str, Any]:
    x = lib.arange(24).reshape(4, 6)
    views = {"row": x[1], "t": x.t(), "part": x[1:3, ::2], "wide": x[:1].expand(3, 6), "diagonal": x.diagonal()}
    return {"x": x, **views, "none": x[:0]}


def saved(x: Any) -> Any:
    """PyTorch's own way: its tensors lose what they share in a plain pickle."""
    torch.save(x, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


@ways
def test_views_stay_views_with_their_strides(way):
    originals, copies = made(tm), []
    for source in (originals, made(torch)):
        copies.append(saved(source) if source is not originals and way is not copy.deepcopy else way(source))
        copies[-1]["x"][1, 0] = 100
        copies[-1]["t"].add_(1)
    assert originals["x"].tolist() == np.arange(24).reshape(4, 6).tolist()
    for name, mine in copies[0].items():
        other = copies[1][name]
        assert mine.stride() == other.stride(), name
        assert mine.storage_offset() == other.storage_offset(), name
        assert mine.tolist() == other.tolist(), name


@ways
def test_what_shared_memory_shares_the_count_of_writes(way):
    x, view = way([y := tm.zeros(3), y[1:]])
    weight = tm.ones(2, requires_grad=True)
    product = weight * view
    x.add_(1)
    with pytest.raises(tm.errors.GraphError, match="modified by an inplace operation"):
        product.sum().backward()


@ways
def test_one_memory_for_all_that_share_it(way):
    pool = device("cpu").pool
    x = [tm.zeros(1000, 4)]
    x += list(x[0].unbind())
    gc.collect()
    before = pool.used_bytes()
    copies = way(x)
    assert pool.used_bytes() - before == 16384  # 16,000 bytes, rounded up to 512
    del copies
    assert pool.used_bytes() == before


@ways
def test_tied_weights_stay_tied(way):
    model = tm.nn.Sequential(tm.nn.Linear(3, 3), tm.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    other = way(model)
    assert other[0].weight is other[1].weight
    assert len(list(other.parameters())) == 3
    model[1].weight = tm.nn.Parameter(model[0].weight.detach())  # two parameters, one memory
    other = way(model)
    with tm.no_grad():
        other[0].weight.fill_(7)
    assert other[1].weight.tolist() == [[7.0] * 3] * 3
    assert model[1].weight.tolist() != [[7.0] * 3] * 3


@ways
@pytest.mark.parametrize("array", [np.arange(6.0), np.arange(24.0).reshape(2, 3, 4)[:, ::2].T, np.zeros((0, 3)), np.array(2.0)])
def test_arrays_of_others_and_of_nothing(way, array):
    x = tm.from_numpy(array)
    y = way(x)
    assert y.stride() == x.stride()
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y.numpy(), array)
    assert not np.shares_memory(y.numpy(), array)


@ways
def test_on_meta(way):
    x, row = way([y := tm.zeros(1 << 20, 1 << 20, device="meta"), y[5]])
    assert (x.shape, row.stride(), row.storage_offset()) == (y.shape, (1,), 5 << 20)
    assert x.is_meta


@ways
def test_gradients_flags_and_attributes(way):
    x = tm.ones(3, requires_grad=True)
    x.mine = "kept"  # pyright: ignore
    x.sum().backward()
    y = way(x)
    assert y.requires_grad
    assert y.is_leaf
    assert y.mine == "kept"
    assert (y.grad is None) == (way is not copy.deepcopy)
    with pytest.raises(tm.errors.GraphError, match="created explicitly by the user"):
        way(x * 2)


def test_copies_one_after_the_other_are_of_what_is_there_then():
    x = tm.zeros(2)
    first = copy.deepcopy(x)
    x.add_(1)
    second = copy.deepcopy(x)
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
    assert not np.shares_memory(first.numpy(), second.numpy())
