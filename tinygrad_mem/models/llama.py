"""The family of language models that began with Llama: Llama 2 and 3, Mistral, Qwen 2 and 3, Gemma 2 and 3, Phi-3, Mixtral.

One file for all, because they differ in a few places: biases, norms of query and key, windows, Gemma's norms, experts.
Parameters have the names and shapes of Hugging Face's transformers, and published weights load (``weights.py``). Memory is
linear in the tokens: no matrix of scores is kept.

Sources: Touvron et al., *Llama 2*, 2023; Jiang et al., *Mistral 7B*, 2023, and *Mixtral of experts*, 2024; Gemma Team, *Gemma
2*, 2024, and *Gemma 3*, 2025; Abdin et al., *Phi-3*, 2024; Qwen Team, *Qwen 2*, 2024, and *Qwen 3*, 2025.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import Tensor, arange, empty, float32, int32, nn, no_grad, searchsorted, tensor, zeros
from ..errors import ArgumentError
from ..nn import functional as F
from ..nn.attention.varlen import varlen_attn
from ..techniques import tiled
from .configuration import Configuration, Rope, configuration
from .key_values import Cache
from .rotary import frequencies, rotate


class GemmaNorm(nn.Module):
    """Divides by the root of the mean square, and multiplies by 1 + weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight + 1, self.eps)


def _norm(config: Configuration, size: int) -> nn.Module:
    return GemmaNorm(size, config.rms_norm_eps) if config.gemma else nn.RMSNorm(size, config.rms_norm_eps)


