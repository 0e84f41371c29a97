"""Sizes, indices and numbers of 2**62 and beyond: a sentence that names them, or the right answer, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinygrad_mem as tm
from tinygrad_mem import nn
from tinygrad_mem.errors import TinygradMemError

F = nn.functional
HUGE = (1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 100, -(1 << 63) - 1)
X, I, L = tm.ones(2, 3), tm.arange(6), tm.ones(1, 1, 4)
META = {"device": "meta"}

MADE: dict[str, Callable[[int], Any]] = {
    **{
        name: lambda n, name=name: getattr(tm, name)(n)
        for name in ("zeros", "ones", "empty", "rand", "randn", "randperm", "eye")
    },
    "arange": tm.arange,
    "arange by steps": lambda n: tm.arange(0, n, max(abs(n) // 2, 1)),
    "eye of columns": lambda n: tm.eye(2, n),
    "full": lambda n: tm.full((2, n), 1.0),
    "full of it": lambda n: tm.full((2,), n),
    "linspace": lambda n: tm.linspace(0, 1, n),
    "tril_indices": lambda n: tm.tril_indices(n, 2),
    "nothing times it": lambda n: tm.empty(0, n),
    "on meta": lambda n: tm.empty(n, **META),
    "a square on meta": lambda n: tm.empty(n, n, **META),
    "a layer on meta": lambda n: nn.Linear(n, 2, **META),
    "Embedding": lambda n: nn.Embedding(n, 2),
    "Conv2d": lambda n: nn.Conv2d(n, 1, 3),
    "randint": lambda n: tm.randint(3, (n,)),
    "randint below": lambda n: tm.randint(0, n, (3,)),
    "tensor": lambda n: tm.tensor([n, 1]),
    "tensor of floats": lambda n: tm.tensor([n, 1.5]),
    "new_zeros": X.new_zeros,
    "one_hot": lambda n: F.one_hot(tm.tensor([0]), n),
    "bincount": lambda n: tm.bincount(I, minlength=n),
    "histc": lambda n: tm.histc(X, n),
    "multinomial": lambda n: tm.multinomial(X, n, True),
    "repeat_interleave": X.repeat_interleave,
}
SHOWN: dict[str, Callable[[int], Any]] = {
    "expand": lambda n: tm.ones(1).expand(n),
    "expand twice": lambda n: tm.ones(1, 1).expand(n, n),
    "reshape": X.reshape,
    "reshape of nothing": lambda n: tm.ones(0).reshape(0, n),
    "view": lambda n: X.view(n, -1),
    "unflatten": lambda n: X.unflatten(1, (n, -1)),
    "repeat": lambda n: X.repeat(n, 1),
    "tile": lambda n: tm.tile(X, (n,)),
    "narrow": lambda n: X.narrow(0, n, 1),
    "narrow to": lambda n: X.narrow(0, 0, n),
    "unfold": lambda n: X.unfold(1, n, 1),
    "unfold by": lambda n: X.unfold(1, 1, n),
    "as_strided": lambda n: X.as_strided((n,), (1,)),
    "as_strided by": lambda n: X.as_strided((2,), (n,)),
    "as_strided from": lambda n: X.as_strided((2,), (1,), n),
    "diagonal": X.diagonal,
    "diag_embed": tm.ones(2).diag_embed,
    "tril": X.tril,
    "roll": lambda n: X.roll(n, 0),
    "split": X.split,
    "chunk": X.chunk,
}
PLACES: dict[str, Callable[[int], Any]] = {
    "[n]": lambda n: X[n],
    "[:n]": lambda n: X[:n],
    "[n:]": lambda n: X[n:],
    "[::n]": lambda n: X[::n],
    "[[n]]": lambda n: X[[n]],
    "[n] = 1": lambda n: X.clone().__setitem__(n, 1.0),
    "[0] = n": lambda n: I.clone().__setitem__(0, n),
    "select": lambda n: X.select(0, n),
    **{name: lambda n, name=name: getattr(X, name)(n) for name in ("sum", "softmax", "cumsum", "squeeze", "unsqueeze", "topk")},
    "transpose": lambda n: X.transpose(0, n),
    "cat": lambda n: tm.cat([X, X], n),
}
WINDOWS: dict[str, Callable[[int], Any]] = {
    "pad": lambda n: F.pad(X, (n, 0)),
    "pad both": lambda n: F.pad(X, (-n, n)),
    "interpolate": lambda n: F.interpolate(L, size=n),
    "interpolate by": lambda n: F.interpolate(L, scale_factor=float(n)),
    "avg_pool1d": lambda n: F.avg_pool1d(L, n),
    "max_pool1d": lambda n: F.max_pool1d(L, 2, stride=n),
    "adaptive_avg_pool1d": lambda n: F.adaptive_avg_pool1d(L, n),
    **{
        f"conv1d {name}": lambda n, name=name: F.conv1d(L, L, **{name: n})
        for name in ("stride", "padding", "dilation", "groups")
    },
    "conv_transpose1d": lambda n: F.conv_transpose1d(L, L, stride=n),
    "pixel_shuffle": lambda n: F.pixel_shuffle(tm.ones(1, 4, 2, 2), n),
}
NUMBERS: dict[str, Callable[[int], Any]] = {
    "x + n": lambda n: X + n,
    "i + n": lambda n: I + n,
    "i * n": lambda n: I * n,
    "i == n": lambda n: n == I,
    "n - i": lambda n: n - I,
    "i // n": lambda n: I // n,
    "i & n": lambda n: I & n,
    "clamp": lambda n: I.clamp(0, n),
    "fill_": lambda n: I.clone().fill_(n),
    "where": lambda n: tm.where(I > 2, I, n),
    "round": lambda n: X.round(decimals=n),
    "manual_seed": lambda n: tm.Generator().manual_seed(n),
    "random_": lambda n: I.clone().random_(0, n),
    "ignore_index": lambda n: F.cross_entropy(X, tm.tensor([1, 0]), ignore_index=n),
    "padding_idx": lambda n: F.embedding(tm.tensor([0]), X, padding_idx=n),
}
CALLS = MADE | SHOWN | PLACES | WINDOWS | NUMBERS


def test_huge_sizes(reliability: Any):
    used, wrong = tm.memory.memory_allocated(), []
    for name, call in CALLS.items():
        for n in HUGE:
            try:
                call(n)
            except TinygradMemError as error:
                if len(str(error)) < 15 or "these dtypes" in str(error):
                    wrong.append(f"{name} of {n}: {error}")
            except Exception as error:
                wrong.append(f"{name} of {n}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert tm.memory.memory_allocated() == used
    reliability("sizes, indices and numbers beyond 2**62", len(CALLS) * len(HUGE))
