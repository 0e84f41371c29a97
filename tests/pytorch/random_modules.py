"""Random networks of a few layers, with the techniques by which their memory is saved."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

LARGEST = 2000
"""Elements between two layers."""


class Net(nn.Module):
    """A network that knows its data: of a shape that a batch stands before, numbers or ids below ``ids``."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...], ids: int) -> None:
        super().__init__()
        self.body, self.shape, self.ids = body, shape, ids

    def data(self, pick: random.Random) -> torch.Tensor:
        batch = pick.choice([2, 3, 8])
        if self.ids:
            return torch.randint(0, self.ids, (batch, *self.shape))
        return torch.randn(batch, *self.shape, requires_grad=pick.random() < 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class First(nn.Module):
    """The first result of a layer that has several."""

    def __init__(self, layer: nn.Module, attends: bool = False) -> None:
        super().__init__()
        self.layer, self.attends = layer, attends

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0] if self.attends else self.layer(x)[0]


class Attention(nn.Module):
    """Scaled dot products of a few heads."""

    def __init__(self, width: int, heads: int, causal: bool, fused: bool) -> None:
        super().__init__()
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.heads, self.causal, self.fused = heads, causal, fused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.all(x).chunk(3, -1))
        if self.fused:
            made = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            if self.causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
            made = scores.softmax(-1) @ v
        return self.out(made.transpose(1, 2).flatten(2))


class Apply(nn.Module):
    """A function, or a way to run layers."""

    def __init__(self, function: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.layers)


