"""Datasets: objects with ``len()`` and an index, or iterables."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ..autograd.tensor import Tensor
from ..devices import Generator, device

__all__ = (
    "ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "StackDataset", "Subset", "TensorDataset",
    "random_split",
)  # fmt: skip

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """A map from indices to samples. Subclasses define ``__getitem__``, and ``__len__`` for samplers."""

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError("Subclasses of Dataset should implement __getitem__.")

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T], Iterable[T]):
    """A stream of samples. Subclasses define ``__iter__``; for several workers see :func:`get_worker_info`."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("Subclasses of IterableDataset should implement __iter__.")

    def __add__(self, other: Dataset) -> ChainDataset:  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple]):
    """Sample ``i`` is row ``i`` of every tensor; a whole batch is gathered in one copy.

    Raises:
        ValueError: the tensors have different first sizes.
    """

    tensors: tuple[Tensor, ...]

    def __init__(self, *tensors: Tensor) -> None:
        sizes = [t.shape[0] for t in tensors]
        if len(set(sizes)) > 1:
            raise ValueError(f"Size mismatch between tensors: their first dimensions are {sizes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def rows(self, indices: Sequence[int]) -> list[Tensor]:
        """The batch that ``default_collate`` would make of these samples, without making the samples."""
        return [_rows(t, indices) for t in self.tensors]


def _rows(tensor: Tensor, indices: Sequence[int]) -> Tensor:
    count = tensor.shape[0]
    chosen = np.asarray(indices, np.int64)
    wrong = (chosen < -count) | (chosen >= count)
    if wrong.any():
        raise IndexError(f"index {chosen[wrong][0]} is out of bounds for dimension 0 with size {count}")
    where = tensor.device
    array = where.empty((len(chosen), *tensor.shape[1:]), tensor.dtype)
    work = where.workspace(where.kernels.host_workspace(chosen))
    if work is not None:
        work = work.view(chosen.dtype)
        where.upload(chosen, work)
    with where.current():
        where.kernels.take(tensor.array, chosen if work is None else work, out=array)
    return Tensor._wrap(array, where)


class StackDataset(Dataset):
    """Samples of several datasets side by side: a tuple a sample, or a dict when the datasets are named.

    Raises:
        ValueError: no dataset, both forms at once, or different lengths.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: give datasets either by position (samples are tuples) or by name (dicts)")
        self.datasets: Any = kwargs or args
        parts = list(kwargs.values()) or list(args)
        if len({len(d) for d in parts}) > 1:
            raise ValueError(f"Size mismatch between datasets: {[len(d) for d in parts]}")
        self._length = len(parts[0])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: dataset[index] for name, dataset in self.datasets.items()}
        return tuple(dataset[index] for dataset in self.datasets)

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[T]):
    """One dataset after the other.

    Raises:
        ValueError: no dataset.
        TypeError: a dataset that can only be iterated; use :class:`ChainDataset`.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ConcatDataset does not support IterableDataset; use ChainDataset")
        self.cumulative_sizes = list(itertools.accumulate(len(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> T:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range for {count} samples in {len(self.datasets)} datasets")
        index %= count
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset):
    """One stream after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError(f"ChainDataset only supports IterableDataset, found {type(dataset).__name__}")
            yield from dataset

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)  # type: ignore[arg-type]


class Subset(Dataset[T]):
    """The samples of a dataset at ``indices``."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> T:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


def draws(generator: Generator | None) -> np.random.Generator:
    """A NumPy generator, seeded with the next ticket of ``generator`` (by default the cpu's)."""
    return np.random.default_rng((generator or device("cpu").generator).ticket())


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None) -> list[Subset]:
    """Split a dataset at random into parts, by their lengths or by fractions that sum to 1.

    Fractions are rounded down. The remaining samples go to the parts one by one, from the first on.

    Raises:
        ValueError: the lengths do not sum to the dataset's, or a fraction is outside of [0, 1].
    """
    count = len(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        for i, fraction in enumerate(lengths):
            if not 0 <= fraction <= 1:
                raise ValueError(f"Fraction at index {i} is not between 0 and 1: {fraction}")
        sizes = [math.floor(count * fraction) for fraction in lengths]
        for i in range(count - sum(sizes)):
            sizes[i % len(sizes)] += 1
    else:
        sizes = [int(n) for n in lengths]
    if sum(sizes) != count:
        raise ValueError(
            f"Sum of input lengths does not equal the length of the input dataset: {list(lengths)}, {count} samples"
        )
    order = draws(generator).permutation(count).tolist()
    ends = itertools.accumulate(sizes)
    return [Subset(dataset, order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
