"""A transformer over a mesh of ranks: data x pipeline x context x tensor (with sequence) parallel, for real or predicted.

Read it from top to bottom: the sizes, how a block is divided over ranks, a stage, and the training step. Tokens come first in
every tensor inside, (tokens, batch, width), so that what is gathered from other ranks is contiguous.

Source: Narayanan et al., *Efficient Large-Scale Language Model Training on GPU Clusters*, 2021; Korthikanti et
al., *Reducing Activation Recomputation in Large Transformer Models*, 2022; Llama Team, *The Llama 3 Herd of Models*, 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .. import Tensor, arange, bfloat16, float32, int64, nn, optim, outer, tensor, zeros
from ..distributed import DeviceMesh, init_device_mesh, init_process_group, is_initialized
from ..distributed.context_parallel import ring_attention
from ..distributed.fsdp import fully_shard
from ..distributed.optim import ZeroRedundancyOptimizer
from ..distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from ..distributed.regions import own
from ..distributed.tensor import Replicate, Shard
from ..distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
    vocabulary_parallel_cross_entropy,
)
from ..errors import ArgumentError
from ..nn import functional as F
from ..utils.checkpoint import checkpoint
from .published import published
from .rotary import radians, rotate


@dataclass(frozen=True)
class TransformerSize:
    """A network.

    Attributes:
        key_heads: heads of keys and values, each shared by ``heads / key_heads`` heads of queries.
        inner: the width inside of the MLP.
        llama: RMSNorm, SwiGLU, rotary positions and no biases; else LayerNorm, GELU, a table of positions and biases.
        dropout: after attention, after the MLP, and of the attention's weights. Ranks draw from generators of their own: seed
            them differently, except tensor parallel ranks without sequence parallel, which must drop the same.
        scores: attention as three ops, which keeps the weights of all pairs of tokens; else none are kept.
        recompute: ``""``; ``"selective"``, the attention between its projections; ``"full"``, each block.
    """

    layers: int
    width: int
    heads: int
    key_heads: int
    inner: int
    vocabulary: int
    tokens: int
    llama: bool = False
    dropout: float = 0.0
    scores: bool = False
    recompute: str = ""


def _llama(name: str) -> TransformerSize:
    """A published model, on the 8,192 tokens that it was pretrained with."""
    c = published(name)
    heads = c.num_attention_heads, c.num_key_value_heads
    sizes = c.num_hidden_layers, c.hidden_size, *heads, c.intermediate_size, c.vocab_size
    return TransformerSize(*sizes, 8192, llama=True)


SIZES = {
    "gpt3-175b": TransformerSize(96, 12288, 96, 96, 49152, 51200, 2048),  # the vocabulary is padded, as Megatron's
    **{name: _llama(name) for name in ("llama-3-8b", "llama-3-70b", "llama-3.1-405b")},
}


@dataclass(frozen=True)
class Mesh:
    """Ranks as a grid, tensor parallel ranks next to each other, and how a batch is cut.

    Attributes:
        data, pipeline, context, tensor: the ranks along each dimension; their product is the number of processes.
        chunks: stages of the pipeline on each rank; more than one are interleaved.
        sequence: between the layers of a block, tokens are divided over the tensor parallel ranks.
        micro: the samples of a micro-batch of one data parallel rank.
        count: the micro-batches of a step.
        gpipe: all forwards before all backwards.
        zero: what ranks with the same parameters and other samples divide: 0: nothing; 1: optimizer state; 2: also gradients;
            3: also parameters, of which a block at a time is gathered.
    """

    data: int = 1
    pipeline: int = 1
    context: int = 1
    tensor: int = 1
    chunks: int = 1
    sequence: bool = True
    micro: int = 1
    count: int = 1
    gpipe: bool = False
    zero: int = 0

    def ranks(self) -> int:
        """The number of processes."""
        return self.data * self.pipeline * self.context * self.tensor


# --- a block


class Attention(nn.Module):
    """Each token looks at those before it: this rank's heads, of all its context's tokens."""

    def __init__(self, size: TransformerSize, dtype: Any) -> None:
        super().__init__()
        self.size, self.depth = size, size.width // size.heads
        bias = not size.llama
        self.query = nn.Linear(size.width, size.width, bias, dtype=dtype)
        self.key_value = nn.Linear(size.width, 2 * size.key_heads * self.depth, bias, dtype=dtype)
        self.out = nn.Linear(size.width, size.width, bias, dtype=dtype)

    def forward(self, x: Tensor, angles: list[Tensor] | None, hidden: Tensor | None, context: Any) -> Tensor:
        q, kv = self.query(x), self.key_value(x)
        t, n, _ = q.shape
        q, kv = q.view(t, n, -1, self.depth), kv.view(t, n, -1, 2, self.depth)
        k, v = kv.unbind(3)
        if angles is not None:
            q, k = (rotate(x, angles[0], angles[1]) for x in (q, k))
        parts: Any = [part.permute(1, 2, 0, 3) for part in (q, k, v)]  # N, heads, T, depth
        del q, k, v, kv
        if self.size.recompute == "selective":
            y = checkpoint(self.core, *parts, hidden, context)
        else:
            y = self.core(parts[0], parts[1], parts[2], hidden, context)
        del parts
        return self.out(y.permute(2, 0, 1, 3).reshape(t, n, -1))

    def core(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, context: Any) -> Tensor:
        """(N, heads, T, depth) three times -> (N, heads, T, depth)."""
        if not self.size.scores:
            return ring_attention(q, k, v, context, is_causal=True)
        weights = (q @ k.mT).mul_(1 / math.sqrt(self.depth)).masked_fill_(hidden, -math.inf).softmax(-1)  # type: ignore[arg-type]
        return F.dropout(weights, self.size.dropout, self.training) @ v


class MLP(nn.Module):
    """Wider inside: GELU, or SiLU of a gate."""

    def __init__(self, size: TransformerSize, dtype: Any) -> None:
        super().__init__()
        bias = not size.llama
        self.gate = nn.Linear(size.width, size.inner, bias, dtype=dtype) if size.llama else None
        self.up = nn.Linear(size.width, size.inner, bias, dtype=dtype)
        self.down = nn.Linear(size.inner, size.width, bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it and a residual sum after it."""

    def __init__(self, size: TransformerSize, dtype: Any) -> None:
        super().__init__()
        self.attention_norm, self.attention = norm(size, dtype), Attention(size, dtype)
        self.mlp_norm, self.mlp = norm(size, dtype), MLP(size, dtype)
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, *how: Any) -> Tensor:
        x = x + self.drop(self.attention(self.attention_norm(x), *how))
        return x + self.drop(self.mlp(self.mlp_norm(x)))


