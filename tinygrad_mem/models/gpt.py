"""GPT-2, with nanoGPT's names.

A state dict of nanoGPT's loads as it is. Memory is linear in the tokens: no (T, T) scores are kept. All names here are
PyTorch's, and this file runs under PyTorch with its imports changed. So its MLP does not use ``techniques.tiled``, which
PyTorch has not: for tiles of tokens see ``llama.py``. Its loss computes some tokens at a time, with what both have.

Source: Radford et al., *Language models are unsupervised multitask learners*, 2019.
"""

from __future__ import annotations

import math

from .. import Tensor, arange, nn
from ..nn import functional as F

# (layers, heads, width)
SIZES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}


class CausalSelfAttention(nn.Module):
    """Each token looks at those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(dropout)
        self.resid_dropout = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        parts = self.c_attn(x).split(width, 2)  # N, T, width
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in parts)  # N, heads, T, head
        p = self.attn_dropout.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)  # N, heads, T, head
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(n, t, width)))


class MLP(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """Attention and a small network, each with a norm before it and a residual sum after it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary); the output projection is the embedding's weight.

    For training ask :meth:`loss`, which needs no logits of all tokens at once.
    """

    def __init__(
        self, layers: int, heads: int, width: int, context: int = 1024, vocabulary: int = 50257, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(context, width),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Block(width, heads, dropout) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                scale = 0.02 / math.sqrt(2 * layers) if name.endswith("c_proj") else 0.02
                nn.init.normal_(module.weight, 0.0, scale)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.lm_head(self.hidden(tokens))

    def loss(self, tokens: Tensor, targets: Tensor, loss_chunk: int | None = 1024) -> Tensor:
        """Mean cross-entropy of ``targets`` (N, T), the tokens that should come next; positions with -100 are ignored.

        Args:
            loss_chunk: the number of tokens whose logits are in memory at a time; backward computes them again. ``None``: all
                tokens. For 16,384 tokens and GPT-2's vocabulary, logits take 3.1 GiB in float32, and their gradient as much.
        """
        options = None if loss_chunk is None else nn.LinearCrossEntropyOptions(batch_chunk_size=loss_chunk)
        x = self.hidden(tokens).flatten(0, 1)  # N T, width
        return F.linear_cross_entropy(x, self.lm_head.weight, targets.flatten(), options=options)

    def hidden(self, tokens: Tensor) -> Tensor:
        """(N, T) -> (N, T, width): the input of the output projection."""
        parts = self.transformer
        x = parts.drop(parts.wte(tokens) + parts.wpe(arange(tokens.shape[1], device=tokens.device)))  # N, T, width
        for block in parts.h:
            x = block(x)
        return parts.ln_f(x)


def gpt(size: str = "gpt2", context: int = 1024) -> GPT:
    """By size: "gpt2" (124,439,808 parameters), "gpt2-medium", "gpt2-large", "gpt2-xl".

    Raises:
        ValueError: there is no such size.
    """
    if size not in SIZES:
        raise ValueError(f"gpt: the size is one of {', '.join(SIZES)}, found {size!r}")
    return GPT(*SIZES[size], context=context)
