"""Encoder and decoder of the transformer, with PyTorch's names.

Attention returns no weights here, so its memory is linear in the number of tokens.

Source: Vaswani et al., *Attention is all you need*, 2017.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..autograd.tensor import Tensor
from ..functional import creation
from ..scope import local
from . import functional as F
from . import init
from .activation import GELU, ReLU
from .containers import ModuleList
from .dropout import Dropout
from .linear import Linear
from .module import Module
from .multihead import MultiheadAttention
from .norm import LayerNorm

__all__ = ("Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer")


def _activation(name: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if callable(name):
        return name
    if name not in ("relu", "gelu"):
        raise RuntimeError(f"activation should be relu/gelu, not {name}")
    return F.relu if name == "relu" else F.gelu


def _clones(layer: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(layer) for _ in range(count)])


class _TransformerLayer(Module):
    """The base of both layers: attentions and a small network, each with a residual connection, a norm and a dropout.

    Saves what its parts save. Attention saves its three projections, its result and one number per head and token, never the
    scores.
    """

    attentions: tuple[str, ...]

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        for name in self.attentions:
            setattr(self, name, MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, **made))
        self.linear1 = Linear(d_model, dim_feedforward, **made)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **made)
        self.norm_first = norm_first
        parts = range(1, len(self.attentions) + 2)  # the attentions and the network
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, eps=layer_norm_eps, **made))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = _activation(activation)

    def _sa_block(self, x: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool) -> Tensor:
        return self.dropout1(self.self_attn(x, x, x, key_padding_mask, False, attn_mask, is_causal=is_causal)[0])

    def _ff_block(self, x: Tensor) -> Tensor:
        dropout = self.dropout2 if len(self.attentions) == 1 else self.dropout3
        return dropout(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoderLayer(_TransformerLayer):
    """Self-attention and a small network, each with a residual connection and a norm: (T, N, d_model) -> the same.

    Args:
        activation: "relu", "gelu" or a function.
        batch_first: tensors are (N, T, d_model).
        norm_first: norms come before attention and network, else after the residual sums.

    Raises:
        RuntimeError: another name of an activation.
    """

    attentions = ("self_attn",)

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Masks as in :class:`MultiheadAttention`.

        Raises:
            ShapeError: shapes that do not fit, or ``is_causal`` without a mask.
        """
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._ff_block(x))


class TransformerEncoder(Module):
    """Copies of an encoder layer, one after another.

    In evaluation, and where nothing is recorded, PyTorch leaves out padding, and the last layer's result is 0 there. Here it is
    computed, then set to 0, under the same conditions. :func:`nn.attention.varlen.varlen_attn` does not compute it.

    Args:
        norm: a module after the last layer, or ``None``.
        enable_nested_tensor: False: padding is never set to 0.
        mask_check: no effect: padding is set to 0 only if all of it is at the end.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _clones(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None
    ) -> Tensor:
        """Masks as in :class:`MultiheadAttention`. ``is_causal`` says that ``mask`` is the triangle: values are not read."""
        y = src
        for layer in self.layers:
            y = layer(y, mask, src_key_padding_mask, bool(is_causal))
        if src_key_padding_mask is not None and mask is None and self._leaves_out_padding(src):
            hidden = src_key_padding_mask != 0
            at_the_end = (hidden[:, 1:] >= hidden[:, :-1]).all()
            y = y.masked_fill((hidden & at_the_end).unsqueeze(-1), 0)
        return y if self.norm is None else self.norm(y)

    def _leaves_out_padding(self, src: Tensor) -> bool:
        """PyTorch's conditions, but for those of the masks."""
        first: Any = self.layers[0]
        if not (self.enable_nested_tensor and isinstance(first, TransformerEncoderLayer)) or first.training or first.norm_first:
            return False
        attn, activation = first.self_attn, first.activation
        simple = activation in (F.relu, F.gelu) or isinstance(activation, (ReLU, GELU))
        fits = attn.batch_first and attn.in_proj_bias is not None and attn.num_heads % 2 == 0
        recorded = local.grad_enabled and any(t.requires_grad for t in (src, *first.parameters()))
        same = first.norm1.eps == first.norm2.eps
        return simple and fits and same and src.ndim == 3 and local.autocast is None and not recorded


class TransformerDecoderLayer(_TransformerLayer):
    """Self-attention, attention to the encoder's result, a small network: (T, N, d_model), (S, N, d_model) -> (T, N, d_model).

    Arguments as :class:`TransformerEncoderLayer`.
    """

    attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Masks as in :class:`MultiheadAttention`. Raises: ShapeError: shapes that do not fit, or a hint without its mask."""
        x = tgt
        own, other = (tgt_mask, tgt_key_padding_mask, tgt_is_causal), (memory_mask, memory_key_padding_mask, memory_is_causal)
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *own)
            x = x + self._mha_block(self.norm2(x), memory, *other)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *own))
        x = self.norm2(x + self._mha_block(x, memory, *other))
        return self.norm3(x + self._ff_block(x))

    def _mha_block(
        self, x: Tensor, mem: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return self.dropout2(self.multihead_attn(x, mem, mem, key_padding_mask, False, attn_mask, is_causal=is_causal)[0])


class TransformerDecoder(Module):
    """Copies of a decoder layer, one after another.

    Args:
        norm: a module after the last layer, or ``None``.
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _clones(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Masks as in :class:`MultiheadAttention`. The hints say that a mask is the triangle; its values are not checked."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(Module):
    """Encoder and decoder: src (S, N, d_model), tgt (T, N, d_model) -> (T, N, d_model).

    Args:
        custom_encoder, custom_decoder: used instead of the encoder and decoder of the other arguments.

    Raises:
        RuntimeError: another name of an activation.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = F.relu,
        custom_encoder: Any = None,
        custom_decoder: Any = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        inside = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)

        if custom_encoder is not None:
            self.encoder = custom_encoder
        else:
            layer = TransformerEncoderLayer(*inside, device=device, dtype=dtype)
            self.encoder = TransformerEncoder(layer, num_encoder_layers, norm())
        if custom_decoder is not None:
            self.decoder = custom_decoder
        else:
            other = TransformerDecoderLayer(*inside, device=device, dtype=dtype)
            self.decoder = TransformerDecoder(other, num_decoder_layers, norm())
        self._reset_parameters()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def _reset_parameters(self) -> None:
        """Initialize all matrices again."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Masks as in :class:`MultiheadAttention`.

        Raises:
            RuntimeError: src and tgt have different batch sizes, or another width than ``d_model``.
        """
        axis = 0 if self.batch_first else 1
        if src.dim() == tgt.dim() == 3 and src.size(axis) != tgt.size(axis):
            raise RuntimeError(f"the batch number of src and tgt must be equal, found {list(src.shape)} and {list(tgt.shape)}")
        if src.size(-1) != self.d_model or tgt.size(-1) != self.d_model:
            raise RuntimeError(
                f"the feature number of src and tgt must be equal to d_model, {self.d_model}, found {list(src.shape)} and "
                f"{list(tgt.shape)}"
            )
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """(sz, sz): 0 on and below the diagonal, -inf above it, which hides later tokens."""
        return creation.full((sz, sz), float("-inf"), device=device, dtype=dtype).triu(1)
