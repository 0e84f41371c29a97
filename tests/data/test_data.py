"""Datasets, samplers and collation: PyTorch's meaning, PyTorch's errors."""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import data as torch_data

import tinygrad_mem as tm
from tinygrad_mem import data
from tinygrad_mem.errors import ShapeError

Point = namedtuple("Point", "x y")


class Squares(data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        if index >= self.count:
            raise IndexError(index)
        return index * index

    def __len__(self) -> int:
        return self.count


class Stream(data.IterableDataset):
    def __init__(self, *items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def __len__(self):
        return len(self.items)


def plain(batch):
    """Ours or PyTorch's batch as (type, dtype, values), to compare."""
    if isinstance(batch, (tm.Tensor, torch.Tensor)):
        return str(batch.numpy().dtype), batch.tolist()
    if isinstance(batch, dict):
        return type(batch).__name__, {k: plain(v) for k, v in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [plain(v) for v in batch]
    return batch


SAMPLES = [
    [1, 2, 3],
    [1.5, 2.0],
    [True, False],
    ["a", "b"],
    [b"a", b"b"],
    [np.float32(1), np.float32(2)],
    [np.int8(1), np.int8(2)],
    [np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)],
    [np.ones(2), np.zeros(2)],
    [{"x": 1, "y": [1.0, "s"]}, {"x": 2, "y": [3.0, "t"]}],
    [OrderedDict(a=1, b=2), OrderedDict(a=3, b=4)],
    [defaultdict(list, a=1), defaultdict(list, a=3)],
    [Point(1, 2.0), Point(3, 4.0)],
    [(1, "a"), (2, "b")],
    [[1, [2, 3]], [4, [5, 6]]],
    [((1, 2), {"k": (3, 4)}), ((5, 6), {"k": (7, 8)})],
]


@pytest.mark.parametrize("batch", SAMPLES, ids=str)
def test_collate_is_pytorchs(batch):
    assert plain(data.default_collate(batch)) == plain(torch_data.default_collate(batch))


@pytest.mark.parametrize("sample", [*SAMPLES, 3, "s", None], ids=str)
def test_convert_is_pytorchs(sample):
    assert plain(data.default_convert(sample)) == plain(torch_data.default_convert(sample))


def test_collate_stacks_tensors_of_every_dtype_and_device():
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int64", "bool"):
        batch = data.default_collate([tm.tensor(np.ones((2, 1), dtype))] * 3)
        assert batch.shape == (3, 2, 1)
        assert batch.dtype == dtype
    assert data.default_collate([tm.tensor([1.0], device="meta")] * 2).device == "meta"


def test_collate_of_samples_that_require_grad_is_differentiable():
    samples = [tm.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
    data.default_collate(samples).sum().backward()
    assert samples[1].grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([None], TypeError, "batch must contain tensors"),
        ([object()], TypeError, "found <class 'object'>"),
        ([np.array(["a"])], TypeError, "batch must contain tensors, numpy arrays, numbers, dicts or lists; found <U1"),
        ([np.ones(2), np.ones(3)], ShapeError, r"but got \[2\] at entry 0 and \[3\] at entry 1"),
        (lambda: [tm.ones(1)] * 2 + [tm.ones(2)], ShapeError, r"equal size, but got \[1\] at entry 0 and \[2\] at entry 2"),
        (lambda: [tm.ones(1), 3], TypeError, "expected Tensor as element 1 in argument 0, but got int"),
        (lambda: [tm.ones(1), np.ones(1)], TypeError, "expected Tensor as element 1 in argument 0, but got ndarray"),
        ([[1, 2], [1]], RuntimeError, "of equal size"),
    ],
    ids=["none", "object", "words", "arrays", "tensors", "tensor and number", "tensor and array", "lists"],
)
def test_collate_refuses(batch, error, message):
    with pytest.raises(error, match=message):
        data.default_collate(batch() if callable(batch) else batch)  # (tensors of a module would stay in the pool)


def test_tensor_dataset():
    x, y = tm.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tm.tensor([1, 2, 3])
    dataset = data.TensorDataset(x, y)
    assert len(dataset) == 3
    assert [t.tolist() for t in dataset[1]] == [[3.0, 4.0], 2]
    assert [t.tolist() for t in dataset.rows([2, -3])] == [[[5.0, 6.0], [1.0, 2.0]], [3, 1]]
    with pytest.raises(IndexError, match="index 3 is out of bounds for dimension 0 with size 3"):
        dataset.rows([0, 3])
    with pytest.raises(ValueError, match=r"Size mismatch between tensors: their first dimensions are \[3, 2\]"):
        data.TensorDataset(x, tm.tensor([1, 2]))


def test_rows_of_a_dataset_on_meta_touch_nothing():
    big = tm.empty(1 << 20, 1 << 12, device="meta")
    (batch,) = data.TensorDataset(big).rows([5, 7])
    assert batch.shape == (2, 1 << 12)
    assert batch.device == "meta"


def test_concat_chain_stack_subset():
    both = Squares(3) + Squares(2)
    assert [both[i] for i in range(5)] == [0, 1, 4, 0, 1]
    assert both[-1] == 1
    with pytest.raises(IndexError, match="index 5 is out of range for 5 samples"):
        both[5]
    with pytest.raises(ValueError, match="should not be an empty iterable"):
        data.ConcatDataset([])
    with pytest.raises(TypeError, match="use ChainDataset"):
        data.ConcatDataset([Stream(1)])
    chained = Stream(1, 2) + Stream(3)
    assert list(chained) == [1, 2, 3]
    assert len(chained) == 3
    with pytest.raises(TypeError, match="only supports IterableDataset, found Squares"):
        list(data.ChainDataset([Squares(1)]))
    assert data.StackDataset(Squares(3), Squares(3))[2] == (4, 4)
    assert data.StackDataset(a=Squares(3))[2] == {"a": 4}
    with pytest.raises(ValueError, match="either by position"):
        data.StackDataset()
    with pytest.raises(ValueError, match=r"Size mismatch between datasets: \[1, 2\]"):
        data.StackDataset(Squares(1), Squares(2))
    assert [data.Subset(Squares(9), [4, 2])[i] for i in range(2)] == [16, 4]
    rows = data.TensorDataset(tm.arange(9))
    for each in (data.Subset(rows, [4, 2, 7]), data.Subset(data.Subset(rows, [7, 4, 2]), [1, 2, 0])):
        assert each[[2, 0]][0].tolist() == [7, 4]  # a list of places at once, if the dataset takes one
    with pytest.raises(NotImplementedError, match="__getitem__"):
        data.Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(data.IterableDataset())


@given(count=st.integers(1, 50), cuts=st.lists(st.floats(0.01, 1), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_random_split_deals_out_every_sample_once_with_pytorchs_sizes(count, cuts, seed):
    fractions = [c / sum(cuts) for c in cuts]
    fractions[-1] = 1 - sum(fractions[:-1])
    parts = data.random_split(Squares(count), fractions, tm.Generator().manual_seed(seed))
    assert sorted(i for p in parts for i in p.indices) == list(range(count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of empty parts
        theirs = torch_data.random_split(range(count), fractions)
    assert [len(p) for p in parts] == [len(p) for p in theirs]
    again = data.random_split(Squares(count), fractions, tm.Generator().manual_seed(seed))
    assert [p.indices for p in again] == [p.indices for p in parts]


def test_random_split_refuses():
    assert [len(p) for p in data.random_split(Squares(5), [2, 3])] == [2, 3]
    with pytest.raises(ValueError, match="does not equal the length of the input dataset"):
        data.random_split(Squares(5), [2, 2])
    with pytest.raises(ValueError, match="Fraction at index 0 is not between 0 and 1"):
        data.random_split(Squares(5), [-0.5, 1.5])


def seeded(seed=1):
    return tm.Generator().manual_seed(seed)


def test_samplers():
    assert list(data.SequentialSampler(Squares(3))) == [0, 1, 2]
    order = list(data.RandomSampler(Squares(100), generator=seeded()))
    assert sorted(order) == list(range(100))
    assert order != sorted(order)
    assert order == list(data.RandomSampler(Squares(100), generator=seeded()))
    assert order != list(data.RandomSampler(Squares(100), generator=seeded(2)))
    drawn = list(data.RandomSampler(Squares(3), replacement=True, num_samples=50, generator=seeded()))
    assert len(drawn) == 50
    assert set(drawn) == {0, 1, 2}
    more = list(data.RandomSampler(Squares(3), num_samples=7, generator=seeded()))
    assert sorted(more[:3]) == sorted(more[3:6]) == [0, 1, 2]
    assert len(more) == 7
    assert sorted(data.SubsetRandomSampler([5, 7, 9], seeded())) == [5, 7, 9]
    weighted = list(data.WeightedRandomSampler([0, 3, 1], 400, generator=seeded()))
    assert 0 not in weighted
    assert 240 < weighted.count(1) < 360
    assert sorted(data.WeightedRandomSampler([1, 2, 3], 3, replacement=False)) == [0, 1, 2]


@pytest.mark.parametrize("replacement", [False, True])
def test_indices_of_nothing_are_refused(replacement: bool):
    """It waited without end for indices: PyTorch divides by the number of elements."""
    with pytest.raises(ValueError, match="3 indices of a dataset without elements"):
        list(data.RandomSampler([], replacement=replacement, num_samples=3))


def test_each_pass_of_a_seeded_sampler_has_another_order():
    sampler = data.RandomSampler(Squares(50), generator=seeded())
    assert list(sampler) != list(sampler)


@given(count=st.integers(0, 20), size=st.integers(1, 7), drop=st.booleans())
def test_batch_sampler_is_pytorchs(count, size, drop):
    ours = data.BatchSampler(data.SequentialSampler(range(count)), size, drop)
    theirs = torch_data.BatchSampler(torch_data.SequentialSampler(range(count)), size, drop)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: data.RandomSampler([1], replacement=1), TypeError, "replacement should be a boolean value"),
        (lambda: data.RandomSampler([1], num_samples=0), ValueError, "num_samples should be a positive integer value"),
        (lambda: data.WeightedRandomSampler([1], 0), ValueError, "num_samples should be a positive integer value"),
        (lambda: data.WeightedRandomSampler([1], 1, 2), ValueError, "replacement should be a boolean value"),
        (lambda: data.WeightedRandomSampler([[1]], 1), ValueError, "weights should be a 1d sequence"),
        (lambda: data.WeightedRandomSampler([-1, 2], 1), ValueError, "finite and non-negative"),
        (lambda: data.WeightedRandomSampler([0, 2], 2, False), ValueError, "need as many positive weights"),
        (lambda: data.BatchSampler([1], 0, False), ValueError, "batch_size should be a positive integer value"),
        (lambda: data.BatchSampler([1], 1, None), ValueError, "drop_last should be a boolean value"),
        (lambda: iter(data.Sampler()), NotImplementedError, "__iter__"),
    ],
    ids=range(10),
)
def test_samplers_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_names_are_where_pytorch_has_them():
    from tinygrad_mem.utils.data import DataLoader, TensorDataset

    assert DataLoader is data.DataLoader is tm.utils.data.DataLoader
    assert TensorDataset is tm.data.TensorDataset


def test_an_empty_dataset_cannot_be_drawn_from():
    for library in (torch_data, data):
        with pytest.raises(ValueError, match="num_samples should be a positive integer value, but got num_samples=0"):
            library.DataLoader([], shuffle=True)
        assert list(library.DataLoader([])) == []