class Attention(nn.Module):
    """Each token looks at those before it, or at the last few of them. Several query heads share one head of keys."""

    def __init__(self, config: Configuration, layer: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.scale, self.window, self.cap = config.scale, config.windows[layer], config.attn_logit_softcapping
        self.dropout, self.layer = config.attention_dropout, layer
        width, inner, keys = config.hidden_size, self.heads * self.head, self.key_heads * self.head
        if config.fused:
            self.qkv_proj = nn.Linear(width, inner + 2 * keys, bias=config.attention_bias)
        else:
            self.q_proj = nn.Linear(width, inner, bias=config.attention_bias)
            self.k_proj = nn.Linear(width, keys, bias=config.attention_bias)
            self.v_proj = nn.Linear(width, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(inner, width, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = _norm(config, self.head), _norm(config, self.head)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, -1, self.head) for part in self._project(x))  # N, T, heads, head
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, *rotation), rotate(k, *rotation)
        if cache is not None:
            k, v = cache.update(self.layer, k, v)
        return self.o_proj(self._attend(q, k, v).reshape(n, t, -1))

    def _project(self, x: Tensor) -> Sequence[Tensor]:
        if not hasattr(self, "qkv_proj"):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)
        keys = self.key_heads * self.head
        return self.qkv_proj(x).split([self.heads * self.head, keys, keys], -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention without a matrix of scores: the sequences of the batch are concatenated."""
        n, t, s = q.shape[0], q.shape[1], k.shape[1]
        before = -1 if self.window is None else self.window - 1
        starts = [tensor(range(0, n * size + 1, size), dtype=int32, device=q.device) for size in (t, s)]
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        y = varlen_attn(
            *(q, k, v, starts[0], starts[1], t, s),
            scale=self.scale,
            window_size=(before, 0),
            enable_gqa=True,
            dropout_p=self.dropout if self.training else 0.0,
            softcap=self.cap,
        )
        return y.view(n, t, self.heads, self.head)


Turns = tuple[tuple[Tensor, Tensor], ...]  # for each of a model's position embeddings, cosines and sines


def _distinct(config: Configuration) -> list[Rope]:
    return [rope for i, rope in enumerate(config.ropes) if rope not in config.ropes[:i]]


def rotations(config: Configuration, start: int, tokens: int, length: int, like: Tensor) -> Turns:
    """The cosines and sines (tokens, 1, half of a head's rotated part) from position ``start`` on.

    ``length``: of the whole sequence.
    """
    made = []
    places = arange(start, start + tokens, device=like.device, dtype=float32)[:, None, None]
    for rope in _distinct(config):
        turns, factor = frequencies(rope, config, length)
        angles = places * tensor(turns, dtype=float32, device=like.device)
        cos, sin = angles.cos(), angles.sin()
        made.append(((cos * factor).to(like.dtype), (sin * factor).to(like.dtype)))
    return tuple(made)


class MLP(nn.Module):
    """A gated network: down(act(gate(x)) * up(x)).

    Attributes:
        tile: the number of tokens that are computed at a time, and again in backward; ``None``: all, once.
    """

    tile: int | None = None

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        if config.fused:
            self.gate_up_proj = nn.Linear(width, 2 * inner, bias=bias)
        else:
            self.gate_proj = nn.Linear(width, inner, bias=bias)
            self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        return tiled(self._untiled, x, self.tile)

    def _untiled(self, x: Tensor) -> Tensor:
        if hasattr(self, "gate_up_proj"):
            gate, up = self.gate_up_proj(x).chunk(2, -1)
            return self.down_proj(_activate(gate, self.activation) * up)
        return self.down_proj(_activate(self.gate_proj(x), self.activation) * self.up_proj(x))


def _activate(x: Tensor, name: str) -> Tensor:
    return F.silu(x) if name == "silu" else F.gelu(x, approximate="tanh")


class Router(nn.Module):
    """Chooses the experts of each token: (tokens, width) -> their weights and numbers, (tokens, experts per token)."""

    def __init__(self, config: Configuration, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(zeros(experts, config.hidden_size))
        self.number, self.normalized = config.experts_per_token, config.norm_topk_prob

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = F.linear(x, self.weight).softmax(-1, dtype=float32).topk(self.number, -1)
        if self.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), chosen


class Experts(nn.Module):
    """The weights of all experts of a layer, and the MLP of each on the tokens that chose it."""

    def __init__(self, config: Configuration, experts: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.expert_size
        self.gate_up_proj = nn.Parameter(empty(experts, 2 * inner, width))
        self.down_proj = nn.Parameter(empty(experts, width, inner))
        self.activation = config.activation

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x (rows, width): the rows of the first expert, then those of the second, and so on; ``ends`` says where each ends."""
        gate, up = F.grouped_mm(x, self.gate_up_proj.mT, offs=ends).chunk(2, -1)
        return F.grouped_mm(_activate(gate, self.activation) * up, self.down_proj.mT, offs=ends)


class SparseMoE(nn.Module):
    """A mixture of experts: each token goes through the few that the router chooses for it.

    Memory does not depend on which experts are chosen: there are as many rows if all tokens choose the same ones.

    Attributes:
        tile: as of :class:`MLP`.
    """

    tile: int | None = None

    def __init__(self, config: Configuration, experts: int) -> None:
        super().__init__()
        self.gate, self.experts = Router(config, experts), Experts(config, experts)

    def forward(self, x: Tensor) -> Tensor:
        return tiled(self._untiled, x, self.tile)

    def _untiled(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)  # N T, width
        weights, chosen = self.gate(tokens)
        chosen, order = chosen.flatten().sort(stable=True)  # rows in the order of their experts
        numbers = arange(self.gate.weight.shape[0], device=x.device)
        ends = searchsorted(chosen, numbers, right=True).to(int32)
        sources = order // weights.shape[1]
        rows = self.experts(tokens[sources], ends) * weights.flatten()[order, None]
        return zeros(tokens.shape, dtype=x.dtype, device=x.device).index_add(0, sources, rows).view(x.shape)


class Block(nn.Module):
    """Attention and an MLP or experts, each with a norm before it and a residual sum after it."""

    def __init__(self, config: Configuration, layer: int) -> None:
        super().__init__()
        experts = config.experts[layer]
        self.self_attn = Attention(config, layer)
        self.mlp = SparseMoE(config, experts) if experts else MLP(config)
        names = ["input_layernorm", "post_attention_layernorm"]
        if config.gemma:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in names:
            setattr(self, name, _norm(config, config.hidden_size))
        self.gemma, self.turn = config.gemma, _distinct(config).index(config.ropes[layer])

    def forward(self, x: Tensor, turns: Turns, cache: Cache | None = None) -> Tensor:
        rotation = turns[self.turn]
        if not self.gemma:
            x = x + self.self_attn(self.input_layernorm(x), rotation, cache)
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), rotation, cache))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Decoder(nn.Module):
    """Tokens (N, T) -> (N, T, width): the embedding, the blocks, and a last norm."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = _norm(config, config.hidden_size)

    def forward(self, tokens: Tensor, cache: Cache | None, length: int) -> Tensor:
        """``length``: of the sequence, for position embeddings that depend on it."""
        x = self.embed_tokens(tokens)
        if self.config.gemma:
            x = x * tensor(math.sqrt(self.config.hidden_size), dtype=x.dtype, device=x.device)  # rounded to the dtype
        turns = rotations(self.config, 0 if cache is None else cache.length, tokens.shape[1], length, x)
        for block in self.layers:
            x = block(x, turns, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.norm(x)


class LanguageModel(nn.Module):
    """Tokens (N, T) -> logits (N, T, vocabulary). For training call :meth:`loss`, which need not have all logits in memory.

    Attributes:
        tile: the number of tokens whose logits :meth:`loss` has in memory at a time; ``None``: all.
    """

    tile: int | None = None

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, 0.0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def in_tiles(self, tile: int | None) -> LanguageModel:
        """Let MLPs, experts and the loss compute ``tile`` tokens at a time from now on. Returns the model."""
        for module in self.modules():
            if hasattr(module, "tile"):
                module.tile = tile
        return self

    def forward(self, tokens: Tensor, cache: Cache | None = None, last: int | None = None) -> Tensor:
        """The logits.

        Args:
            cache: keys and values of the tokens before these.
            last: compute the logits of this number of last tokens only.

        Raises:
            ArgumentError: the sequence is longer than the model's.
        """
        x = self.hidden(tokens, cache)
        return self._logits(x if last is None else x[:, -last:])

    @no_grad()
    def prefill(self, tokens: Tensor, cache: Cache, piece: int) -> Tensor:
        """Read a prompt (N, T) in pieces: keys and values go to the cache. Returns the logits of the last token, (N, 1, V).

        They are those of ``self(tokens, cache, last=1)`` up to rounding. Memory is that of a piece, not of the whole prompt.

        Args:
            piece: the tokens of a piece.

        Raises:
            ArgumentError: ``piece`` is not positive; the prompt is longer than the model's sequences or the cache.
        """
        if piece < 1:
            raise ArgumentError(f"prefill: a piece has 1 token or more, found {piece}")
        length = cache.length + tokens.shape[1]
        *before, last = tokens.split(piece, 1)
        for part in before:
            self.hidden(part, cache, length)
        return self._logits(self.hidden(last, cache, length)[:, -1:])

    def _logits(self, x: Tensor) -> Tensor:
        logits, cap = self.lm_head(x), self.config.final_logit_softcapping
        return logits if cap is None else (logits / cap).tanh() * cap

    def hidden(self, tokens: Tensor, cache: Cache | None = None, length: int = 0) -> Tensor:
        """(N, T) -> (N, T, width): the input of the output projection.

        Args:
            length: the tokens that the sequence will have, if more are to come: some position embeddings depend on it.
        """
        length = max(length, tokens.shape[1] + (0 if cache is None else cache.length))
        if length > self.config.longest:
            raise ArgumentError(
                f"{length} tokens: this model has positions for {self.config.longest}. A longer context needs another "
                "max_position_embeddings in its config.json, and usually a rope_scaling"
            )
        return self.model(tokens, cache, length)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of ``targets`` (N, T), the tokens that should come next; positions with -100 are ignored.

        With :attr:`tile`, backward computes the logits of each tile again.
        """
        options = None if self.tile is None else nn.LinearCrossEntropyOptions(batch_chunk_size=self.tile)
        hidden, cap = self.hidden(tokens).flatten(0, 1), self.config.final_logit_softcapping
        return F.linear_cross_entropy(hidden, self.lm_head.weight, targets.flatten(), options=options, softcap=cap)


def llama(source: Configuration | str | Path | Mapping[str, Any]) -> LanguageModel:
    """The model of a configuration, of a ``config.json``, or of a dict with its fields. Its weights are random.

    Raises:
        ArgumentError: see :func:`~tinygrad_mem.models.configuration.configuration`.
    """
    return LanguageModel(source if isinstance(source, Configuration) else configuration(source))