def norm(size: TransformerSize, dtype: Any) -> nn.Module:
    """The norm of such a network."""
    return nn.RMSNorm(size.width, 1e-5, dtype=dtype) if size.llama else nn.LayerNorm(size.width, dtype=dtype)


# --- a stage


class Layers(nn.Module):
    """A stage of the pipeline: some blocks; the first has the table of tokens, the last the logits.

    Tokens (batch, tokens of this context rank), or the activations of the stage before -> activations, or logits (tokens *
    batch, this rank's part of the vocabulary).

    Args:
        grid: a device mesh with the dimensions context and tensor.

    Raises:
        ArgumentError: scores are to be kept of tokens that are divided over ranks.
    """

    def __init__(self, size: TransformerSize, mesh: Mesh, grid: DeviceMesh, stage: int, dtype: Any = bfloat16) -> None:
        super().__init__()
        stages = mesh.pipeline * mesh.chunks
        self.size, self.context, self.tensor = size, grid.get_group("context"), grid.get_group("tensor")
        self.first, self.last = stage == 0, stage == stages - 1
        between: Any = Shard(0) if mesh.sequence else Replicate()
        column, row = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
        alone: dict[str, Any] = {"*norm": SequenceParallel()} if mesh.sequence else {}
        plan = alone | {f"*.{name}": column for name in ("query", "key_value", "up")} | {"*.out": row, "*.down": row}
        plan |= {"*.gate": column} if size.llama else {}
        grid = grid["tensor"]
        if self.first:
            self.table = nn.Embedding(size.vocabulary, size.width, dtype=dtype)
            self.positions = None if size.llama else nn.Embedding(size.tokens, size.width, dtype=dtype)
            self.drop = nn.Dropout(size.dropout)
            parts = {"table": row} | ({"positions": SequenceParallel()} if self.positions is not None and alone else {})
            parallelize_module(self, grid, parts)
        made = (Block(size, dtype) for _ in range(layers_of(size.layers, stage, stages)))
        self.blocks = nn.ModuleList([parallelize_module(block, grid, plan) for block in made])
        if self.last:
            self.norm = norm(size, dtype)
            self.head = nn.Linear(size.width, size.vocabulary, False, dtype=dtype)
            parallelize_module(self, grid, {"head": column} | ({"norm": SequenceParallel()} if alone else {}))
        self._make_tables(dtype)
        self.sequence = mesh.sequence

    def _make_tables(self, dtype: Any) -> None:
        """The angles of rotary positions, or the pairs of tokens that are hidden: the same for all blocks and ranks."""
        tokens, depth = arange(self.size.tokens, dtype=float32), self.size.width // self.size.heads
        for name in ("cos", "sin", "hidden"):
            self.register_buffer(name, None)
        if self.size.llama:
            angles = outer(tokens, tensor(radians(500_000.0, depth)))  # T, depth / 2
            self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        if self.size.scores:
            self.hidden = tokens[None] > tokens[:, None]

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self._embed(x)  # T, N, width
        tables = None if self.cos is None else [own(x, self.context)[:, None, None] for x in (self.cos, self.sin)]
        how = tables, self.hidden, self.context
        for block in self.blocks:
            x = checkpoint(block, x, *how) if self.size.recompute == "full" else block(x, *how)
        return self.head(self.norm(x)).flatten(0, 1) if self.last else x

    def _embed(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens.t())
        if self.positions is not None:
            places = own(arange(self.size.tokens), self.context)
            x = x + self.positions(own(places, self.tensor) if self.sequence else places)[:, None]
        return self.drop(x)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of this rank's tokens; targets (batch, tokens)."""
        return vocabulary_parallel_cross_entropy(logits, targets.t().reshape(-1), self.tensor)


