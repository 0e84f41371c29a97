"""Scaled dot-product attention as on CUDA: which kernel runs, and what goes into it.

Source: PyTorch, ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` for the choice, ``attention.cpp`` beside it for the
call. cuDNN's kernel, which PyTorch takes only where it is asked to, is not predicted.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_WIDEST = 256  # elements of a head that flash attention takes
_MASK_LINE = 16  # elements: rows of a mask begin at multiples of it


def attention(
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
    """``aten::scaled_dot_product_attention`` of tensors on the GPU."""
    kernel = backend(query, key, value, attn_mask, is_causal, enable_gqa)
    if kernel == "flash":
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        padded = [_pad(tensor, 8) for tensor in (query, key, value)]
        made = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return made[..., : query.shape[-1]] if made.shape[-1] != query.shape[-1] else made
    mask = _float_mask(attn_mask, query.dtype)
    if kernel == "efficient":
        keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        mask = None if mask is None else _aligned(mask, query, key)
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[
            0
        ]
    return aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> str:
    """The kernel that PyTorch takes on a GPU of compute capability 8.0 or 9.0: ``flash``, ``efficient`` or ``math``."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or not query.dtype == key.dtype == value.dtype:
        return "math"
    if torch.backends.cuda.flash_sdp_enabled() and _flash(query, key, value, mask, is_causal, enable_gqa):
        return "flash"
    if torch.backends.cuda.mem_efficient_sdp_enabled() and _efficient(query, key, value, enable_gqa):
        return "efficient"
    return "math"


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    """Only without a mask, in half precision."""
    width = query.shape[-1]
    return (
        mask is None
        and query.dtype in _HALVES
        and width == key.shape[-1] == value.shape[-1] <= _WIDEST
        and _same_batches(query, key, value, enable_gqa)
        and not (is_causal and query.shape[-2] != key.shape[-2])
        and _lies_well(query, key, value)
    )


def _efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    """With a mask too, and in float32; heads of whole vectors of 16 bytes."""
    vector = 16 // query.element_size()
    return (
        query.dtype in (*_HALVES, torch.float32)
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % vector == 0
        and value.shape[-1] % vector == 0
        and not enable_gqa
        and _same_batches(query, key, value, False)
        and _lies_well(query, key, value)
    )


def _same_batches(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> bool:
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        return False
    return query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)


def _lies_well(*tensors: torch.Tensor) -> bool:
    """Heads are not scattered, and there is something to attend to."""
    return all(tensor.stride(-1) == 1 and tensor.shape[-2] > 0 for tensor in tensors)


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
