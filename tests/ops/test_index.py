"""Reading and writing by indices: any layout of the memory, indices that repeat, and nothing that NumPy allocates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.case import against_torch
from tests.predicted import difference
from tests.witness import numpy_allocations
from tinygrad_mem.kernels import numpy as kernels
from tinygrad_mem.scope import local

SMALL = 64  # bytes: a scalar

KEYS = ("i", "i:", ":i", "i:i", ":i:i", "::i", "ii:", "i::i")  # an array or a whole axis, axis by axis
ALONG = ("gather", "scatter", "scatter_add")


def layout(rng: np.random.Generator, shape: tuple[int, ...], which: int) -> np.ndarray:
    """An array of the shape that is contiguous, turned, or a window."""
    if which == 0:
        return rng.standard_normal(shape)
    if which == 1:
        return rng.standard_normal(shape[::-1]).T
    return rng.standard_normal(tuple(2 * n + 1 for n in shape))[tuple(slice(1, None, 2) for _ in shape)]


@given(st.sampled_from(KEYS), st.integers(0, 2), st.integers(0, 9), st.sampled_from([3, 70]), st.booleans())
def test_keys_of_arrays_as_numpy_reads_and_writes_them(key: str, which: int, seed: int, last: int, accumulate: bool):
    rng = np.random.default_rng(seed)
    shape = (*[4, 5, 6][: len(key) - 1], last)
    x = layout(rng, shape, which)
    full = tuple(rng.integers(0, n, (2, 3)) if c == "i" else slice(None) for c, n in zip(key, shape, strict=True))
    out = np.empty(x[full].shape)
    kernels.index_get(x, full, out=out)
    np.testing.assert_array_equal(out, x[full])
    value, expected = rng.standard_normal(out.shape), x.copy()
    if accumulate:
        np.add.at(expected, full, value)  # pyright: ignore[reportArgumentType]
    else:
        expected[full] = value
    kernels.index_put(value, full, accumulate, None, out=x)
    np.testing.assert_allclose(x, expected, rtol=1e-14, atol=1e-14)


@given(st.sampled_from(ALONG), st.integers(0, 2), st.integers(0, 2), st.integers(0, 9), st.sampled_from([6, 70]))
def test_along_an_axis_as_pytorch(name: str, axis: int, which: int, seed: int, last: int):
    rng = np.random.default_rng(seed)
    x = layout(rng, (4, 5, last), which)
    shape = tuple(3 if a == axis else n - 1 for a, n in enumerate(x.shape))
    index = np.argsort(rng.random(x.shape), axis)[tuple(slice(0, n) for n in shape)]  # no place twice
    more = [] if name == "gather" else [layout(rng, shape, which)]

    def run(x, i, *s):
        return getattr(x, name)(axis, i, *s)

    against_torch(run, run, [x, np.ascontiguousarray(index), *more])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("width", [3, 100])
def test_nothing_is_allocated(dtype: str, width: int):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((500, width)) * 9).astype(dtype)
    at, along = rng.integers(0, 500, 900), rng.integers(0, 500, (900, width))
    out, value = np.empty((900, width), dtype), np.ones((1, width), dtype)
    wide = np.broadcast_to(value, out.shape)

    def everything() -> None:
        kernels.index_get(x, (at, slice(None)), out=out)
        kernels.index_put(wide, (at, slice(None)), False, None, out=x)
        kernels.index_put(0, (at, slice(None)), False, None, out=x)
        kernels.gather(x, 0, along, out=out)
        kernels.scatter(out, 0, along, out=x)
        kernels.scatter(1, 0, along, out=x)
        if dtype != "bool":
            kernels.index_put(wide, (at, slice(None)), True, None, out=x)
            kernels.scatter_add(out, 0, along, out=x)
            kernels.add_rows(out, at, out=x)

    local.run(everything)
    with numpy_allocations() as sizes:
        local.run(everything)
    assert [n for n in sizes if n > SMALL] == []


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_known_is_checked_on_every_device(device: str):
    x = tm.zeros(4, 5, device=device)
    for bad in ([0, 4], [-5], np.array([7])):
        with pytest.raises(tm.errors.DimensionError, match="out of bounds for dimension 0 with size 4"):
            x[bad]
        with pytest.raises(IndexError):
            torch.zeros(4, 5)[torch.tensor(list(bad))]
    assert tuple(x[[-1, 0, -4]].shape) == (3, 5)
    assert tuple(x[:, [-1, 0]].shape) == (4, 2)


def test_an_index_of_a_scalar():
    x = torch.tensor(2.0).scatter(0, torch.tensor(0), torch.tensor(3.0))
    assert tm.tensor(2.0).scatter(0, tm.tensor(0), tm.tensor(3.0)).item() == x.item()


@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_source_has_an_element_for_each_of_the_index(name: str, device: str):
    x, index = tm.zeros(3, 4, device=device), tm.zeros(3, 3, dtype=tm.int64, device=device)
    with pytest.raises(tm.errors.ShapeError, match=r"index \[3, 3\].* no larger size than src \[3, 2\]"):
        getattr(x, name)(1, index, tm.ones(3, 2, device=device))
    with pytest.raises(tm.errors.ShapeError, match="same number of dimensions as src"):
        getattr(x, name)(1, index, tm.ones(3, device=device))


def line(*entries: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(entries, dtype)


def test_a_floating_alpha_is_not_for_integers():
    """As of ``add``; PyTorch's CPU takes its integer part, so that 0.5 adds nothing."""
    with pytest.raises(RuntimeError, match="For integral input tensors, argument alpha must not be a floating point number"):
        tm.zeros(3, dtype=tm.int64).index_add(0, tm.tensor([0, 0]), tm.tensor([4, 5]), alpha=0.5)


