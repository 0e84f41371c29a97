"""Packed sequences: PyTorch's, option by option; padded steps are neither stored nor computed; refusals in PyTorch's words."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.rnn as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import values
from tests.profiles import examples
from tinygrad_mem import memory, nn
from tinygrad_mem.errors import DataDependenceError
from tinygrad_mem.nn.utils import rnn as ours

lengths = st.lists(st.integers(1, 6), min_size=1, max_size=5)
KINDS = ["RNN", "LSTM", "GRU"]


def both(shape: tuple, dtype: str = "float64") -> tuple[tm.Tensor, torch.Tensor]:
    array = np.random.default_rng(2).standard_normal(shape).astype(dtype)
    return tm.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def same(found: Any, expected: Any) -> None:
    """Equal tensors, or packed sequences with equal parts, or both None."""
    if isinstance(expected, theirs.PackedSequence):
        for field in expected._fields:
            same(getattr(found, field), getattr(expected, field))
    elif isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
    elif expected is None:
        assert found is None
    else:
        assert str(expected.dtype) == f"torch.{found.dtype}"
        np.testing.assert_allclose(values(found), expected.detach().numpy(), rtol=1e-10, atol=1e-10)


def same_gradients(mine: list, other: list) -> None:
    for m, o in zip(mine, other, strict=True):
        np.testing.assert_allclose(values(m.grad), o.grad.numpy(), rtol=1e-10, atol=1e-10)


@given(lengths, st.booleans(), st.integers(0, 2), st.integers(0, 2), st.sampled_from([(), (2,), (2, 3)]))
@settings(max_examples=examples(80))
def test_packed_and_padded_as_pytorch(sizes: list, batch_first: bool, beyond: int, longer: int, features: tuple):
    steps = max(sizes) + beyond
    x, y = both(((len(sizes), steps) if batch_first else (steps, len(sizes))) + features)
    for is_sorted in {False, sizes == sorted(sizes, reverse=True)}:
        packed = ours.pack_padded_sequence(x, sizes, batch_first, is_sorted)
        expected = theirs.pack_padded_sequence(y, sizes, batch_first, is_sorted)
        same(packed, expected)
        options = {"batch_first": batch_first, "padding_value": -7.0, "total_length": max(sizes) + longer}
        padded, found = ours.pad_packed_sequence(packed, **options)
        reference, counts = theirs.pad_packed_sequence(expected, **options)
        same((padded, found), (reference, counts))
        same(ours.unpack_sequence(packed), theirs.unpack_sequence(expected))
        padded.square().sum().backward()
        reference.square().sum().backward()
    same_gradients([x], [y])


@given(lengths, st.booleans(), st.sampled_from(["left", "right"]))
def test_sequences_as_pytorch(sizes: list, batch_first: bool, side: str):
    pairs = [both((n, 3)) for n in sizes]
    mine, other = [a for a, _ in pairs], [b for _, b in pairs]
    padded = ours.pad_sequence(mine, batch_first, 2.0, side)
    same(padded, theirs.pad_sequence(other, batch_first, 2.0, side))
    same(
        ours.unpad_sequence(padded, tm.tensor(sizes), batch_first),
        theirs.unpad_sequence(theirs.pad_sequence(other, batch_first, 2.0, side), torch.tensor(sizes), batch_first),
    )
    packed, expected = ours.pack_sequence(mine, False), theirs.pack_sequence(other, False)
    same(packed, expected)
    same(ours.pad_sequence(mine[0].detach()), theirs.pad_sequence(other[0].detach()))
    (packed.data * packed.data).sum().backward()
    (expected.data * expected.data).sum().backward()
    same_gradients(mine, other)


@given(
    st.sampled_from(KINDS), lengths, st.integers(1, 2), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.data()
)
@settings(max_examples=examples(60))
def test_layers_as_pytorch(
    kind: str, sizes: list, layers: int, bias: bool, first: bool, ways: bool, given_states: bool, data: Any
):
    """Packed through a layer and padded again: outputs, states, gradients; and what padding is has no influence."""
    options = {"num_layers": layers, "bias": bias, "batch_first": first, "bidirectional": ways}
    other = getattr(torch.nn, kind)(3, 4, **options).double()
    mine = getattr(nn, kind)(3, 4, **options).double()
    mine.load_state_dict({k: tm.tensor(v.numpy()) for k, v in other.state_dict().items()})
    mine.recompute = data.draw(st.integers(0, 4))
    shape = (len(sizes), max(sizes)) if first else (max(sizes), len(sizes))
    pairs = [both((*shape, 3)), *[both((layers * (1 + ways), len(sizes), 4)) for _ in range(2)]]
    results = []
    for side, framework, layer in ((0, ours, mine), (1, theirs, other)):
        x, h, c = (pair[side] for pair in pairs)
        hx = None if not given_states else (h, c) if kind == "LSTM" else h
        packed, last = layer(framework.pack_padded_sequence(x, sizes, first, False), hx)
        y, _ = framework.pad_packed_sequence(packed, first)
        last = last if kind == "LSTM" else (last,)
        (y.square().sum() + sum((state * state * state).sum() for state in last)).backward()
        results.append((y, *last))
    same(*results)
    used = pairs if given_states and kind == "LSTM" else pairs[:2] if given_states else pairs[:1]
    same_gradients([m for m, _ in used] + list(mine.parameters()), [o for _, o in used] + list(other.parameters()))


def docstring_lengths(most: int = 60) -> list[int]:
    """A real distribution of lengths: the words of the docstrings of some modules of the standard library."""
    parts = [inspect.getdoc(f) or "" for m in (json, pickle, inspect) for f in vars(m).values() if inspect.isfunction(f)]
    return sorted((len(text.split()) for text in parts if text), reverse=True)[:most]


@pytest.mark.parametrize("kind", KINDS)
def test_padded_steps_are_neither_kept_nor_computed(kind: str):
    """What is kept is that of the sum of lengths, where padded it is that of sequences times the longest."""
    sizes = docstring_lengths()
    total, whole, width = sum(sizes), max(sizes) * len(sizes), 16
    assert total < 0.45 * whole
    numbers = {"RNN": 0, "LSTM": 4, "GRU": 4}[kind] + 2  # a row and unit: the gates, the output, the input
    layer, x = getattr(nn, kind)(width, width), tm.ones(max(sizes), len(sizes), width)
    layer.recompute = 0

    def kept(run: Any) -> int:
        return sum(row.bytes for row in memory.saved(run) if row.name in ("x", "y", "gates"))

    assert kept(lambda: layer(x)[0]) == whole * width * 4 * numbers
    packed = ours.pack_padded_sequence(x, sizes)
    assert kept(lambda: layer(packed)[0].data) == total * width * 4 * numbers

    def step(pack: bool) -> Any:
        def run() -> None:
            layer, x = getattr(nn, kind)(width, width), tm.ones(max(sizes), len(sizes), width)
            y = layer(ours.pack_padded_sequence(x, sizes))[0].data if pack else layer(x)[0]
            y.sum().backward()

        return run

    assert memory.predict(step(True)).peak < 0.75 * memory.predict(step(False)).peak


def test_meta_needs_lengths_that_the_program_gives():
    def run(lengths: Any) -> Any:
        x = tm.ones(3, 4, 2)
        packed = ours.pack_padded_sequence(x, lengths() if callable(lengths) else lengths, enforce_sorted=False)
        y, state = nn.GRU(2, 3)(packed)
        padded, _ = ours.pad_packed_sequence(y)
        assert tuple(padded.shape) == (3, 4, 3)
        return (padded.sum() + state.sum()).backward()

    memory.predict(lambda: run([2, 3, 1, 3]))
    memory.predict(lambda: run(lambda: tm.tensor([2, 3, 1, 3])))
    memory.predict(lambda: run(lambda: tm.tensor([1, 2, 0, 2]) + 1))
    with pytest.raises(DataDependenceError, match="no values"):
        memory.predict(lambda: run(lambda: tm.randint(1, 4, (4,))))


def test_a_packed_sequence_is_pytorchs():
    packed = ours.pack_padded_sequence(tm.ones(3, 2, 2), tm.tensor([1, 3]), enforce_sorted=False)
    assert isinstance(packed, tuple)
    assert packed._fields == ("data", "batch_sizes", "sorted_indices", "unsorted_indices")
    data, sizes, first, back = packed
    assert (sizes.tolist(), first.tolist(), back.tolist()) == ([2, 1, 1], [1, 0], [1, 0])
    again = ours.PackedSequence(data, sizes, first)
    assert again.unsorted_indices.tolist() == [1, 0]
    same(list(again), [torch.tensor(values(t)) for t in packed])
    assert ours.PackedSequence((data, sizes)).sorted_indices is None
    assert packed.to(tm.float32) is packed
    assert packed.cpu() is packed
    for dtype in (tm.float64, tm.float16, tm.int64, tm.int32):
        assert packed.to(dtype).data.dtype == dtype
    assert packed.to(tm.float64).to(tm.float32).batch_sizes is sizes
    assert not packed.is_cuda
    same(
        ours.pad_packed_sequence(again),
        theirs.pad_packed_sequence(theirs.pack_padded_sequence(torch.ones(3, 2, 2), [1, 3], enforce_sorted=False)),
    )
    assert ours.invert_permutation(None) is None


def pack(*args: Any, **kwargs: Any) -> Any:
    return lambda: ours.pack_padded_sequence(*args, **kwargs)


X = tm.ones(4, 3, 2)
REFUSED = {
    "zero": (pack(X, [3, 2, 0]), "Length of all samples has to be greater than 0, .*: sequence 2 has 0"),
    "negative": (pack(X, [3, -2, 1], enforce_sorted=False), "Length of all samples has to be greater than 0"),
    "count": (pack(X, [3, 2]), r"Expected `len\(lengths\)` to be equal to batch_size, but got 2 \(batch_size=3\)"),
    "unsorted": (pack(X, [2, 3, 1]), "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True"),
    "longer": (pack(X, [5, 3, 1]), "sequence 0 has a length of 5, and the data has 4 steps; is batch_first right"),
    "empty": (pack(tm.ones(4, 0, 2), []), "Cannot pack empty tensors"),
    "vector": (pack(tm.ones(4), [4]), r"expected \(T, N, \.\.\.\) or \(N, T, \.\.\.\), found \[4\]"),
    "short": (
        lambda: ours.pad_packed_sequence(ours.pack_padded_sequence(X, [3, 3, 1]), total_length=2),
        "Expected total_length to be at least the length of the longest sequence in input, but got total_length=2",
    ),
    "no sequences": (lambda: ours.pad_sequence([]), "received an empty list of sequences"),
    "nothing to pack": (lambda: ours.pack_sequence([]), "received an empty list of sequences"),
    "a number": (lambda: ours.pad_sequence(3), "Expected iterable for input sequences, but got arg of type: <class 'int'>"),
    "features": (lambda: ours.pad_sequence([X[0], X[:, 0].expand(4, 2)[:, :1]]), "of equal features, found"),
    "features packed": (lambda: ours.pack_sequence([tm.ones(2, 3), tm.ones(2, 4)]), "of equal features, found"),
    "side": (lambda: ours.pad_sequence([X], padding_side="x"), "padding_side to be one of left or right, but got x"),
    "lengths": (lambda: ours.unpad_sequence(X, [1, 2]), "expected 3 lengths, one a sequence, found 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str):
    run, match = REFUSED[name]
    with pytest.raises(RuntimeError, match=match):
        run()
