"""Copies between the host and the GPU."""

from __future__ import annotations

import torch

from .call import KernelCall, on_host, row


@row(
    "_to_copy", "copy_",
    takes="between host and GPU, where dtypes or the order of elements differ: a contiguous copy on the GPU of a source or a "
    "target there that is not contiguous; with non_blocking the dtype changes on the GPU, through a copy of another dtype",
    source="aten/src/ATen/native/cuda/Copy.cu, copy_kernel_cuda, copy_requires_temporaries",
)  # fmt: skip
def between(call: KernelCall) -> None:
    """The tensor on the GPU is the source or the target; the other one's copies are on the host."""
    source, target = call.get("src", call["self"]), call.outs[0]
    same = source.dtype == target.dtype
    if on_host(source) == on_host(target) or (same and _lie_alike(source, target)):
        return
    late = bool(call.get("non_blocking"))
    if on_host(target):
        changed = late and not same
        call.ask(target.numel() * target.element_size() if changed else 0, "TEMPORARY")
        dense = source.is_contiguous() or (changed and not _is_dense(source))  # a change of dtype fills gaps
        call.ask(0 if dense else target.numel() * (target if changed else source).element_size(), "TEMPORARY")
    elif not target.is_contiguous() or (late and not same):
        call.ask(target.numel() * (source if late else target).element_size(), "TEMPORARY")


def _lie_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if the elements of both lie in the same order, without gaps."""
    alike = all(x == y for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=False) if size > 1)
    return a.shape == b.shape and alike and _is_dense(a)


def _is_dense(tensor: torch.Tensor) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    shared = any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return not shared and (last + 1 == tensor.numel() or not tensor.numel())
