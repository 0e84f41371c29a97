"""Batches of sequences of different lengths: similar lengths together, a budget of tokens, padding or packing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..autograd.tensor import Tensor
from ..devices import Generator
from ..functional.creation import arange
from ..functional.creation import tensor as make_tensor
from .collate import default_collate
from .sampler import Sampler, draws, whole_number

__all__ = ("BucketBatchSampler", "Packed", "PadCollate", "Padded", "TokenBatchSampler", "pack_collate")


def _lengths(lengths: Sequence[int]) -> np.ndarray:
    found = np.asarray(lengths) if len(lengths) else np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError(f"lengths are a row of whole numbers, 0 or more, found {found.dtype} {list(found.shape)}")
    return found.astype(np.int64)


class _ByLength(Sampler[list]):
    """The base of both samplers: sorts by length, cuts batches, and shuffles these."""

    def __init__(self, lengths: Sequence[int], shuffle: bool, drop_last: bool, generator: Generator | None) -> None:
        super().__init__()
        self.lengths, self.shuffle, self.drop_last, self.generator = _lengths(lengths), shuffle, drop_last, generator

    def _cut_into_batches(self, order: np.ndarray) -> list[list[int]]:
        raise NotImplementedError

    def _order(self, rng: Any) -> np.ndarray:
        """Indices sorted by length; equal lengths in random order if the sampler shuffles."""
        if rng is None:
            return np.argsort(self.lengths, kind="stable")
        mixed = rng.permutation(len(self.lengths))
        return mixed[np.argsort(self.lengths[mixed], kind="stable")]

    def __iter__(self) -> Iterator[list]:
        rng = draws(self.generator) if self.shuffle else None
        batches = self._cut_into_batches(self._order(rng))
        places = range(len(batches)) if rng is None else rng.permutation(len(batches)).tolist()
        for place in places:
            yield batches[place]

    def __len__(self) -> int:
        return len(self._cut_into_batches(self._order(None)))


class BucketBatchSampler(_ByLength):
    """Batches of ``batch_size`` sequences of similar lengths, in random order: for ``DataLoader(batch_sampler=...)``.

    Every index appears once per pass. The last batch, of the longest sequences, may be smaller than the others.

    Memory: less padding over a pass. The batch of the longest sequences is as large as before, and so is the peak.

    Price: batches are less random, because their sequences have similar lengths.

    Do not use when: the peak must fall: use :class:`TokenBatchSampler` or packed sequences.

    Args:
        lengths: the length of each sequence of the dataset.
        shuffle: shuffle equal lengths and the order of the batches in each pass; else the shortest come first.
        drop_last: drop the last batch if it is smaller.

    Raises:
        ValueError: ``batch_size`` is not positive, or ``lengths`` are no lengths.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(lengths, shuffle, drop_last, generator)
        self.batch_size = whole_number("batch_size", batch_size)

    def _cut_into_batches(self, order: np.ndarray) -> list[list[int]]:
        size = self.batch_size
        stop = len(order) - len(order) % size if self.drop_last else len(order)
        return [order[i : i + size].tolist() for i in range(0, stop, size)]