def _packed(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    def pack(t: torch.Tensor) -> torch.Tensor:
        return t.to(torch.bfloat16) if t.dtype is torch.float32 else t

    def unpack(t: torch.Tensor) -> torch.Tensor:
        return t.to(torch.float32) if t.dtype is torch.bfloat16 else t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return layer(x)


def _on_host(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        return layer(x)


def _autocast(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return layer(x).float()


def _frozen(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return layer(x)


class Scaled(torch.autograd.Function):
    """Keeps its argument, and a mask of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, x > 0)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, mask = ctx.saved_tensors
        return gradients[0] * 2 * mask + x * 0


WAYS: list[Callable[..., torch.Tensor]] = [
    lambda x, layer: checkpoint(layer, x, use_reentrant=False),
    lambda x, layer: checkpoint(layer, x, use_reentrant=True),
    lambda x, layer: checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False),
    lambda x, layer: checkpoint(lambda t: checkpoint(layer, t, use_reentrant=False), x, use_reentrant=False),
    lambda x, layer: checkpoint_sequential(nn.Sequential(layer, nn.Tanh()), 2, x, use_reentrant=False),
    _on_host,
    _packed,
    _autocast,
    _frozen,
    lambda x, layer: layer(x.detach()),
    lambda x, layer: layer(layer(x)) if layer(x).shape == x.shape else layer(x),
    lambda x, layer: x + made if (made := layer(x)).shape == x.shape else made,
    lambda x, layer: torch.stack([layer(x), layer(x * 0.5)]).mean(0),
    lambda x, layer: torch.cat([layer(part) for part in x.split(2)]),
]
FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.relu,
    F.gelu,
    F.silu,
    torch.tanh,
    torch.sigmoid,
    lambda x: F.relu(x * 1.0, inplace=True),
    lambda x: F.leaky_relu(x, 0.1),
    lambda x: F.dropout(x, 0.2),
    lambda x: x * torch.sigmoid(x),
    lambda x: x.mul(2).add_(1),
    lambda x: F.hardswish(x),
    lambda x: F.elu(x),
    lambda x: F.softplus(x),
    lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
    lambda x: Scaled.apply(x),  # type: ignore[misc]
    lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    lambda x: x[:, :] * 1,
    lambda x: x.softmax(-1),
]


def _of_rows(pick: random.Random, shape: tuple[int, ...]) -> nn.Module:
    width = shape[-1]
    return pick.choice(
        [
            lambda: nn.Linear(width, pick.choice([1, 8, 24]), bias=pick.random() < 0.7),
            lambda: nn.Linear(width, width),
            lambda: nn.LayerNorm(width),
            lambda: nn.RMSNorm(width),
            lambda: nn.Dropout(0.1),
            lambda: nn.PReLU(),
            *[lambda: nn.BatchNorm1d(width, momentum=pick.choice([0.1, None]))] * (len(shape) == 1),
        ]
    )()


def _of_sequences(pick: random.Random, shape: tuple[int, ...]) -> nn.Module:
    width, heads = shape[-1], pick.choice([h for h in (1, 2, 4) if shape[-1] % h == 0])
    recurrent = pick.choice([nn.LSTM, nn.GRU, nn.RNN])
    return pick.choice(
        [
            lambda: _of_rows(pick, shape),
            lambda: First(recurrent(width, pick.choice([3, 8]), pick.randint(1, 2), batch_first=True)),
            lambda: First(recurrent(width, pick.choice([3, 8]), bidirectional=True, batch_first=True)),
            lambda: First(nn.MultiheadAttention(width, heads, batch_first=True), attends=True),
            lambda: Attention(width, heads, pick.random() < 0.5, pick.random() < 0.6),
            lambda: nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, norm_first=pick.random() < 0.5),
            lambda: Apply(lambda x: x.mean(1)),
        ]
    )()


def _of_signals(pick: random.Random, shape: tuple[int, ...]) -> nn.Module:
    channels, dims = shape[0], len(shape) - 1
    groups = pick.choice([g for g in (1, 2, 4) if channels % g == 0])
    convolution = nn.Conv1d if dims == 1 else nn.Conv2d
    return pick.choice(
        [
            lambda: convolution(channels, groups * pick.choice([1, 3]), 3, padding=1, groups=groups),
            lambda: convolution(channels, pick.choice([1, 8]), 1, bias=False),
            lambda: convolution(channels, pick.choice([2, 8]), 3, stride=2, padding=2, dilation=pick.choice([1, 2])),
            lambda: (nn.ConvTranspose1d if dims == 1 else nn.ConvTranspose2d)(channels, pick.choice([1, 4]), 2, stride=2),
            lambda: (nn.BatchNorm1d if dims == 1 else nn.BatchNorm2d)(channels),
            lambda: nn.GroupNorm(groups, channels),
            lambda: (nn.MaxPool1d if dims == 1 else nn.MaxPool2d)(2, ceil_mode=True),
            lambda: (nn.AvgPool1d if dims == 1 else nn.AvgPool2d)(2, ceil_mode=True),
            lambda: (nn.AdaptiveAvgPool1d if dims == 1 else nn.AdaptiveAvgPool2d)(pick.choice([1, 3])),
            lambda: (nn.InstanceNorm1d if dims == 1 else nn.InstanceNorm2d)(channels, affine=True),
            lambda: nn.Upsample(scale_factor=2),
            lambda: (nn.Dropout1d if dims == 1 else nn.Dropout2d)(0.2),
            lambda: nn.Flatten(),
        ]
    )()


def net(pick: random.Random) -> Net:
    """A network of a few layers for rows, sequences, signals, pictures or ids. A batch of two finds the shapes between them."""
    size = pick.choice([4, 8])
    shape = pick.choice([(size,), (3, size), (size, 9), (3, size, size), (4, 9, 7), (5,)])
    kind = pick.choice([_of_sequences, _of_signals]) if len(shape) == 2 else _of_signals if len(shape) == 3 else _of_rows
    ids = 0 if kind is not _of_rows or pick.random() < 0.5 else 11
    layers: list[nn.Module] = [nn.Embedding(ids, size, padding_idx=pick.choice([None, 0]))] if ids else []
    kind = _of_sequences if ids else kind
    with torch.no_grad():
        x = layers[0](torch.zeros(2, *shape, dtype=torch.long)) if ids else torch.zeros(2, *shape)
        for _ in range(pick.randint(1, 4)):
            layer = kind(pick, tuple(x.shape[1:]))
            if pick.random() < 0.2:
                layer = Apply(pick.choice(WAYS), layer)
            if pick.random() < 0.5:
                layer = nn.Sequential(layer, Apply(pick.choice(FUNCTIONS)))
            try:
                made = layer(x)
            except (RuntimeError, ValueError):  # too small for it
                continue
            if made.numel() < LARGEST:
                layers.append(layer)
                x = made
            kind = _of_rows if x.dim() == 2 else kind
    return Net(nn.Sequential(*layers), shape, ids)
