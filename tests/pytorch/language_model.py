"""The language model of two recordings of a GPU, written from its description: its ops are those that were recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Size:
    """How large the model is. The defaults are those of the recordings."""

    vocabulary: int = 10_000
    width: int = 1024
    layers: int = 24
    heads: int = 16
    inner: int = 4096
    context: int = 128


class Linear(nn.Module):
    def __init__(self, d_in: int, d_out: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("... i, o i -> ... o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, vocabulary: int, width: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width, device=device))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids, :]


class RMSNorm(nn.Module):
    def __init__(self, width: int, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    turns: torch.Tensor

    def __init__(self, context: int, size: int, device: str) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(context) * 1.0, 10_000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]).to(device), persistent=False)

    def forward(self, x: torch.Tensor, places: torch.Tensor | slice) -> torch.Tensor:
        x1, x2 = x.unflatten(-1, (-1, 2)).movedim(-1, 0).unbind(0)
        cos, sin = self.turns[:, places, :]
        even = cos * x1 - sin * x2
        odd = sin * x1 + cos * x2
        return torch.cat([even.unsqueeze(-1), odd.unsqueeze(-1)], -1).flatten(-2)


def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    shifted = x - torch.max(x, dim=dim, keepdim=True)[0]
    exp = torch.exp(shifted)
    return exp / torch.sum(exp, dim=dim, keepdim=True)


class Attention(nn.Module):
    def __init__(self, size: Size, rotary: Rotary, device: str) -> None:
        super().__init__()
        self.heads = size.heads
        self.q, self.k, self.v, self.o = (Linear(size.width, size.width, device) for _ in range(4))
        self.rotary = rotary

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.size(-2)
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = self._split(q), self._split(k), self._split(v)
        q = self.rotary(q, slice(0, tokens))
        k = self.rotary(k, slice(0, tokens))
        places = torch.arange(tokens, device=x.device)
        mask = places.view(-1, 1) >= places.view(1, -1)
        merged = self._merge(attend(q, k, v, mask))
        return self.o(merged)

    @staticmethod
    def _merge(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(-3, -2).flatten(-2).contiguous()


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("... q d, ... k d -> ... q k", q, k) / math.sqrt(k.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores, dim=-1)
    return torch.einsum("... q k, ... k d -> ... q d", weights, v)


class SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int, device: str) -> None:
        super().__init__()
        self.w1, self.w3 = Linear(width, inner, device), Linear(width, inner, device)
        self.w2 = Linear(inner, width, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, size: Size, rotary: Rotary, device: str) -> None:
        super().__init__()
        self.attention, self.feed = Attention(size, rotary, device), SwiGLU(size.width, size.inner, device)
        self.norm1, self.norm2 = RMSNorm(size.width, device), RMSNorm(size.width, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attention = self.attention(self.norm1(x))  # lives until the block returns, as what feed makes
        attended = x + attention
        fed = self.feed(self.norm2(attended))
        return attended + fed


class Model(nn.Module):
    def __init__(self, size: Size, device: str) -> None:
        super().__init__()
        rotary = Rotary(size.context, size.width // size.heads, device)
        self.embedding = Embedding(size.vocabulary, size.width, device)
        self.blocks = nn.ModuleList(Block(size, rotary, device) for _ in range(size.layers))
        self.norm, self.head = RMSNorm(size.width, device), Linear(size.width, size.vocabulary, device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(x)  # lives until this returns
        x = embedded
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    negated = -log_softmax(logits)
    return torch.mean(torch.gather(negated, -1, targets.unsqueeze(-1)))


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    largest = torch.max(x, dim=-1, keepdim=True)[0]
    x = x - largest
    return x - torch.log(torch.sum(torch.exp(x), dim=-1, keepdim=True))


class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 1e-3, betas=(0.9, 0.999), eps: float = 1e-8, decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "decay": decay})

    def step(self, closure=None) -> None:
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, grad = self.state[p], p.grad.data
                step = state.get("step", 1)
                p.data -= group["lr"] * group["decay"] * p.data
                old_m = state.get("m", torch.zeros_like(grad))
                old_v = state.get("v", torch.zeros_like(grad))
                m = b1 * old_m + (1 - b1) * grad
                v = b2 * old_v + (1 - b2) * torch.square(grad)
                rate = group["lr"] * math.sqrt(1 - b2**step) / (1 - b1**step)
                p.data -= rate * m / (torch.sqrt(v) + group["eps"])
                state["step"], state["m"], state["v"] = step + 1, m, v
