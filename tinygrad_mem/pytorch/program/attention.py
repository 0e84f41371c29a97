"""Scaled dot-product attention as on CUDA: the call of the kernel that :func:`.kernels.attention.backend` names.

Source: PyTorch, ``aten/src/ATen/native/transformers/attention.cpp``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .kernels import Gpu
from .kernels.attention import backend

aten = torch.ops.aten
_MASK_LINE = 16  # elements: rows of a mask begin at multiples of it


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
    kernel = backend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, gpu)
    if kernel == "flash":
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        padded = [_pad(tensor, 8) for tensor in (query, key, value)]
        made = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return made[..., : query.shape[-1]] if made.shape[-1] != query.shape[-1] else made
    mask = _float_mask(attn_mask, query.dtype)
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keeps, dropout_p, is_causal, False, scale=scale
        )[0]
    if kernel == "efficient":
        mask = None if mask is None else _aligned(mask, query, key)
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[
            0
        ]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _pad(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """The last dimension as long as a multiple of ``multiple``: a copy, unless it is."""
    missing = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, missing)) if missing else tensor


def _float_mask(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A mask of booleans as numbers that are added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    made = torch.zeros_like(mask, dtype=dtype)
    made.masked_fill_(mask.logical_not(), -math.inf)
    return made


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask whose rows are aligned, for each batch and head; copied only if its rows are not."""
    length = mask.shape[-1]
    missing = -length % _MASK_LINE
    if missing:
        mask = F.pad(mask, (0, missing))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
