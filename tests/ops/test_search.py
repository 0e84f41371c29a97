"""Looking up, counting and telling apart, against PyTorch; and what they refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=3)
KINDS = st.sampled_from(["float64", "float32", "int64", "int32"])


def some(shape, dtype: str, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
    return x / 2 if dtype.startswith("f") else x


def both(run, *arrays: np.ndarray) -> None:
    """The same result as PyTorch's, of these very dtypes."""
    ours, theirs = run(tm, *map(tm.tensor, arrays)), run(torch, *map(torch.tensor, arrays))
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for mine, other in pairs:
        assert mine.dtype == other.numpy().dtype
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


@given(st.integers(0, 9), st.lists(st.integers(0, 3), max_size=2), st.integers(0, 5), KINDS, st.booleans(), st.booleans())
def test_searchsorted_and_bucketize(size, lead, count, dtype, right, small):
    line, values = np.sort(some((*lead, size), dtype), -1), some((*lead, count), dtype, 1)
    both(lambda lib, a, v: lib.searchsorted(a, v, right=right, out_int32=small), line, values)
    one = np.sort(some((size,), dtype), -1)
    both(lambda lib, a, v: lib.bucketize(v, a, right=right, out_int32=small), one, values)
    both(lambda lib, a: lib.searchsorted(a, 0.5, side="right" if right else "left"), one)


MIXED = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8"]


@pytest.mark.parametrize("shape", [(2, 3), (), (0,)])
@pytest.mark.parametrize("dtype", MIXED)
def test_values_of_another_dtype_are_looked_up_in_the_common_one(dtype: str, shape: tuple):
    numbers = np.array([0, 1.5, 2, 3, 2.5, 3000001])[: int(np.prod(shape))].reshape(shape)
    for line in MIXED:
        for right in (False, True):
            found = []
            for lib in (tm, torch):
                edges, values = lib.tensor([0, 1, 2, 3]).to(getattr(lib, line)), lib.tensor(numbers).to(getattr(lib, dtype))
                found.append([lib.bucketize(values, edges, right=right), lib.searchsorted(edges, values, right=right)])
            assert [x.tolist() for x in found[0]] == [x.tolist() for x in found[1]], line
    large, near = np.array([0, 2**24 + 1, 2**25]), np.array([2**24 + 1], np.float32)
    both(lambda lib, a, v: lib.searchsorted(a, v), large, near)


def test_searchsorted_of_unsorted_lines_nan_and_more_than_a_tile():
    rng = np.random.default_rng(0)
    x, v = rng.permutation(40_000).astype("f8"), rng.uniform(-9, 40_009, 70_000)
    v[::100] = np.nan
    both(lambda lib, x, v: lib.searchsorted(x, v, sorter=x.argsort()), x, v)
    line = np.array([0.0, 1.0, np.inf, np.nan])
    both(lambda lib, a, v: (lib.searchsorted(a, v), lib.searchsorted(a, v, right=True)), line, np.array([np.nan, 1.0]))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_searchsorted_in_lines_that_end_with_nan(dtype: str, dev: str):
    """Each number finds its place before the nan, as NumPy's. PyTorch's 0 is behind [1, nan, nan]."""
    values = np.array([0, 1, 1.5, 2, np.inf, -np.inf], dtype)
    for numbers in ([1, 2], [1], [], [-1, 0, 1, 1, 2, 3], list(range(20))):
        for count, side in itertools.product((1, 2, 5), ("left", "right")):
            line = np.array([*numbers, *[np.nan] * count], dtype)
            mine = tm.searchsorted(tm.tensor(line, device=dev), tm.tensor(values, device=dev), side=side)
            assert mine.tolist() == np.searchsorted(line, values, side).tolist()


@given(SHAPES, st.integers(0, 12), KINDS, KINDS, st.booleans())
def test_isin(shape, count, dtype, other, invert):
    both(lambda lib, x, t: lib.isin(x, t, invert=invert), some(shape, dtype), some((count,), other, 1))
    both(lambda lib, x: (lib.isin(x, 1, invert=invert), lib.isin(2.0, x)), some(shape, dtype))


@given(SHAPES, st.sampled_from(["float64", "float32"]), st.integers(1, 9), st.sampled_from([(0, 0), (-1, 1), (0.3, 1.7)]))
def test_histc(shape, dtype, bins, bounds):
    both(lambda lib, x: lib.histc(x, bins, *bounds), some(shape, dtype) * 0.7)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_histc_of_integers_on_a_gpu(dtype: str):
    """PyTorch counts integers there only; experts count their rows so. A prediction asks for the bytes that floats want."""
    x = tm.tensor([0, 3, 1, 1, 5, -1], dtype=getattr(tm, dtype), device="cuda")
    counts = tm.histc(x, 4, 0, 3)
    assert (counts.tolist(), counts.dtype) == ([1, 2, 0, 1], x.dtype)
    with pytest.raises(tm.errors.DTypeError, match="histc: not implemented for int8"):
        tm.histc(x.to(tm.int8), 4)
    with pytest.raises(tm.errors.DTypeError, match="histc: not implemented for int"):
        tm.histc(x.cpu(), 4)

    def run(like: str) -> int:
        return tm.memory.predict(lambda: tm.histc(tm.zeros(6).to(getattr(tm, like)), 4, 0, 3)).peak

    assert run("int32") == run("float32")


