"""Sequences of several lengths, packed without their padding.

The lengths must be known: they decide how much memory is taken. How many sequences each step has is a real tensor, whose
numbers PyTorch's C++ reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .fake import without_modes

PACK = torch.ops.aten._pack_padded_sequence.default


def packed(
    own: Callable[[torch.Tensor], None], input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pack_padded_sequence``: the elements step by step, and how many sequences each step has.

    Source: ``PackedSequence.cpp``, ``_pack_padded_sequence``: steps with the same sequences are copied at once.
    """
    by_step = input.transpose(0, 1) if batch_first else input
    with without_modes():
        known = lengths.tolist()
        _check(by_step, known)
        sizes = [sum(length > step for length in known) for step in range(known[0])]
        counts = torch.tensor(sizes)
    own(counts)
    parts = [
        by_step[start:end, : sizes[start]].contiguous().view((end - start) * sizes[start], *input.shape[2:])
        for start, end in _runs(sizes)
    ]
    return torch.cat(parts), counts


def padded(
    own: Callable[[torch.Tensor], None],
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pad_packed_sequence``: the batch with padding, and the length of each sequence.

    Source: ``PackedSequence.cpp``, ``_pad_packed_sequence``.
    """
    with without_modes():
        sizes = batch_sizes.tolist()
        lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    if 0 < total_length < len(sizes):
        raise RuntimeError(f"pad_packed_sequence: total_length={total_length}, but the longest sequence has {len(sizes)} steps")
    output = data.new_full((max(total_length, len(sizes)), sizes[0], *data.shape[1:]), padding_value)
    own(lengths)
    begin = 0
    for start, end in _runs(sizes):
        count = (end - start) * sizes[start]
        part = data[begin : begin + count].view(end - start, sizes[start], *data.shape[1:])
        output[start:end, : sizes[start]].copy_(part)
        begin += count
    return output.transpose(0, 1) if batch_first else output, lengths


def _runs(sizes: list[int]) -> list[tuple[int, int]]:
    """The steps that have the same sequences: from, and to."""
    starts = [step for step in range(len(sizes)) if not step or sizes[step] != sizes[step - 1]]
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))


def _check(by_step: torch.Tensor, lengths: list[int]) -> None:
    """Refuse what PyTorch refuses, and lengths beyond the steps, of which it packs less than it says."""
    steps, batch = by_step.shape[:2]
    if by_step.numel() == 0:
        raise RuntimeError("pack_padded_sequence: the batch is empty")
    if len(lengths) != batch:
        raise RuntimeError(f"pack_padded_sequence: {len(lengths)} lengths for a batch of {batch} sequences")
    if min(lengths) < 1 or max(lengths) > steps:
        raise RuntimeError(f"pack_padded_sequence: lengths must be from 1 to {steps}, the steps of the batch. Found {lengths}")
    if lengths != sorted(lengths, reverse=True):
        raise RuntimeError(
            "pack_padded_sequence: the longest sequence must come first. Sort them, or pass enforce_sorted=False"
        )
