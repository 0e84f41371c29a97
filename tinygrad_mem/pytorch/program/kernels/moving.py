"""Ops that move elements: rolled, unfolded and repeated; and losses and sums over parts."""

from __future__ import annotations

from math import prod

import torch

from .call import LONG, KernelCall, accumulated, nbytes, row
from .cub import scan


@row(
    "roll",
    takes="for each axis after the first, a copy before the result; one more of a tensor that is not contiguous",
    source="cuda/TensorTransformations.cu, roll_cuda; TensorTransformations.h, roll_common",
    seen="h100 (8 sizes)",
)
def roll(call: KernelCall) -> None:
    tensor = call["self"]
    if not prod(tensor.shape):
        return
    dense = call.contiguous(tensor)
    for _ in call["dims"][1:]:
        call.temporary(nbytes(tensor))
        call.free(dense)
        dense = -1
    call.result(0)


@row(
    "unfold_backward",
    takes="if windows overlap: arange over the part of the axis that they cover, 8 bytes each",
    source="cuda/UnfoldBackwardKernel.cu; UnfoldBackward.h, _make_unfold_backward_iter_over_grad_out",
    seen="h100 (14 sizes)",
)
def unfold_backward(call: KernelCall) -> None:
    size, step, out = call["size"], call["step"], call.outs[0]
    if step >= size or not out.dim():
        return  # a copy into a view
    axis = call["dim"]
    reached = (call["grad_in"].shape[axis] - 1) * step + size
    call.temporary(min(out.shape[axis], reached) * LONG)


@row(
    "im2col col2im",
    takes="first, a block as large as the input: a result that is not larger uses it; a larger result gets its own block, and "
    "then the first one is freed",
    source="cuda/Im2Col.cu, im2col_out_cuda_template; Col2Im.cu, col2im_out_cuda_template",
    seen="h100 (4 sizes)",
)
def columns(call: KernelCall) -> None:
    tensor = call["self"]
    larger = prod(call.outs[0].shape) > prod(tensor.shape)
    call.contiguous(tensor)
    first = call.temporary(nbytes(tensor) if larger else 0)
    call.result(0)
    call.free(first)


@row(
    "repeat_interleave.Tensor",
    takes="before the result: the cumulative sum of the repeats, and the temporary storage of CUB's scan",
    source="Repeat.h, repeat_interleave_common; cuda/Repeat.cu",
    seen="h100 (1 size)",
)
def repeat_interleave(call: KernelCall) -> None:
    count = prod(call["repeats"].shape)
    if count:
        call.temporary(count * LONG)
        call.once(scan(count, LONG))
        call.result(0)


@row(
    "max_unpool2d max_unpool3d",
    takes="copies of values and indices that are not contiguous",
    source="cuda/MaxUnpooling.cu, max_unpooling2d_forward_out_cuda",
    seen="h100 (14 sizes)",
)
def max_unpool(call: KernelCall) -> None:
    call.copies("self", "indices")
    call.result(0)


@row(
    "renorm renorm_",
    takes="after the result: the norms (in float32 for 16 bits), then the factors",
    source="Normalization.cpp, renorm_out",
    seen="h100 (4 sizes)",
)
def renorm(call: KernelCall) -> None:
    tensor = call["self"]
    count, wide = tensor.shape[call["dim"]], accumulated(tensor.dtype)
    call.temporary(count * wide)
    call.temporary(count * tensor.element_size() if wide != tensor.element_size() else 0)
    call.bound(4 * 512 + 4 * count * wide, "renorm: the staging buffers of its norms are not known")


@row(
    "segment_reduce _segment_reduce_backward",
    takes="lengths: first checks, then their cumulative sum from 0 on, by CUB's scan; offsets: their differences",
    source="SegmentReduce.cpp, segment_reduce_kernel; cuda/SegmentReduce.cu",
    seen="h100 (16 sizes)",
)
def segment_reduce(call: KernelCall) -> None:
    lengths, offsets = call["lengths"], call["offsets"]
    given = offsets if lengths is None else lengths
    rows, width = prod(given.shape[:-1]), given.element_size()
    vectors = "backward" not in call.name and call["data"].dim() == 1
    if lengths is None:
        call.temporary(rows * (offsets.shape[-1] - 1) * width)
        call.ask(int(vectors))
        return
    if not call.get("unsafe", True):
        call.once(width, "TEMPORARY")  # the smallest
        with call.within():
            call.temporary(rows * LONG, rows, 1)  # their sums, compared
    call.result(0)
    zeros = call.temporary(rows * width)
    call.temporary(rows * (lengths.shape[-1] + 1) * width)
    call.free(zeros)
    if rows == 1:
        call.once(scan(lengths.shape[-1], width))
    if vectors:
        call.once(1)


@row(
    "_ctc_loss _ctc_loss_backward",
    takes="the lengths of inputs and of targets, and where each target begins, 8 bytes each; backward also a table as large as "
    "the one that the forward returned",
    source="cuda/LossCTC.cu, ctc_loss_gpu_template, ctc_loss_backward_gpu_template",
    seen="h100 (4 sizes)",
)
def ctc_loss(call: KernelCall) -> None:
    table: torch.Tensor = call.get("log_alpha", call.outs[-1])
    lengths = [call.temporary(table.shape[0] * LONG) for _ in range(3)]
    if table is call.outs[-1]:
        call.result(1, 0)
    else:
        call.temporary(nbytes(table))
        call.result(0)
    call.free(*lengths)