@pytest.mark.parametrize("index", [line(0), np.array(0)], ids=["a line", "0-d"])
@pytest.mark.parametrize(
    "run",
    [
        lambda x, s, i: x.index_add(0, i, s, alpha=2),
        lambda x, s, i: x.index_copy(0, i, s),
        lambda x, s, i: x.index_fill(0, i, 3.0),
        lambda x, s, i: x.index_select(0, i) + s,
        lambda x, s, i: x.scatter(0, i, s),
        lambda x, s, i: x.scatter_add(0, i, s),
        lambda x, s, i: x.scatter_reduce(0, i, s, "sum"),
        lambda x, s, i: x.gather(0, i) + s,
        lambda x, s, i: (x * 2).index_add_(0, i, s) + x,
        lambda x, s, i: (x * 2).scatter_add_(0, i, s) + x,
    ],
)
def test_a_number_is_a_line_of_one_entry(run: Callable, index: np.ndarray):
    against_torch(run, run, [np.array(2.5), np.array(1.5), index])


@pytest.mark.parametrize(
    "run",
    [
        lambda x, i: x.gather(1, i),
        lambda x, i: x.scatter(1, i, x),
        lambda x, i: x.scatter_add(1, i, x),
        lambda x, i: x.scatter_reduce(1, i, x, "sum"),
    ],
)
def test_indices_may_be_int32(run: Callable):
    against_torch(run, run, [np.arange(6.0).reshape(2, 3), np.array([[0, 2, 1], [1, 1, 0]], np.int32)])


def test_take_along_dim_counts_negative_indices_from_the_end():
    against_torch(
        lambda x, i: tm.take_along_dim(x, i, 1),
        lambda x, i: torch.take_along_dim(x, i, 1),
        [np.eye(3), line(-1, -3, 0)[:, None]],
    )


@pytest.mark.parametrize("chosen", [True, False])
def test_a_mask_without_dimensions_takes_all_or_nothing(chosen: bool):
    mask = np.array(chosen)
    for x in (np.array(2.5), np.arange(6.0).reshape(2, 3)):
        against_torch(lambda x, m: x[m], lambda x, m: x[m], [x, mask])
    against_torch(lambda x, m: x.masked_select(m), lambda x, m: x.masked_select(m), [np.array(2.5), mask])
    mine, other = tm.zeros(2), torch.zeros(2)
    mine[tm.tensor(mask)], other[torch.tensor(mask)] = 3.0, 3.0
    assert mine.tolist() == other.tolist()


@pytest.mark.parametrize(
    "key",
    [
        lambda x, m: x > 0,
        lambda x, m: (slice(None), m[0]),
        lambda x, m: (slice(1, None), m[0]),
        lambda x, m: (..., m[0]),
        lambda x, m: (None, slice(None), m[1]),
        lambda x, m: m[:, 0],
        lambda x, m: (2, m[0]),
    ],
)
@pytest.mark.parametrize("value", [-1.5, True, 3, np.float64(2.5), "a tensor"])
def test_one_value_by_one_mask_needs_no_count_of_places(key, value):
    array, mask = np.random.default_rng(0).standard_normal((3, 4)), np.random.default_rng(1).random((3, 4)) > 0.5

    def write(library):
        def call(x, m):
            y = x * 2
            y[key(x, m)] = library.tensor(0.5, dtype=library.float64) if value == "a tensor" else value
            return y

        return call

    against_torch(write(tm), write(torch), [array, mask])

    def run():
        x = tm.tensor(array, requires_grad=True)
        write(tm)(x, tm.tensor(mask)).sum().backward()

    assert not difference(run)