class TokenBatchSampler(_ByLength):
    """Batches of at most ``max_tokens`` places (sequences times the longest of them), so that all need about the same memory.

    Every index appears once per pass.

    Memory: the activations of at most ``max_tokens`` places, whatever the lengths.

    Price: batches have different numbers of sequences; weight their losses accordingly.

    Do not use when: a layer needs batches of one size.

    Args:
        lengths: the length of each sequence of the dataset.
        max_tokens: most places in a batch, padding included.
        shuffle: shuffle equal lengths and the order of the batches in each pass; else the shortest come first.
        drop_last: drop the batch of the longest sequences, which may not be full.

    Raises:
        ValueError: ``max_tokens`` is not positive, a sequence is longer than it, or ``lengths`` are no lengths.

    Source: Ott et al., *fairseq*, 2019 (its ``--max-tokens``).
    """

    def __init__(
        self,
        lengths: Sequence[int],
        max_tokens: int,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(lengths, shuffle, drop_last, generator)
        self.max_tokens = whole_number("max_tokens", max_tokens)
        longest = int(self.lengths.max(initial=0))
        if longest > max_tokens:
            where = int(self.lengths.argmax())
            raise ValueError(
                f"sequence {where} has {longest} tokens, more than max_tokens={max_tokens}: cut it, or leave it out"
            )

    def _cut_into_batches(self, order: np.ndarray) -> list[list[int]]:
        batches: list[list[int]] = []
        batch: list[int] = []
        for index in order.tolist():  # lengths grow: the last of a batch is its longest
            if batch and (len(batch) + 1) * max(int(self.lengths[index]), 1) > self.max_tokens:
                batches.append(batch)
                batch = []
            batch.append(index)
        return [*batches, batch] if batch and not self.drop_last else batches


class Padded(NamedTuple):
    """Sequences (N, longest of the batch), and the length of each, int64."""

    tokens: Tensor
    lengths: Tensor

    @property
    def padding_mask(self) -> Tensor:
        """(N, longest), True where there is no token: the ``key_padding_mask`` of attention."""
        return arange(self.tokens.shape[1], device=self.tokens.device) >= self.lengths.to(self.tokens.device)[:, None]


class Packed(NamedTuple):
    """Concatenated sequences, the offsets at which each begins and the last ends (int32), and the longest length."""

    tokens: Tensor
    cu_seqlens: Tensor
    longest: int


class PadCollate:
    """A ``collate_fn`` that pads sequences to the longest of the batch, not of the dataset.

    Samples are sequences, or tuples or dicts of sequences and other values. Each sequence of tokens (a list, an array or a
    tensor with at least one axis) becomes a :class:`Padded`; other values go to :func:`default_collate`.

    Memory: activations of ``batch_size * longest of the batch`` places instead of ``batch_size * longest of the dataset``.

    Price: batches have different shapes, so the pool may hold free pieces of several sizes (lesson 12).

    Do not use when: all sequences have the same length; then it saves nothing.

    Args:
        padding_value: the value after shorter sequences: -100 for labels that a loss is to ignore.
        multiple_of: the padded length is rounded up to a multiple of this.

    Raises:
        ValueError: ``multiple_of`` is not positive; sequences that differ in more than their lengths.
    """

    def __init__(self, padding_value: float = 0, multiple_of: int = 1) -> None:
        self.padding_value, self.multiple_of = padding_value, whole_number("multiple_of", multiple_of)

    def __call__(self, batch: Sequence[Any]) -> Any:
        first = batch[0]
        if isinstance(first, dict):
            return {key: self._column([sample[key] for sample in batch]) for key in first}
        if isinstance(first, tuple):
            return [self._column(column) for column in zip(*batch, strict=True)]
        return self._column(batch)

    def _column(self, column: Sequence[Any]) -> Any:
        if isinstance(column[0], (str, bytes)) or np.ndim(_array(column[0])) == 0:
            return default_collate(list(column))
        rows = [_array(row) for row in column]
        _check_alike(rows)
        lengths = [len(row) for row in rows]
        longest = -(-max(lengths) // self.multiple_of) * self.multiple_of
        out = np.full((len(rows), longest, *rows[0].shape[1:]), self.padding_value, rows[0].dtype)
        for target, row in zip(out, rows, strict=True):
            target[: len(row)] = row
        return Padded(make_tensor(out), make_tensor(np.array(lengths, np.int64)))


def pack_collate(batch: Sequence[Any]) -> Packed:
    """A ``collate_fn`` that concatenates sequences without padding: for :func:`nn.attention.varlen.varlen_attn`.

    Raises:
        ValueError: sequences that differ in more than their lengths.
    """
    rows = [_array(row) for row in batch]
    _check_alike(rows)
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32)
    return Packed(make_tensor(np.concatenate(rows)), make_tensor(offsets), max(len(row) for row in rows))


def _array(row: Any) -> np.ndarray:
    return row.detach().cpu().numpy() if isinstance(row, Tensor) else np.asarray(row)


def _check_alike(rows: list[np.ndarray]) -> None:
    for number, row in enumerate(rows):
        if row.ndim == 0 or row.shape[1:] != rows[0].shape[1:] or row.dtype.kind != rows[0].dtype.kind:
            raise ValueError(
                f"sequences of a batch differ in their lengths only: entry 0 is {rows[0].dtype} {list(rows[0].shape)}, entry "
                f"{number} is {row.dtype} {list(row.shape)}"
            )
