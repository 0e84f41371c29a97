"""Copies: between the host and the GPU, and of many tensors at once, whose addresses and sizes go to the GPU first."""

from __future__ import annotations

from math import ceil, prod, sqrt

import torch

from .call import LONG, KernelCall, dense, on_host, row, up

_THREADS, _TILE = 128, 128 * 16  # threads of a block; bytes that a block copies at a time
_SOURCE = "cuda/TensorShape.cu"


@row(
    "_to_copy copy_",
    takes="if a copy between host and GPU changes the dtype or the order of elements: a contiguous copy, on the GPU, of the "
    "tensor that is there, if that is not contiguous; with non_blocking the dtype is changed on the GPU, which takes a copy in "
    "the other dtype",
    source="cuda/Copy.cu, copy_kernel_cuda, copy_requires_temporaries",
)
def between(call: KernelCall) -> None:
    """The tensor on the GPU is the source or the target; the other one's copies are on the host."""
    source, target = call.get("src", call["self"]), call.outs[0]
    same = source.dtype == target.dtype
    if on_host(source) == on_host(target) or (same and _same_order(source, target)):
        return
    late = bool(call.get("non_blocking"))
    if on_host(target):
        changed = late and not same
        call.temporary(target.numel() * target.element_size() if changed else 0)
        in_rows = source.is_contiguous() or (changed and not dense(source))  # a change of dtype fills gaps
        call.temporary(0 if in_rows else target.numel() * (target if changed else source).element_size())
    elif not target.is_contiguous() or (late and not same):
        call.temporary(target.numel() * (source if late else target).element_size())


def _same_order(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if the elements of both have the same memory order, without gaps."""
    alike = all(x == y for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=False) if size > 1)
    return a.shape == b.shape and alike and dense(a)


# --- of many tensors ------------------------------------------------------------------------------------------------------


@row(
    "split_with_sizes_copy.out",
    takes="a table with entries of 8 bytes: four for each part, one for each thread block, and one more; nothing if dtypes "
    "differ",
    source=f"{_SOURCE}, split_with_sizes_copy_out_cuda_contiguous_no_cast",
)
def split_copy(call: KernelCall) -> None:
    """``fully_shard`` copies what a unit has gathered into its parameters."""
    whole, sizes, outs = call["self"], call["split_sizes"], call["out"]
    if not all(dense(each) and each.dtype == whole.dtype for each in (whole, *outs)):
        return
    dim = call["dim"] % whole.dim()
    parts = [size * whole.stride(dim) * whole.element_size() for size in sizes]
    chunks = prod(whole.shape[:dim])
    most = int(call.gpu.processors * call.gpu.threads / _THREADS * 2)
    factor = up(sum(up(part, _TILE) for part in parts) * chunks, most)
    rounds = up(factor, max(1, min(ceil(sqrt(factor)), chunks)))
    blocks = sum(up(part, _TILE * max(1, rounds)) for part in parts)
    call.temporary(LONG * (4 * len(parts) + 1 + blocks))


@row(
    "_chunk_cat _chunk_cat.out",
    takes="a table with entries of 8 bytes: six for each tensor, one for each thread block, and two more; it is freed before "
    "the op ends. If a tensor is not contiguous, or dtypes differ (unless bfloat16 becomes float32), instead of the table and "
    "before the result: a copy of each tensor that is not contiguous, and a padded copy of each whose size is not a multiple "
    "of the chunks",
    source=f"{_SOURCE}, get_chunk_cat_metadata; TensorShape.cpp, _pad_chunk",
    seen="h100 (_chunk_cat, 4 sizes)",
)
def chunk_cat(call: KernelCall) -> None:
    """``fully_shard`` puts gradients together before they are reduced."""
    tensors, out, dim, chunks = call["tensors"], call.get("out", call.outs[0]), call["dim"], call["num_chunks"]
    kinds = tensors[0].dtype, out.dtype
    padded = [_padded(each, dim, chunks) for each in tensors]
    rows = [each.is_contiguous() for each in tensors]
    if all(rows) and (kinds[0] == kinds[1] or kinds == (torch.bfloat16, torch.float32)):
        call.result(0)
        blocks = sum(up(numel // chunks * out.element_size(), _TILE) for numel in padded)
        call.once(LONG * (6 * len(tensors) + 2 + blocks), "TEMPORARY")
        return
    copies = [
        call.temporary(0 if numel == each.numel() and in_rows else numel * each.element_size())
        for each, numel, in_rows in zip(tensors, padded, rows, strict=True)
    ]
    call.result(0)
    call.free(*copies)


def _padded(tensor: torch.Tensor, dim: int, chunks: int) -> int:
    """Elements of a tensor whose size in ``dim`` is rounded up to a multiple of ``chunks``."""
    shape = list(tensor.shape)
    shape[dim] = up(shape[dim], chunks) * chunks
    return prod(shape)
