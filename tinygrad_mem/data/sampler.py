"""Samplers: the order in which a loader asks for samples. Random ones take one ticket of a generator per pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np

from ..devices import Generator
from ..errors import is_whole
from .dataset import draws

__all__ = ("BatchSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler", "WeightedRandomSampler")

T = TypeVar("T", covariant=True)
PIECE = 1024
"""The number of indices that are drawn at a time, so that memory does not grow with ``num_samples``."""


def whole_number(name: str, value: Any) -> int:
    """``value``, if it is a positive integer. Raises: ValueError: it is not."""
    if not is_whole(value):
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value}")
    return value


class Sampler(Generic[T]):
    """Iterates over indices, or over lists of them."""

    def __init__(self, data_source: Sized | None = None) -> None:
        self.data_source: Any = data_source

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError("Subclasses of Sampler should implement __iter__.")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Indices in random order, each once, or drawn ``num_samples`` times with replacement.

    Raises:
        TypeError: ``replacement`` is not a bool.
        ValueError: ``num_samples`` is not a positive integer, or the dataset is empty.
    """

    def __init__(
        self, data_source: Sized, replacement: bool = False, num_samples: int | None = None, generator: Generator | None = None
    ) -> None:
        super().__init__(data_source)
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.replacement, self._num_samples, self.generator = replacement, num_samples, generator
        whole_number("num_samples", self.num_samples)

    @property
    def num_samples(self) -> int:
        """The number of indices in a pass. The dataset's length may change between passes."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        count, wanted, rng = len(self.data_source), self.num_samples, draws(self.generator)
        if wanted and not count:
            raise ValueError(f"RandomSampler: {wanted} indices of a dataset without elements")
        if self.replacement:
            for start in range(0, wanted, PIECE):
                yield from rng.integers(0, count, min(PIECE, wanted - start)).tolist()
            return
        while wanted > 0:
            yield from rng.permutation(count)[:wanted].tolist()
            wanted -= count

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        super().__init__()
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in draws(self.generator).permutation(len(self.indices)).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with the given weights, which need not sum to one.

    Raises:
        ValueError: ``num_samples`` is not positive, the weights are not a row of non-negative numbers with a positive sum, or
            more samples than positive weights are wanted without replacement.
    """

    def __init__(
        self, weights: Sequence[float], num_samples: int, replacement: bool = True, generator: Generator | None = None
    ) -> None:
        super().__init__()
        whole_number("num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = np.array(weights, np.float64)
        if self.weights.ndim != 1:
            raise ValueError(f"weights should be a 1d sequence but given weights have shape {self.weights.shape}")
        if not np.isfinite(self.weights).all() or (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ValueError("weights should be finite and non-negative, with a positive sum")
        if not replacement and np.count_nonzero(self.weights) < num_samples:
            raise ValueError(f"{num_samples} samples without replacement need as many positive weights")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        chances = self.weights / self.weights.sum()
        rng = draws(self.generator)
        yield from rng.choice(len(chances), self.num_samples, self.replacement, chances).tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list]):
    """Lists of ``batch_size`` indices of another sampler.

    Raises:
        ValueError: ``batch_size`` is not a positive integer, or ``drop_last`` is not a bool.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        super().__init__()
        whole_number("batch_size", batch_size)
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list]:
        batch: list[Any] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
