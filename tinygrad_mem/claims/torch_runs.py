"""Programs of PyTorch that claims are about, predicted for a GPU with PyTorch's own autograd. Importing this needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..pytorch import predict

GPU = "cuda"
T = TypeVar("T")


def returned(program: Callable[[], T]) -> T:
    """The result of a program that is predicted."""
    found: list[T] = []
    predict(lambda: found.append(program()))
    return found[0]


def workspace() -> int:
    """The bytes that cuBLAS takes for its first product."""

    def run() -> int:
        x = torch.empty(256, 256, device=GPU)
        before = torch.cuda.memory_allocated()
        y = x @ x
        return torch.cuda.memory_allocated() - 4 * y.numel() - before

    return returned(run)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention with all its scores."""
    return F.dropout((q @ k.mT).softmax(-1), 0.1) @ v


class MegatronLayer(nn.Module):
    """A layer of GPT-3, as Megatron writes it: scores in memory, dropout after softmax and after both halves, in float16."""

    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        options: dict[str, Any] = {"device": GPU, "dtype": torch.float16}
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, **options), nn.LayerNorm(width, **options)
        self.qkv, self.out = nn.Linear(width, 3 * width, **options), nn.Linear(width, width, **options)
        self.up, self.down = nn.Linear(width, 4 * width, **options), nn.Linear(4 * width, width, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        y = checkpoint(attend, q, k, v, use_reentrant=False) if self.recompute else attend(q, k, v)
        y = y.transpose(1, 2).reshape(b, s, h)
        x = x + F.dropout(self.out(y), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


@cache
def layer(recompute: bool) -> int:
    """The bytes that the layer keeps for the backward of one sequence, beside its parameters and its result."""

    def run() -> int:
        model = MegatronLayer(12_288, 96, recompute)
        x = torch.empty(1, 2048, 12_288, device=GPU, dtype=torch.float16, requires_grad=True)
        model(x)  # what libraries take at first
        before = torch.cuda.memory_allocated()
        y = model(x)
        return torch.cuda.memory_allocated() - before - y.nbytes + x.nbytes

    return returned(run)


def _with_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.empty(*q.shape[:2], q.shape[1], device=GPU, dtype=q.dtype)
    return F.dropout(torch.baddbmm(scores, q, k.mT, beta=0, alpha=0.125).softmax(-1), 0.1) @ v


def _without_scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q[None], k[None], v[None], dropout_p=0.1)[0]


def attention(tokens: int) -> float:
    """The peak of attention that is written out, forward and backward, over that of PyTorch's own."""

    def run(how: Callable[..., torch.Tensor]) -> None:
        q, k, v = (torch.empty(32, tokens, 64, device=GPU, dtype=torch.float16, requires_grad=True) for _ in range(3))
        y = how(q, k, v)
        y.backward(torch.empty_like(y))

    return predict(run, _with_scores).peak / predict(run, _without_scores).peak