def layers_of(layers: int, stage: int, stages: int) -> int:
    """The blocks of a stage: as many on each, but fewer on the last and the first, which have the logits and the table.

    >>> [layers_of(126, stage, 16) for stage in (0, 1, 14, 15)]
    [7, 8, 8, 7]
    """
    most = -(-layers // stages)
    from_the_ends = 2 * stage + 1 if stage < stages / 2 else 2 * (stages - 1 - stage)  # last, first, last but one, second, ...
    return most - (from_the_ends < most * stages - layers)


# --- the training step


def reason_against(size: TransformerSize, mesh: Mesh) -> str:
    """Say why a network cannot be divided so; ``""`` if it can."""
    parts = {"heads": size.heads, "key heads": size.key_heads, "inner width": size.inner, "vocabulary": size.vocabulary}
    if uneven := [f"{name} ({count})" for name, count in parts.items() if count % mesh.tensor]:
        return f"tensor={mesh.tensor} does not divide {', '.join(uneven)}: use a divisor"
    over = mesh.context * (mesh.tensor if mesh.sequence else 1)
    if size.tokens % over:
        return f"{size.tokens} tokens cannot be divided evenly over {over} ranks, of context and sequence parallel together"
    if size.layers < mesh.pipeline * mesh.chunks:
        return f"{size.layers} layers cannot be divided into {mesh.pipeline * mesh.chunks} stages: use fewer"
    if size.scores and mesh.context > 1:
        return f"scores of all pairs of tokens need all tokens on a rank, found context={mesh.context}: use 1"
    return ""


class MeshTraining:
    """The stages of this rank, their optimizer, and the step.

    Attributes:
        grid: the device mesh, with the dimensions pipeline, data, context and tensor.
        stages: this rank's ``Layers``.
    """

    def __init__(
        self,
        size: TransformerSize,
        mesh: Mesh,
        device: str = "cpu",
        dtype: Any = bfloat16,
        rule: type[optim.Optimizer] = optim.AdamW,
        **options: Any,
    ) -> None:
        if reason := reason_against(size, mesh):
            raise ArgumentError(f"MeshTraining: {reason}")
        if not is_initialized():
            init_process_group()
        shape = (mesh.pipeline, mesh.data, mesh.context, mesh.tensor)
        self.size, self.mesh, self.device = size, mesh, device
        self.grid = init_device_mesh(device, shape, mesh_dim_names=("pipeline", "data", "context", "tensor"))
        copies = init_device_mesh(
            device, (mesh.pipeline, mesh.data * mesh.context, mesh.tensor), mesh_dim_names=("p", "c", "t")
        )
        rank, total = self.grid.get_local_rank("pipeline"), mesh.pipeline * mesh.chunks
        places = range(rank, total, mesh.pipeline)
        self.stages = [Layers(size, mesh, self.grid, place, dtype) for place in places]
        group, rows = self.grid.get_group("pipeline"), size.tokens // mesh.context // (mesh.tensor if mesh.sequence else 1)
        like = zeros(1, device=device, dtype=dtype).expand(rows, mesh.micro, size.width)
        wrapped = [self._averaged(layers, copies["c"]) for layers in self.stages]
        steps = [PipelineStage(m, place, total, device, like, group=group) for m, place in zip(wrapped, places, strict=True)]
        kind = ScheduleInterleaved1F1B if mesh.chunks > 1 else ScheduleGPipe if mesh.gpipe else Schedule1F1B
        self.schedule = kind(steps if mesh.chunks > 1 else steps[0], mesh.count, self.stages[-1].loss)  # type: ignore[arg-type]
        parameters = [p for layers in self.stages for p in layers.parameters()]
        self.shares = copies.size(1) > 1
        options = {"lr": 1e-4, **options} | ({"master_weights": True} if dtype.itemsize == 2 else {})
        group = copies["c"].get_group()
        make: Any = rule
        if mesh.zero == 1 and group.size() > 1:
            make = partial(ZeroRedundancyOptimizer, optimizer_class=rule, process_group=group)
        self.optimizer = make(parameters, **options)

    def _averaged(self, layers: Layers, copies: DeviceMesh) -> nn.Module:
        """With gradients averaged over the ranks that have the same parameters and other tokens."""
        group = copies.get_group()
        if group.size() == 1:
            return layers
        if self.mesh.zero > 1:
            for block in layers.blocks:
                fully_shard(block, mesh=copies, reshard_after_forward=self.mesh.zero == 3)
            return fully_shard(layers, mesh=copies, reshard_after_forward=self.mesh.zero == 3)
        return nn.parallel.DistributedDataParallel(
            layers, process_group=group, gradient_as_bucket_view=True, broadcast_buffers=False
        )

    def step(self, tokens: Tensor | None = None, targets: Tensor | None = None, losses: list | None = None) -> None:
        """One step on this rank's samples (count * micro, tokens of its context); without any, on zeros."""
        shape = (self.mesh.count * self.mesh.micro, self.size.tokens // self.mesh.context)
        if tokens is None and self.stages[0].first:
            tokens = zeros(shape, dtype=int64, device=self.device)
        if targets is None and self.stages[-1].last:
            targets = zeros(shape, dtype=int64, device=self.device)
        given = [tokens] if self.stages[0].first else []
        self.schedule.step(*given, target=targets, losses=losses, return_outputs=False)
        self.optimizer.step()
        # gradients that ranks share stay views of their buckets, in which micro-batches add
        self.optimizer.zero_grad(set_to_none=not self.shares)


def train(name: str, mesh: Mesh, steps: int = 1, **changes: Any) -> None:
    """Train a network of ``SIZES`` on zeros: what ``memory.predict(train, ..., world_size=mesh.ranks(), ranks="all")`` runs.

    Args:
        changes: other values of the network's attributes.
    """
    training = MeshTraining(replace(SIZES[name], **changes), mesh)
    for _ in range(steps):
        training.step()
