"""Making one batch of a dataset: by indices, or from the stream of an iterable dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .collate import default_collate
from .dataset import Subset, TensorDataset


@dataclass(frozen=True)
class Fetch:
    """Makes batches from indices. It has the loader's options, but no reference to the loader, so that workers may hold it."""

    iterable: bool
    batched: bool
    drop_last: bool
    collate: Callable[[Any], Any]

    def __call__(self, dataset: Any) -> Callable[[Any], Any]:
        """Begin a pass. Returns a function that makes a batch from indices; at the end of a stream it raises StopIteration."""
        if self.iterable:
            return self._stream(iter(dataset))
        collate = self.collate
        if not self.batched:
            return lambda index: collate(dataset[index])
        if collate is default_collate and _is_plain(dataset):
            return lambda indices: _rows(dataset, indices)
        if hasattr(dataset, "__getitems__"):
            return lambda indices: collate(dataset.__getitems__(indices))
        return lambda indices: collate([dataset[i] for i in indices])

    def _stream(self, stream: Iterator) -> Callable[[Any], Any]:
        def fetch(indices: Any) -> Any:
            nonlocal stream
            if not self.batched:
                return self.collate(next(stream))
            samples = []
            for _ in indices:  # not islice(): it calls iter(stream), and a dataset that is its own iterator would begin again
                try:
                    samples.append(next(stream))
                except StopIteration:
                    stream = iter(())  # the pass ends here, also if the stream would go on
                    break
            if not samples or (self.drop_last and len(samples) < len(indices)):
                raise StopIteration
            return self.collate(samples)

        return fetch


def _is_plain(dataset: Any) -> bool:
    """True if batches are rows of tensors, so that one copy per tensor gathers a batch."""
    if type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and not any(t.requires_grad for t in dataset.tensors)


def _rows(dataset: Any, indices: Any) -> list:
    if type(dataset) is Subset:
        return dataset.dataset.rows([dataset.indices[i] for i in indices])
    return dataset.rows(indices)
