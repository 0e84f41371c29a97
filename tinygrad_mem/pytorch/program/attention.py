"""Attention as on CUDA: the call of the kernel that :func:`.kernels.attention.backend` names. In evaluation
``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` are one op for a whole layer, which is made of others.

Source: PyTorch, below ``aten/src/ATen/native/transformers``: ``attention.cpp``; ``transformer.cpp``,
``transformer_encoder_layer_forward``; ``cuda/attention.cu``, ``native_multi_head_attention_cuda``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .composite import first_of
from .kernels import Gpu
from .kernels.attention import backend
from .kernels.call import named

aten = torch.ops.aten
Bound = Callable[[int, str], None]
_MATH = (
    "what nn.MultiheadAttention takes in evaluation where no fused attention runs: counted as that of PyTorch's formula for "
    "scaled dot-product attention"
)
_GIVEN = "query", "key", "value"
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
    if not query.dtype == key.dtype == value.dtype:
        given = ", ".join(f"{name}.dtype: {each.dtype}" for name, each in zip(_GIVEN, (query, key, value), strict=True))
        raise RuntimeError(f"Expected query, key, and value to have the same dtype, but got {given} instead.")
    kernel = backend(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, gpu)
    if kernel == "flash":
        size = query.shape[-1]
        scale = 1 / math.sqrt(size) if scale is None else scale
        padded = [_pad(tensor, 8) for tensor in (query, key, value)]
        made = first_of(aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale))
        return made[..., :size] if made.shape[-1] != size else made
    mask = _float_mask(attn_mask, query.dtype, gpu)
    keeps = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    options = keeps, dropout_p, is_causal
    if kernel == "cudnn":
        return first_of(aten._scaled_dot_product_cudnn_attention(query, key, value, mask, *options, False, scale=scale))
    if kernel == "efficient":
        mask = None if mask is None else _align_mask(mask, query, key)
        return first_of(aten._scaled_dot_product_efficient_attention(query, key, value, mask, *options, scale=scale))
    return first_of(
        aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    )


def _pad(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """A tensor whose last dimension is padded to a multiple of ``multiple``: a copy, if it is not one already."""
    missing = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, missing)) if missing else tensor


def _float_mask(mask: torch.Tensor | None, dtype: torch.dtype, gpu: Gpu) -> torch.Tensor | None:
    """A boolean mask converted to numbers that are added to the scores. Source: ``convert_boolean_attn_mask``."""
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


def _align_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask with aligned rows, for each batch and head; copied only if rows are not aligned. Source: ``preprocess_mask``."""
    if mask.stride(-1) != 1 or any(stride % _MASK_LINE for stride in mask.stride()[:-1]):
        length = mask.shape[-1]
        mask = F.pad(mask, (0, _MASK_LINE - length % _MASK_LINE))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


# --- whole layers ---------------------------------------------------------------------------------------------------------


def whole_layers(gpu: Gpu, bound: Bound) -> dict[str, Callable[..., Any]]:
    """The ops by name; ``bound`` is called with the bytes that they may take beyond what is counted."""
    layer = partial(_attention_layer, gpu, bound)
    return {"_native_multi_head_attention": layer, "_transformer_encoder_layer_fwd": partial(_encoder_layer, layer)}


def _attention_layer(gpu: Gpu, bound: Bound, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    given = named(aten._native_multi_head_attention.default, args, kwargs)
    query, mask, need_weights = given["query"], given["mask"], given["need_weights"]
    width, heads, (batch, tokens, _) = given["embed_dim"], given["num_head"], query.shape
    parts = F.linear(query, given["qkv_weight"], given["qkv_bias"])
    q, k, v = (part.view(batch, -1, heads, width // heads).transpose(1, 2) for part in parts.chunk(3, -1))
    fused = query is given["key"] is given["value"] and width // heads % 8 == 0 and not need_weights
    if not fused or backend(q, k, v, mask, gpu=gpu) not in ("flash", "efficient"):
        bound(2 * batch * heads * tokens * tokens * query.element_size() + 4 * parts.numel() * query.element_size(), _MATH)
    found = aten.scaled_dot_product_attention(q, k, v, None if mask is None else _expand_mask(mask, heads))
    joined = found.transpose(1, 2).reshape(batch, -1, width)
    shape = (batch, tokens, tokens) if given["average_attn_weights"] else (batch, heads, tokens, tokens)
    made = F.linear(joined, given["proj_weight"], given["proj_bias"])
    del found, joined  # before the projections
    return made, query.new_empty(shape) if need_weights else None


def _expand_mask(mask: torch.Tensor, heads: int) -> torch.Tensor:
    return mask[:, None, None, :].expand(-1, heads, -1, -1) if mask.dim() == 2 and mask.shape[0] != mask.shape[1] else mask


def _encoder_layer(attention: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.Tensor:
    given = named(aten._transformer_encoder_layer_fwd.default, args, kwargs)
    source, width, norm_first = given["src"], given["embed_dim"], given["norm_first"]
    norm = partial(F.layer_norm, normalized_shape=(width,), eps=given["eps"])
    first, second = (partial(norm, weight=given[f"norm_weight_{n}"], bias=given[f"norm_bias_{n}"]) for n in (1, 2))
    projections = [given[name] for name in ("qkv_weight", "qkv_bias", "proj_weight", "proj_bias")]
    x = first(source) if norm_first else source
    x = attention(x, x, x, width, given["num_heads"], *projections, given["mask"], False, True, given["mask_type"])[0]
    x = x.add_(source) if norm_first else first(x.add_(source))
    before = x
    x = second(x) if norm_first else x
    x = _feed_forward(x, given).add_(before)
    return x if norm_first else second(x)


def _feed_forward(x: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    rows = x.view(-1, x.shape[-1])
    inner = aten._addmm_activation(given["ffn_bias_1"], rows, given["ffn_weight_1"].t(), use_gelu=given["use_gelu"])
    return F.linear(inner, given["ffn_weight_2"], given["ffn_bias_2"]).view(x.shape)
