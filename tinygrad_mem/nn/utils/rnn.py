"""Packed batches of sequences of different lengths: steps after a sequence's end are neither stored nor computed.

A packed batch has the first steps of all sequences, the longest first, then the second steps of those that have one, and so
on. Its shape is (sum of lengths, features); that of a padded batch is (longest, sequences, features).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...autograd.tensor import Tensor
from ...errors import ArgumentError, ShapeError
from ...errors import pins_nothing as _pins_nothing
from ...functional import creation, join

_Given = Tensor | None


class Layout(NamedTuple):
    """Attributes: ``sizes``, the number of sequences at each step; ``order`` of the sequences, ``None`` if unchanged."""

    sizes: tuple[int, ...]
    order: tuple[int, ...] | None

    def lengths(self) -> list[int]:
        """The lengths of the sequences, in their original order."""
        longest = [sum(size > rank for size in self.sizes) for rank in range(self.sizes[0])]
        if self.order is None:
            return longest
        found = [0] * len(longest)
        for rank, sequence in enumerate(self.order):
            found[sequence] = longest[rank]
        return found

    def rows(self, starts: np.ndarray, step: int) -> np.ndarray:
        """The index of each packed row where the sequences begin at ``starts``, and go on every ``step`` rows."""
        ranked = starts if self.order is None else starts[list(self.order)]
        return np.concatenate([ranked[:size] + t * step for t, size in enumerate(self.sizes)])

    def rows_of_padded(self, steps: int, batch_first: bool) -> np.ndarray:
        """The index of each packed row among the rows of a padded batch of ``steps`` steps."""
        sequences = np.arange(self.sizes[0])
        return self.rows(sequences * steps, 1) if batch_first else self.rows(sequences, len(sequences))

    def is_whole(self) -> bool:
        """True if all sequences have one length and their original order: then packed and padded are the same."""
        return self.order is None and self.sizes[0] == self.sizes[-1]


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: _Given
    unsorted_indices: _Given


class PackedSequence(_Fields):
    """A packed batch, made by :func:`pack_padded_sequence` or :func:`pack_sequence`.

    Attributes:
        data: (sum of lengths, ...).
        batch_sizes: int64 on the cpu: the number of sequences that have each step.
        sorted_indices: int64: the sequences from the longest to the shortest; ``None`` if they are in that order.
        unsorted_indices: int64, its inverse.
    """

    _layout: Layout | None = None

    def __new__(
        cls, data: Any, batch_sizes: _Given = None, sorted_indices: _Given = None, unsorted_indices: _Given = None
    ) -> PackedSequence:
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        if batch_sizes is None:  # one argument, a pair: PyTorch's older form
            data, batch_sizes = data
            assert batch_sizes is not None
        elif batch_sizes.device.kind not in ("cpu", "meta"):
            raise ValueError(
                "batch_sizes should always be on CPU. Instances of PackedSequence should never be created manually. "
                "They should be instantiated by functions like pack_sequence and pack_padded_sequences in nn.utils.rnn."
            )
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """As ``Tensor.to`` of the data. The indices go to its device. Returns itself if nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = [None if t is None else t.to(data.device) for t in (self.sorted_indices, self.unsorted_indices)]
        return _make_packed(data, layout_of(self), self.batch_sizes, *indices)

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On a GPU."""
        return self.to(*(args or ("cuda",)), **kwargs)

    def cpu(self) -> PackedSequence:
        """On the cpu."""
        return self.to("cpu")

    @property
    def is_cuda(self) -> bool:
        return self.data.is_cuda


def _make_packed(data: Tensor, layout: Layout, batch_sizes: Tensor, first: Any = None, second: Any = None) -> PackedSequence:
    made = PackedSequence(data, batch_sizes, first, second)
    made._layout = layout
    return made


def layout_of(sequence: PackedSequence) -> Layout:
    """The values of ``batch_sizes`` and ``sorted_indices``. They are known on ``meta`` too.

    Raises:
        DataDependenceError: on ``meta``, if the sequence was made from tensors.
    """
    if sequence._layout is None:
        indices = sequence.sorted_indices
        sequence._layout = Layout(tuple(sequence.batch_sizes.tolist()), None if indices is None else tuple(indices.tolist()))
    return sequence._layout


def packed(data: Tensor, layout: Layout, like: PackedSequence) -> PackedSequence:
    """A packed sequence of ``data`` with the layout and indices of another."""
    return _make_packed(data, layout, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The inverse of ``permutation``; ``None`` for ``None``."""
    if permutation is None:
        return None
    places = creation.arange(permutation.numel(), device=permutation.device)
    return creation.empty_like(permutation).scatter_(0, permutation, places)


