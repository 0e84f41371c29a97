"""``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` in evaluation: one op for a whole layer, made of these on CUDA.

Source: PyTorch, ``aten/src/ATen/native/transformers/transformer.cpp``, ``transformer_encoder_layer_forward``;
``transformers/cuda/attention.cu``, ``native_multi_head_attention_cuda``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from .kernels import Gpu
from .kernels.attention import backend

aten = torch.ops.aten
Bound = Callable[[int, str], None]
_MATH = (
    "what nn.MultiheadAttention takes in evaluation where no fused attention runs: counted as that of PyTorch's formula for "
    "scaled dot-product attention"
)


def whole_layers(gpu: Gpu, bound: Bound) -> dict[str, Callable[..., Any]]:
    """The ops by name; ``bound`` hears how much more they may take."""
    attention = partial(_attention, gpu, bound)
    return {"_native_multi_head_attention": attention, "_transformer_encoder_layer_fwd": partial(_encoder, attention)}


def _attention(
    gpu: Gpu,
    bound: Bound,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, tokens, _ = query.shape
    parts = F.linear(query, weight, bias)
    q, k, v = (part.view(batch, -1, heads, width // heads).transpose(1, 2) for part in parts.chunk(3, -1))
    fused = query is key and key is value and width // heads % 8 == 0 and not need_weights
    if not fused or backend(q, k, v, mask, gpu=gpu) not in ("flash", "efficient"):
        bound(2 * batch * heads * tokens * tokens * query.element_size() + 4 * parts.numel() * query.element_size(), _MATH)
    found = aten.scaled_dot_product_attention(q, k, v, None if mask is None else _spread(mask, heads))
    joined = found.transpose(1, 2).reshape(batch, -1, width)
    shape = (batch, tokens, tokens) if average else (batch, heads, tokens, tokens)
    made = F.linear(joined, out_weight, out_bias)
    del found, joined  # before the projections
    return made, query.new_empty(shape) if need_weights else None


def _spread(mask: torch.Tensor, heads: int) -> torch.Tensor:
    return mask[:, None, None, :].expand(-1, heads, -1, -1) if mask.dim() == 2 and mask.shape[0] != mask.shape[1] else mask


def _encoder(
    attention: Callable[..., Any],
    source: torch.Tensor,
    width: int,
    heads: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    gelu: bool,
    norm_first: bool,
    eps: float,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    first, second = (
        partial(F.layer_norm, normalized_shape=(width,), weight=w, bias=b, eps=eps)
        for w, b in ((weight_1, bias_1), (weight_2, bias_2))
    )
    x = first(source) if norm_first else source
    x = attention(x, x, x, width, heads, weight, bias, out_weight, out_bias, mask, False, True, mask_type)[0]
    x = x.add_(source) if norm_first else first(x.add_(source))
    before = x
    x = second(x) if norm_first else x
    x = _wide(x, up, up_bias, down, down_bias, gelu).add_(before)
    return x if norm_first else second(x)


def _wide(x: torch.Tensor, up: torch.Tensor, up_bias: Any, down: torch.Tensor, down_bias: Any, gelu: bool) -> torch.Tensor:
    rows = x.view(-1, x.shape[-1])
    inner = aten._addmm_activation(up_bias, rows, up.t(), use_gelu=gelu)
    return F.linear(inner, down, down_bias).view(x.shape)