def test_histc_does_not_count_nan_and_closes_the_last_interval():
    x = np.array([np.nan, 0.0, 1.0, 1.0, 0.5, np.inf])
    both(lambda lib, x: lib.histc(x, 2, 0, 1), x)
    both(lambda lib, x: lib.histc(x, 3), np.full(5, 2.0))
    assert tm.histc(tm.full((5000,), 0.5, dtype=tm.float16), 4, 0, 1).tolist() == [0, 0, 5000, 0]  # PyTorch says 4096
    both(lambda lib, x: lib.histc(x, 50), np.random.default_rng(0).standard_normal(100_000))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("bounds", [(0, 0), (-1, 1), (-0.5, 1.25), (0, 300)])
def test_histc_of_halves_counts_in_the_intervals_of_their_numbers(dtype: str, bounds: tuple):
    """PyTorch rounds each step to a half: of 1,200 calls 204 count elements beside their intervals."""
    rng = np.random.default_rng(0)
    for scale, bins in itertools.product((1, 10, 100), (1, 3, 7, 10, 100)):
        x = tm.tensor(rng.standard_normal(200) * scale).to(getattr(tm, dtype))
        low, high = tm.tensor(bounds).to(x.dtype).tolist()
        np.testing.assert_array_equal(x.histc(bins, *bounds).float(), torch.tensor(x.float().numpy()).histc(bins, low, high))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_histc_of_large_equal_numbers(dtype: str, dev: str):
    """A bound of halves was no half, and a large number is its own neighbour: the width of the intervals was 0."""
    if dev == "cuda" and dtype == "bfloat16":
        pytest.skip("bfloat16 is on cpu and meta only")
    for number, bins in itertools.product((1.0, 256.0, 257.0, 1000.0, 2048.0, 4096.0, 2.0**24, 1e8, 2.0**53), (1, 2, 3, 5)):
        for low, high in ((0, 0), (number, number), (number + 0.1, number + 0.2), (0, number + 0.55)):
            if dtype == "float16" and number > 65504:
                continue
            mine, theirs = (lib.tensor([number] * 3, dtype=getattr(lib, dtype)) for lib in (tm, torch))
            found = mine.to(dev).histc(bins, low, high).tolist()
            assert found == theirs.histc(bins, low, high).tolist(), f"{number}, {low} to {high} in {bins}"


@given(SHAPES.filter(lambda shape: 0 not in shape), st.booleans(), st.booleans(), st.data())
def test_unique_consecutive(shape, inverse, counts, data):
    x = np.repeat(some(shape, "int64"), 2, axis=-1) if shape else some(shape, "int64")
    also = {"return_inverse": inverse, "return_counts": counts}
    both(lambda lib, x: lib.unique_consecutive(x, **also), x)
    if shape:
        dim = data.draw(st.integers(-len(shape), len(shape) - 1))
        both(lambda lib, x: lib.unique_consecutive(x, **also, dim=dim), x)


REFUSED = {
    "leading dimensions": (lambda: tm.searchsorted(tm.ones(2, 3), tm.ones(3, 3)), "first N-1 dimensions"),
    "opposite sides": (lambda: tm.searchsorted(tm.ones(3), 1.0, side="left", right=True), "can't be set to opposites"),
    "another side": (lambda: tm.searchsorted(tm.ones(3), 1.0, side="up"), "'left' or 'right' but got up"),
    "sorter's shape": (lambda: tm.searchsorted(tm.ones(3), 1.0, sorter=tm.arange(2)), "must have the same size"),
    "sorter's dtype": (lambda: tm.searchsorted(tm.ones(3), 1.0, sorter=tm.ones(3)), "sorter must be a tensor of long dtype"),
    "no line": (lambda: tm.searchsorted(tm.tensor(1.0), 1.0), "positive dimension"),
    "a number in many lines": (lambda: tm.searchsorted(tm.ones(2, 2), 1.0), "looked up in one line"),
    "boundaries": (lambda: tm.bucketize(tm.ones(3), tm.ones(2, 2)), "must be 1 dimension"),
    "two numbers": (lambda: tm.isin(1, 2), "must be a Tensor, found two numbers"),
    "bools": (lambda: tm.isin(tm.ones(2).bool(), True), "Unsupported input type"),
    "no bins": (lambda: tm.histc(tm.ones(3), 0), "bins must be > 0, found 0"),
    "bounds": (lambda: tm.histc(tm.ones(3), 3, 2, 1), "max must be larger than min"),
    "endless": (lambda: tm.histc(tm.ones(3), 3, 0, float("inf")), "not finite"),
    "endless data": (lambda: tm.histc(tm.tensor([1.0, float("inf")]), 3), "not finite"),
    "integers": (lambda: tm.histc(tm.arange(3), 3), "not implemented for int64"),
    "meta": (lambda: tm.unique_consecutive(tm.ones(3, device="meta")), "depends on values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str):
    run, words = REFUSED[name]
    with pytest.raises(tm.errors.TinygradMemError, match=words):
        run()
