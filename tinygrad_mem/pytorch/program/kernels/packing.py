"""Copies of many tensors at once, whose addresses and sizes go to the GPU first."""

from __future__ import annotations

from math import ceil, prod, sqrt

import torch

from .call import KernelCall, row, up

_NUMBER, _THREADS, _TILE = 8, 128, 128 * 16  # bytes of an address; threads of a block; bytes that a block copies at a time
_SOURCE = "aten/src/ATen/native/cuda/TensorShape.cu"


@row(
    "split_with_sizes_copy.out",
    takes="8 bytes for each of: 3 numbers a part, the blocks of threads, and the blocks' sums; none where a dtype differs",
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
    call.ask(_NUMBER * (4 * len(parts) + 1 + blocks), "TEMPORARY")


@row(
    "_chunk_cat", "_chunk_cat.out",
    takes="8 bytes for each of: 6 numbers a tensor, the blocks of threads, and two more, which end before the copy; where "
    "dtypes differ, other than bfloat16 to float32, or a tensor is not contiguous, before the result: a padded copy of each "
    "such tensor, and of each that the chunks do not divide",
    source=f"{_SOURCE}, get_chunk_cat_metadata; TensorShape.cpp, _pad_chunk",
    seen="h100 (_chunk_cat, 4 sizes)",
)  # fmt: skip
def chunk_cat(call: KernelCall) -> None:
    """``fully_shard`` puts gradients together before they are reduced."""
    tensors, out, dim, chunks = call["tensors"], call.get("out", call.outs[0]), call["dim"], call["num_chunks"]
    kinds = tensors[0].dtype, out.dtype
    padded = [_padded(each, dim, chunks) for each in tensors]
    rows = [each.is_contiguous() for each in tensors]
    if all(rows) and (kinds[0] == kinds[1] or kinds == (torch.bfloat16, torch.float32)):
        call.result(0)
        blocks = sum(up(numel // chunks * out.element_size(), _TILE) for numel in padded)
        call.once(_NUMBER * (6 * len(tensors) + 2 + blocks), "TEMPORARY")
        return
    copies = [
        call.ask(0 if numel == each.numel() and in_rows else numel * each.element_size(), "TEMPORARY")
        for each, numel, in_rows in zip(tensors, padded, rows, strict=True)
    ]
    call.result(0)
    call.free(*copies)


def _padded(tensor: torch.Tensor, dim: int, chunks: int) -> int:
    """Elements of a tensor whose size in ``dim`` is rounded up to a multiple of ``chunks``."""
    shape = list(tensor.shape)
    shape[dim] = up(shape[dim], chunks) * chunks
    return prod(shape)


def dense(tensor: torch.Tensor) -> bool:
    """True if its elements lie beside each other, in whatever order, and none twice."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
