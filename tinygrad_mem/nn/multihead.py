"""Attention of several heads as a layer."""

from __future__ import annotations

from typing import Any

from ..autograd.tensor import Tensor
from ..functional import creation
from ..functional.multi_head import Heads, multi_head
from . import init
from .linear import Linear
from .module import Module
from .parameter import Parameter

__all__ = ("MultiheadAttention",)


class NonDynamicallyQuantizableLinear(Linear):
    """A linear layer, under PyTorch's name for it in attention layers."""


class MultiheadAttention(Module):
    """Attention between projections: query (L, N, E), key (S, N, kdim), value (S, N, vdim) -> (L, N, E) and the weights.

    Without weights (``need_weights=False``) nothing of size L x S is ever in memory. The three projections of
    self-attention are one product, whose result is kept for backward, and one gradient.

    Args:
        dropout: of the softmax, in training.
        add_bias_kv: append a learned token to keys and values.
        add_zero_attn: append a token of zeros to keys and values.
        kdim, vdim: by default E.
        batch_first: tensors are (N, L, E).

    Raises:
        ValueError: ``embed_dim`` or ``num_heads`` is not positive.
        AssertionError: the heads do not divide ``embed_dim``.

    Source: Vaswani et al., *Attention is all you need*, 2017.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                f"embed_dim and num_heads must be greater than 0, got embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError(f"embed_dim must be divisible by num_heads: {embed_dim} is not by {num_heads}")
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.head_dim, self.add_zero_attn = embed_dim // num_heads, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        made: dict[str, Any] = {"device": device, "dtype": dtype}

        def parameter(*shape: int) -> Parameter:
            return Parameter(creation.empty(*shape, **made))

        if self._qkv_same_embed_dim:
            self.in_proj_weight = parameter(3 * embed_dim, embed_dim)
            for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                self.register_parameter(name, None)
        else:
            self.q_proj_weight = parameter(embed_dim, embed_dim)
            self.k_proj_weight = parameter(embed_dim, self.kdim)
            self.v_proj_weight = parameter(embed_dim, self.vdim)
            self.register_parameter("in_proj_weight", None)
        self.register_parameter("in_proj_bias", parameter(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, **made)
        self.bias_k = parameter(1, 1, embed_dim) if add_bias_kv else None
        self.bias_v = parameter(1, 1, embed_dim) if add_bias_kv else None
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        """Initialize the parameters again."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The result, and the weights or ``None``.

        Args:
            key_padding_mask: (N, S), True where a key is padding; or floating, added to the scores.
            need_weights: also return the weights, (N, L, S), which are then a matrix in memory.
            attn_mask: (L, S) or (N * num_heads, L, S), True where a query must not see a key; or floating, added.
            average_attn_weights: average the weights over the heads; else they are (N, num_heads, L, S).
            is_causal: a hint that ``attn_mask`` is the causal triangle. Without weights the mask is then not read.

        Raises:
            ShapeError: shapes that do not fit, or ``is_causal`` without a mask.
        """
        separate = None if self._qkv_same_embed_dim else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return multi_head(
            *(query, key, value, self.embed_dim, Heads(self.num_heads, self.batch_first)),
            (self.in_proj_weight, separate, self.in_proj_bias),
            (self.bias_k, self.bias_v, self.add_zero_attn),
            (self.out_proj.weight, self.out_proj.bias),
            self.dropout if self.training else 0.0,
            (key_padding_mask, attn_mask, is_causal),
            need_weights,
            average_attn_weights,
        )
