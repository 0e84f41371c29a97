"""Bad input to layers of sequences beside PyTorch: what it refuses is refused, in its words; and what only it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem.errors import TinygradMemError

Run = Callable[[Any], Any]


def pack(*lengths: Any, **options: Any) -> Run:
    return lambda L: L.nn.utils.rnn.pack_padded_sequence(L.ones(4, 3, 2), list(lengths), **options)


def packed(lengths: Any) -> Run:
    return lambda L: L.nn.utils.rnn.pack_padded_sequence(L.ones(4, 3, 2), L.tensor(lengths))


def rows(*lengths: int) -> Run:
    return lambda L: L.nn.utils.rnn.pack_sequence([L.ones(n, 2) for n in lengths])


def looked_up(name: str, *index: int, **options: Any) -> Run:
    def run(L: Any, device: str = "cpu") -> Any:
        ids = L.tensor([list(index)], device=device)
        return getattr(L.nn.functional, name)(ids, L.zeros(5, 3, device=device, requires_grad=True), **options)

    return run


def loss(name: str, *target: int) -> Run:
    def run(L: Any, device: str = "cpu") -> Any:
        x = L.zeros(len(target), 3, device=device, requires_grad=True)
        return getattr(L.nn.functional, name)(x, L.tensor(list(target), device=device))

    return run


def product(**mask: Any) -> Run:
    def run(L: Any) -> Any:
        q = L.ones(2, 3, 5, 4)
        return L.nn.functional.scaled_dot_product_attention(q, q, q, made(L, **mask))

    return run


def made(L: Any, shape: tuple, dtype: str = "float32", device: str = "cpu") -> Any:
    return L.ones(*shape, dtype=getattr(L, dtype), device=device)


def attention(name: str, **mask: Any) -> Run:
    return lambda L: L.nn.MultiheadAttention(4, 2)(*[L.ones(5, 2, 4)] * 3, **{name: made(L, **mask)})


def encoder(name: str, **mask: Any) -> Run:
    return lambda L: L.nn.TransformerEncoderLayer(4, 2, 8)(L.ones(5, 2, 4), **{name: made(L, **mask)})


def decoder(name: str, **mask: Any) -> Run:
    return lambda L: L.nn.TransformerDecoderLayer(4, 2, 8)(L.ones(5, 2, 4), L.ones(6, 2, 4), **{name: made(L, **mask)})


BELOW, ORDER = "Length of all samples has to be greater than 0", "`lengths` array must be sorted in decreasing order"
BOTH: dict[str, tuple[Run, str, str]] = {  # and words of each, PyTorch's where ours are others
    "a length of 0": (pack(3, 2, 0), BELOW, ""),
    "a length of 0, unsorted": (pack(3, 0, 2, enforce_sorted=False), BELOW, ""),
    "a length of 0 in a tensor": (packed([3, 2, 0]), BELOW, ""),
    "an empty sequence": (rows(3, 0), BELOW, ""),
    "a negative length": (pack(3, 2, -1), BELOW, ""),
    "unsorted": (pack(2, 3, 1), ORDER, ""),
    "unsorted in a tensor": (packed([2, 3, 1]), ORDER, ""),
    "unsorted rows": (rows(1, 3), ORDER, ""),
    "too few lengths": (pack(3, 2), "to be equal to batch_size, but got 2", ""),
    "lengths of the other axis": (pack(4, 3, 1, batch_first=True), "to be equal to batch_size, but got 3", ""),
    "lengths of two axes": (packed([[3], [2], [1]]), "'lengths' argument should be a 1D CPU int64 tensor, but got 2D", ""),
    "no steps": (lambda L: L.nn.LSTM(2, 3)(L.ones(0, 3, 2)), "Expected sequence length to be larger than 0", ""),
    "an id too high": (looked_up("embedding", 1, 5), "index out of range in self", ""),
    "an id below 0": (looked_up("embedding", -1), "index out of range in self", ""),
    "an id of a bag": (looked_up("embedding_bag", 1, 5), "index out of range in self", "not in the valid range"),
    "an id of a largest": (looked_up("embedding_bag", 5, mode="max"), "index out of range in self", "found idx to be 5"),
    "a class too high": (loss("cross_entropy", 0, 3), "Target 3 is out of bounds", ""),
    "a class below 0": (loss("nll_loss", 0, -1), "Target -1 is out of bounds", ""),
    "gather": (lambda L: L.gather(L.ones(5, 3), 0, L.tensor([[5]])), "index 5 is out of bounds", ""),
    "a position": (lambda L: L.ones(5, 3)[L.tensor([5])], "index 5 is out of bounds", ""),
    "scores' shape": (product(shape=(5, 6)), "does not broadcast to the scores", "must match the size"),
    "scores' axes": (product(shape=(1, 2, 3, 5, 5)), "does not broadcast to the scores", "doesn't match the broadcast shape"),
    "scores' dtype": (product(shape=(5, 5), dtype="float64"), "Expected attn_mask dtype to be bool or", ""),
    "whole numbers": (product(shape=(5, 5), dtype="int64"), "Expected attn_mask dtype to be bool or", ""),
    "pairs": (attention("attn_mask", shape=(4, 5)), "The shape of the 2D attn_mask is", ""),
    "pairs of heads": (attention("attn_mask", shape=(2, 5, 5)), "The shape of the 3D attn_mask is", ""),
    "four axes": (attention("attn_mask", shape=(1, 2, 5, 5)), "The shape of the 4D attn_mask is", "found 4-D tensor"),
    "pairs' dtype": (attention("attn_mask", shape=(5, 5), dtype="int64"), "only bool and floating types of attn_mask", ""),
    "keys": (attention("key_padding_mask", shape=(5, 2)), "expecting key_padding_mask of shape", "key_padded_mask.shape"),
    "keys' dtype": (attention("key_padding_mask", shape=(2, 5), dtype="int64"), "only bool and floating types of key", ""),
    "encoder": (encoder("src_mask", shape=(4, 5)), "The shape of the 2D attn_mask is", ""),
    "encoder's keys": (encoder("src_key_padding_mask", shape=(5, 2)), "expecting key_padding_mask", "key_padded_mask.shape"),
    "decoder": (decoder("memory_mask", shape=(6, 5)), "The shape of the 2D attn_mask is", ""),
    "decoder's keys": (decoder("memory_key_padding_mask", shape=(2, 5)), "expecting key_padding_mask", "key_padded_mask.shape"),
}


@pytest.mark.parametrize("name", BOTH)
def test_both_refuse(name: str):
    run, words, theirs = BOTH[name]
    with pytest.raises(Exception, match=theirs or words) as expected:
        run(torch)
    with pytest.raises(TinygradMemError, match=words) as found:
        run(tm)
    if expected.type is not AssertionError:  # which nobody is meant to catch
        assert issubclass(found.type, expected.type)


META: dict[str, Any] = {"shape": (5, 5), "device": "meta"}
ONLY_HERE: dict[str, tuple[Run, str]] = {
    "longer than the data": (pack(5, 3, 1), "sequence 0 has a length of 5, and the data has 4 steps"),
    "a mask elsewhere": (product(**META), "to be on the same device"),
    "pairs elsewhere": (attention("attn_mask", **META), "to be on the same device"),
    "keys elsewhere": (attention("key_padding_mask", shape=(2, 5), dtype="bool", device="meta"), "to be on the same device"),
}


@pytest.mark.parametrize("name", ONLY_HERE)
def test_pytorch_reads_what_is_not_there(name: str):
    run, words = ONLY_HERE[name]
    run(torch)
    with pytest.raises(TinygradMemError, match=words):
        run(tm)


IDS = {name: run for name, (run, *_) in BOTH.items() if name.startswith(("an id", "a class"))}


@pytest.mark.parametrize("name", IDS)
def test_on_meta_ids_have_no_values(name: str):
    run: Any = IDS[name]
    found = run(tm, "meta")
    assert tuple(found.shape) == tuple(run(torch, "meta").shape)
    found.sum().backward()


@pytest.mark.cuda
@pytest.mark.parametrize("name", IDS)
def test_on_a_gpu_they_are_nan_and_write_nowhere(name: str):
    """Nothing waits for the ids: what they name is nan, which the loss shows, and no row of the table is written for them."""
    run: Any = IDS[name]
    found = run(tm, "cuda")
    assert np.isnan(values(found)).any()
    found.sum().backward()


@pytest.mark.cuda
@pytest.mark.parametrize("rule", ["SGD", "Adagrad", "SparseAdam"])
def test_on_a_gpu_no_row_outside_of_the_table_is_updated(rule: str):
    table = tm.nn.Embedding(5, 3, sparse=True, device="cuda")
    tables = [tm.nn.Parameter(tm.zeros(5, 3, device="cuda")) for _ in range(8)]  # which would be written to
    optimizer = getattr(tm.optim, rule)(table.parameters(), 0.1)
    table(tm.tensor([1, 5, 9, -1], device="cuda")).sum().backward()
    optimizer.step()
    assert not any(values(t).any() for t in tables)
