"""Scaled dot-product attention as on CUDA: the call of the kernel that :func:`.kernels.attention.backend` names.

Source: PyTorch, ``aten/src/ATen/native/transformers/attention.cpp``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .kernels import Gpu
from .kernels.attention import backend

aten = torch.ops.aten
_MASK_LINE = 8  # elements: rows of a mask begin at multiples of it


def attention(
    gpu: Gpu,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``aten::scaled_dot_product_attention`` of tensors on ``gpu``."""
    kernel = backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, gpu)
    if kernel == "flash":
        size = query.shape[-1]
        scale = 1 / math.sqrt(size) if scale is None else scale
        padded = [_pad(tensor, 8) for tensor in (query, key, value)]
        made, *rest = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)
        return _alone(made[..., :size] if made.shape[-1] != size else made, rest)
    mask = _float_mask(attn_mask, query.dtype, gpu)
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    options = keeps, dropout_p, is_causal
    if kernel == "cudnn":
        made, *rest = aten._scaled_dot_product_cudnn_attention(query, key, value, mask, *options, False, scale=scale)
    elif kernel == "efficient":
        mask = None if mask is None else _aligned(mask, query, key)
        made, *rest = aten._scaled_dot_product_efficient_attention(query, key, value, mask, *options, scale=scale)
    else:
        made, *rest = aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return _alone(made, rest)


def _alone(made: torch.Tensor, rest: list[Any]) -> torch.Tensor:
    """The first result; the others end from the first on, as a tuple of C++ ends."""
    while rest:
        del rest[0]
    return made


def _pad(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """The last dimension as long as a multiple of ``multiple``: a copy, unless it is."""
    missing = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, missing)) if missing else tensor


def _float_mask(mask: torch.Tensor | None, dtype: torch.dtype, gpu: Gpu) -> torch.Tensor | None:
    """A mask of booleans as numbers that are added to the scores. Source: ``convert_boolean_attn_mask``."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    if gpu.version >= (2, 11):
        return torch.where(mask, 0.0, aten.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))
    if gpu.version >= (2, 6):
        zero = aten.scalar_tensor(0.0, dtype=dtype, device=mask.device)
        return torch.where(mask.logical_not(), -math.inf, zero)
    made = torch.zeros_like(mask, dtype=dtype)
    made.masked_fill_(mask.logical_not(), -math.inf)
    return made


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask whose rows are aligned, for each batch and head; copied only if its rows are not. Source: ``preprocess_mask``."""
    if mask.stride(-1) != 1 or any(stride % _MASK_LINE for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = F.pad(mask, (0, _MASK_LINE - length % _MASK_LINE))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
