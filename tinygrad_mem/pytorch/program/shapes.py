"""Results of ops that PyTorch's fake tensors get wrong, or for which they keep memory alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
_LINE = 16  # bytes: rows of a grouped product begin at multiples of it on CUDA


def _grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product for each group of rows, or of columns; PyTorch's formula takes bfloat16 alone.

    Source: ``aten/src/ATen/native/GroupedMMUtils.h``, ``create_grouped_gemm_output_tensor``.
    """
    groups = [] if a.dim() != b.dim() else [offs.shape[0] if offs is not None else a.shape[0]]
    rows, columns, dtype = a.shape[-2], b.shape[-1], out_dtype or a.dtype
    on_gpu = isinstance(a, FakeTensor) and a.fake_device.type == "cuda"
    line = _LINE // dtype.itemsize if on_gpu else 1
    padded = -(-columns // line) * line
    strides = [rows * padded] * len(groups) + [padded, 1]
    return a.new_empty_strided([*groups, rows, columns], strides, dtype=dtype)


def _uncached(func: Any) -> Callable[..., Any]:
    """The mode of fake tensors remembers calls with their storages, and so would hold those for ever."""

    def call(tensor: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        mode: Any = tensor.fake_mode
        before, mode.cache_enabled = mode.cache_enabled, False
        try:
            return func(tensor, *args, **kwargs)
        finally:
            mode.cache_enabled = before

    return call


SETS = {aten.set_.source_Storage, aten.set_.source_Storage_storage_offset}
SHAPES: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: _grouped_mm, **{op: _uncached(op) for op in SETS}}


def result(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of an op."""
    return SHAPES[func](*args, **kwargs) if func in SHAPES else func(*args, **kwargs)
