"""Sequences of several lengths, packed without their padding.

The lengths must be known: they decide how much memory is taken. The number of sequences at each step is a real tensor, because
PyTorch's C++ reads it. PyTorch's own op makes this tensor, from a sequence of one number per element, and makes its own checks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .fake import without_modes

PACK, _PAD = torch.ops.aten._pack_padded_sequence.default, torch.ops.aten._pad_packed_sequence.default


def packed(
    own: Callable[[torch.Tensor], None], input: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pack_padded_sequence``: the elements step by step, and how many sequences each step has.

    Raises:
        RuntimeError: a length is beyond the steps, of which PyTorch packs less than it says.

    Source: ``PackedSequence.cpp``, ``_pack_padded_sequence``: steps with the same sequences are copied at once.
    """
    by_step = input.transpose(0, 1) if batch_first else input
    steps, batch = by_step.shape[:2]
    with without_modes():
        if max(lengths.tolist(), default=0) > steps:
            raise RuntimeError(f"pack_padded_sequence: a length of {lengths.max()}, but the batch has {steps} steps")
        _, counts = PACK(torch.zeros(steps, batch, int(input.numel() > 0)), lengths, False)
        sizes = counts.tolist()
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
        whole, lengths = _PAD(torch.zeros(sum(sizes)), batch_sizes, False, 0, total_length)
    output = data.new_full((*whole.shape, *data.shape[1:]), padding_value)
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
