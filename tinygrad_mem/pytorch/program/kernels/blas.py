"""Matrix products: the workspaces of cuBLAS and cuBLASLt, and copies of matrices whose strides they do not take."""

from __future__ import annotations

import re
from math import prod

import torch

from .call import Gpu, KernelCall, nbytes, row, up

KIB = 1024
_DESCRIPTORS = 4 * 128  # bytes in which a multiprocessor describes four tensors


def cublas_workspace(gpu: Gpu) -> int:
    """Bytes that a handle of cuBLAS keeps: 8.125 MiB, on Hopper 32 MiB, or what ``CUBLAS_WORKSPACE_CONFIG`` says.

    Source: ``CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``.
    """
    said = re.findall(r":(\d+):(\d+)", gpu.settings.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if said:
        return sum(int(size) * KIB * int(count) for size, count in said)
    large = gpu.capability == (9, 0) or (gpu.version >= (2, 12) and gpu.capability[0] in (9, 10, 12))
    return 4096 * 8 * KIB if large else 4096 * KIB * 2 + 16 * KIB * 8


def cublaslt_workspace(gpu: Gpu) -> int:
    """Bytes that a product by cuBLASLt asks for: 1 MiB, or what ``CUBLASLT_WORKSPACE_SIZE`` says, in KiB.

    Source: ``CublasHandlePool.cpp``, ``parseCUDABlasLtWorkspaceSize``; before PyTorch 2.9 ``CUDABlas.cpp``.
    """
    return int(gpu.settings.get("CUBLASLT_WORKSPACE_SIZE", "1024")) * KIB


def _shared(gpu: Gpu) -> bool:
    """True where cuBLASLt uses the workspace of cuBLAS: by default since PyTorch 2.12, on request since 2.8."""
    said = gpu.settings.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "")
    return said == "1" if said else gpu.version >= (2, 12)


def handle(call: KernelCall) -> None:
    """A thread's first product on a stream makes a handle, whose workspace the process keeps."""
    call.keep("cublas", cublas_workspace(call.gpu))


def _matrix(call: KernelCall, matrix: torch.Tensor) -> None:
    """A copy of a matrix of which neither side is dense.

    Source: ``cuda/Blas.cpp``, ``prepare_matrix_for_cublas`` and ``prepare_batch_matrix_for_cublas``.
    """
    (rows, columns), (down, right) = matrix.shape[-2:], matrix.stride()[-2:]
    dense = (right == 1 and down >= max(1, columns)) or (down == 1 and right >= max(1, rows))
    if matrix.dim() == 2:
        dense = dense or matrix.is_contiguous() or matrix.t().is_contiguous()
    else:
        dense = dense or (matrix.is_contiguous() and down > 0 and right > 0)
    if not dense:
        call.temporary(nbytes(matrix))


def _nothing(call: KernelCall) -> bool:
    """True if the result is empty, or a sum of no products, which is filled with zeros."""
    left = next((call[name] for name in ("mat1", "batch1", "self") if isinstance(call.get(name), torch.Tensor)), None)
    return prod(call.outs[0].shape) == 0 or (left is not None and left.dim() > 1 and left.shape[-1] == 0)


@row(
    "mm bmm baddbmm addmv mv dot vdot addbmm",
    takes="cuBLAS's workspace, at a thread's first product on a stream; a copy of a matrix whose strides cuBLAS refuses",
    source="aten/src/ATen/cuda/CublasHandlePool.cpp, getCurrentCUDABlasHandle; aten/src/ATen/native/cuda/Blas.cpp, "
    "cublasCommonArgs",
    seen="cnn-small (after the result, in backward's thread)",
)
def products(call: KernelCall) -> None:
    if _nothing(call):
        return
    for name in ("self", "mat1", "mat2", "batch1", "batch2"):
        matrix = call.get(name)
        if isinstance(matrix, torch.Tensor) and matrix.dim() > 1 and not (name == "self" and call.get("batch1") is not None):
            _matrix(call, matrix)
    handle(call)


@row(
    "_grouped_mm",
    takes="bfloat16 on Hopper or Blackwell: a table of each group's addresses, sizes and strides, and CUTLASS's workspace "
    "(recorded: 512 bytes for each multiprocessor); else cuBLAS's workspace, at a thread's first product on a stream",
    source="cuda/GroupedBlas.cpp, _grouped_mm_cuda, _grouped_mm_fallback; GroupMM.cu, bf16bf16_grouped_gemm_impl_sm90_sm100",
    seen="h100",
)
def grouped_products(call: KernelCall) -> None:
    left, ends = call["self"], call.get("offs")
    if call.gpu.capability[0] not in (9, 10) or left.dtype is not torch.bfloat16:
        return handle(call) if prod(call.outs[0].shape) else None
    groups = ends.shape[0] if ends is not None else left.shape[0]
    call.ask(up(groups, 2) * 2 * 3 * 8 + groups * 3 * 4 + groups * 3 * 8)
    call.ask(call.gpu.processors * _DESCRIPTORS)
    return call.bound(1 << 20, "CUTLASS chooses the workspace of a grouped product only when it runs")


def by_cublaslt(call: KernelCall) -> bool:
    """True if ``addmm`` adds its bias inside cuBLASLt's product. Source: ``cuda/Blas.cpp``, ``addmm_out_cuda_impl``."""
    bias, right, out = call["self"], call["mat2"], call.outs[0]
    return (
        call.gpu.settings.get("DISABLE_ADDMM_CUDA_LT", "0") != "1"
        and call.get("beta", 1) == 1
        and bias.dim() == 1
        and bias.shape[0] == right.shape[1]
        and bias.is_contiguous()
        and out.is_contiguous()
        and bias.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
        and min(right.shape) > 1
    )


@row(
    "addmm _addmm_activation",
    takes="cuBLAS's workspace, as for mm; with a 1-D bias also cuBLASLt's workspace of 1 MiB: before PyTorch 2.9 it is freed "
    "after the op, from 2.9 on the handle keeps it, from 2.12 on cuBLAS's workspace is used instead",
    source="aten/src/ATen/cuda/CUDABlas.cpp, gemm_and_bias; aten/src/ATen/cuda/CublasHandlePool.cpp, getCUDABlasLtWorkspace",
    seen="cnn-small",
)
def addmm(call: KernelCall) -> None:
    if _nothing(call):
        return
    for name in ("mat1", "mat2"):
        _matrix(call, call[name])
    if by_cublaslt(call):
        _cublaslt(call)
    else:
        handle(call)


def _cublaslt(call: KernelCall) -> None:
    if call.gpu.version < (2, 9) and not _shared(call.gpu):
        call.ask(cublaslt_workspace(call.gpu))
        handle(call)
    else:
        handle(call)
        if not _shared(call.gpu):
            call.keep("cublaslt", cublaslt_workspace(call.gpu))


@row(
    "_scaled_mm _scaled_mm_v2",
    takes="the workspaces of cuBLAS and cuBLASLt, as for addmm with a 1-D bias",
    source="cuda/ScaledBlas.cpp; aten/src/ATen/cuda/CUDABlas.cpp, scaled_gemm",
    seen="h100 (one scale, and one for each row)",
)
def scaled_products(call: KernelCall) -> None:
    if not _nothing(call):
        _cublaslt(call)