def test_one_value_by_one_mask_takes_less_than_its_places_did():
    x = tm.ones(1000, 1000)
    chosen = x > 0
    before = tm.device("cpu").pool.used_bytes()
    with tm.memory.track() as track:
        x[chosen] = 2
    assert track.peak == before


@pytest.mark.parametrize("key", ["indices", "mask", "slice"])
def test_a_value_may_have_more_axes_of_one(key: str):
    def run(lib, value):
        x = lib.zeros(2, 3, dtype=lib.float64) + 0
        keys = {"indices": (lib.tensor([0, 1]), lib.tensor([2, 0])), "mask": lib.tensor([[True, False, True]] * 2), "slice": 0}
        x[keys[key]] = value[:, None]
        return x

    against_torch(lambda v: run(tm, v), lambda v: run(torch, v), [np.ones((1,))])


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_index_put_wants_indices(place: str):
    for write in (tm.index_put, tm.index_put_):
        with pytest.raises(ValueError, match="index_put_: expected at least one tensor of indices, found none"):
            write(tm.zeros(2, device=place), (), tm.tensor(1.0, device=place))


PARTS = """
    [0, 1] | [True, False, True, False] | (0, (1, 2)) | ((0, 1), (1, 2)) | ((0, 1), slice(1, 3)) | ((0, M.tensor(1)),)
    ([M.tensor(0), M.tensor(1)],) | ((True, False, True, True),) | () | ((),) | [] | ([],) | (range(2),) | range(2)
    np.array([[0, 1], [1, 2]]) | [np.int64(0), 1] | True | False | (0, True) | (True, [0, 2]) | (..., True)
    M.tensor(1, dtype=M.uint8) | M.tensor(0, dtype=M.uint8) | (0, M.tensor(1, dtype=M.uint8)) | [0] * 40 | (slice(None), (2, 3))
"""
BOTH_WAYS = """
    [[0, 1], [1, 2]] | [(0, 1), (1, 2)] | [[0, 1]] | [[[0, 1], [1, 2]]] | [slice(0, 2), 0] | [None, 0] | [..., 0] | [[0, 1], 0]
    [tm.tensor([0, 1]), 0] | [tm.tensor(1), 0] | [np.array([0, 1])] | [[0, 1]] * 40
"""


def keys(table: str) -> list[str]:
    return [key.strip() for line in table.strip().splitlines() for key in line.split(" | ")]


@pytest.mark.parametrize("key", keys(PARTS))
def test_a_key_chooses_and_aliases_what_it_does_in_pytorch(key: str):
    found = []
    for lib in (torch, tm):
        x = lib.arange(16.0).view(4, 4)
        parts = eval(key, {"M": lib, "np": np})
        taken = x[parts]
        values = taken.tolist()
        if taken.numel():
            taken.view(-1)[0] = 70.0
        after = x.tolist()
        x[parts] = 50.0
        found.append((tuple(taken.shape), values, after, x.tolist()))
    assert found[1] == found[0]


@pytest.mark.parametrize("key", keys(BOTH_WAYS))
def test_a_list_that_pytorch_and_numpy_read_in_two_ways_is_refused(key: str):
    x, parts = tm.arange(16.0).view(4, 4), eval(key, {"tm": tm, "np": np})
    for use in (lambda: x[parts], lambda: x.__setitem__(parts, 0.0)):
        with pytest.raises(tm.errors.ArgumentTypeError, match=r"PyTorch 2.13 reads it as x\[tuple\(index\)\]"):
            use()
    assert x.sum() == 120


PLACED = """
    x.scatter_(0, i, x) | i.scatter_(0, i, 9) | x.scatter_add_(0, i, x) | x.index_copy_(0, i, x)
    i.index_copy_(0, i, i.clone()) | x.index_add_(0, i, x) | i.index_add_(0, i.clone(), i) | x.index_put_((i,), x)
    i.index_fill_(0, i, 7) | x.scatter_reduce_(0, i, x, 'prod') | x.__setitem__(i, x) | i.__setitem__(i, 7)
"""


@pytest.mark.parametrize("write", keys(PLACED))
def test_what_places_elements_reads_no_other_input_of_the_same_memory(write: str):
    for lib in (torch, tm):
        x, i = lib.tensor([1.0, 2.0, 3.0, 4.0]), lib.tensor([1, 2, 3, 0])
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            eval(write)
        assert x.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert i.tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("write", ["x[0] = x[0, 1]", "x[:2] = x[1:2]", "x[..., 1] = x[1, 1]"])
def test_what_is_assigned_to_more_elements_may_be_one_of_them(write: str):
    found = []
    for lib in (torch, tm):
        x = lib.arange(9.0).view(3, 3)
        exec(write)
        found.append(x.tolist())
    assert found[1] == found[0]