@_pins_nothing
def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Packs a padded batch (T, N, ...), or (N, T, ...) with ``batch_first``.

    Args:
        lengths: the length of each sequence: a list of ints, or a tensor (on ``meta`` a list: tensors have no values there).
        enforce_sorted: require lengths from the longest to the shortest; False sorts them.

    Kept for backward: 8 bytes per row. If all lengths are equal and time is the first axis, the result is a view.

    Raises:
        RuntimeError: a length is below 1 or beyond the data, lengths are not sorted, not as many as sequences, not one row of
            them, or there is no data.
    """
    if isinstance(lengths, Tensor) and lengths.ndim != 1:
        raise ShapeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.ndim}D {lengths.dtype}")
    sizes = [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    if input.numel() == 0:
        raise ShapeError("Cannot pack empty tensors.")
    if input.ndim < 2:
        raise ShapeError(f"pack_padded_sequence: expected (T, N, ...) or (N, T, ...), found {list(input.shape)}")
    steps, count = (input.shape[1], input.shape[0]) if batch_first else input.shape[:2]
    _check_lengths(sizes, steps, count, enforce_sorted)
    layout = _layout(sizes, enforce_sorted)
    flat = input.reshape(steps * count, *input.shape[2:])
    if layout.is_whole() and not batch_first:
        return _with_indices(flat.narrow(0, 0, sum(sizes)), layout)
    return _with_indices(flat.index_select(0, _tensor(layout.rows_of_padded(steps, batch_first), input.device)), layout)


def _check_lengths(lengths: list[int], steps: int, count: int, is_sorted: bool) -> None:
    if len(lengths) != count:
        raise ShapeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={count})")
    if min(lengths) <= 0:
        raise ShapeError(
            "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0: "
            f"sequence {lengths.index(min(lengths))} has {min(lengths)}"
        )
    if is_sorted and any(a < b for a, b in pairwise(lengths)):
        raise ShapeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
            "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement."
        )
    if max(lengths) > steps:
        raise ShapeError(
            f"pack_padded_sequence: sequence {lengths.index(max(lengths))} has a length of {max(lengths)}, and the data has "
            f"{steps} steps; is batch_first right?"
        )


def _layout(lengths: list[int], is_sorted: bool) -> Layout:
    order = None if is_sorted else tuple(np.argsort(-np.asarray(lengths), kind="stable").tolist())
    ends = np.bincount(lengths)[1:]  # the number of sequences that end with each step
    sizes = len(lengths) - np.concatenate([[0], np.cumsum(ends)[:-1]])
    return Layout(tuple(int(n) for n in sizes), order)


def _tensor(values: Any, device: Any) -> Tensor:
    return creation.tensor(np.asarray(values, np.int64), device=device)


def _on_host(values: Any) -> Tensor:
    """A few numbers on the cpu, in NumPy's memory: they are not in a GPU's pool, and its prediction does not count them."""
    return creation.from_numpy(np.array(values, np.int64))


def _with_indices(data: Tensor, layout: Layout) -> PackedSequence:
    sizes = _on_host(layout.sizes)
    if layout.order is None:
        return _make_packed(data, layout, sizes)
    back = np.argsort(layout.order)
    return _make_packed(data, layout, sizes, _tensor(layout.order, data.device), _tensor(back, data.device))


@_pins_nothing
def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """A padded batch (T, N, ...), or (N, T, ...) with ``batch_first``, and the length of each sequence (int64, on the cpu).

    Args:
        total_length: T, if it should be more than the longest sequence.

    Kept for backward: 8 bytes per row.

    Raises:
        ValueError: ``total_length`` is less than the longest sequence.
    """
    layout = layout_of(sequence)
    steps, count = len(layout.sizes), layout.sizes[0]
    if total_length is not None:
        if total_length < steps:
            raise ArgumentError(
                "Expected total_length to be at least the length of the longest sequence in input, but got "
                f"total_length={total_length} and max sequence length being {steps}"
            )
        steps = total_length
    data, lengths = sequence.data, _on_host(layout.lengths())
    lead = (count, steps) if batch_first else (steps, count)
    if layout.is_whole() and steps == len(layout.sizes) and not batch_first:
        return data.reshape(*lead, *data.shape[1:]), lengths
    flat = creation.full((steps * count, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    rows = _tensor(layout.rows_of_padded(steps, batch_first), data.device)
    return flat.index_copy_(0, rows, data).reshape(*lead, *data.shape[1:]), lengths


@_pins_nothing
def pad_sequence(sequences: Any, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right") -> Tensor:
    """Sequences (length, ...) of equal features, side by side: (T, N, ...), or (N, T, ...) with ``batch_first``.

    Args:
        sequences: a list of tensors, or a tensor whose first dimension counts them.
        padding_side: the side on which shorter ones are padded: "right" or "left".

    Raises:
        RuntimeError: there are none, they are not tensors, or their features differ.
    """
    if not isinstance(sequences, Iterable):
        raise ShapeError(f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}")
    parts = list(sequences.unbind(0) if isinstance(sequences, Tensor) else sequences)
    if not parts:
        raise ShapeError("received an empty list of sequences")
    if padding_side not in ("left", "right"):
        raise ArgumentError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    _check_features("pad_sequence", parts)
    first = parts[0]
    longest = max(len(part) for part in parts)
    lead = (len(parts), longest) if batch_first else (longest, len(parts))
    out = creation.full((*lead, *first.shape[1:]), padding_value, dtype=first.dtype, device=first.device)
    for i, part in enumerate(parts):
        span = slice(longest - len(part), None) if padding_side == "left" else slice(0, len(part))
        out[(i, span) if batch_first else (span, i)] = part
    return out


def _check_features(name: str, parts: list) -> None:
    if any(not isinstance(part, Tensor) or part.ndim == 0 or part.shape[1:] != parts[0].shape[1:] for part in parts):
        found = ", ".join(str(list(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in parts)
        raise ShapeError(f"{name}: expected tensors (length, ...) of equal features, found {found}")


@_pins_nothing
def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Packs sequences (length, ...) of equal features, without a padded batch between. Arguments as
    :func:`pack_padded_sequence`.

    Raises:
        RuntimeError: there are none, one is empty, they are not sorted, their features differ.
    """
    parts = list(sequences)
    if not parts:
        raise ShapeError("received an empty list of sequences")
    _check_features("pack_sequence", parts)
    lengths = [len(part) for part in parts]
    _check_lengths(lengths, max(lengths), len(parts), enforce_sorted)
    layout = _layout(lengths, enforce_sorted)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])  # of each sequence in their concatenation
    joined = join.cat(parts) if len(parts) > 1 else parts[0]
    return _with_indices(joined.index_select(0, _tensor(layout.rows(starts, 1), joined.device)), layout)


@_pins_nothing
def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences of a padded batch, each a view of it. Raises: RuntimeError: there are not as many lengths as sequences."""
    turned = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    sizes = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(sizes) != len(turned):
        raise ShapeError(f"unpad_sequence: expected {len(turned)} lengths, one a sequence, found {len(sizes)}")
    return [turned[i][: int(n)] for i, n in enumerate(sizes)]


@_pins_nothing
def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The sequences of a packed batch, in their original order."""
    padded, _ = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, layout_of(packed_sequences).lengths(), batch_first=True)
