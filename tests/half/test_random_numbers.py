"""Calls that draw random numbers: in half precision their results and gradients are those of single precision, rounded.

The same seed drops the same elements in each dtype, so the two runs compute the same function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.case import values
from tinygrad_mem import nn
from tinygrad_mem.nn import functional as F
from tinygrad_mem.nn.attention.varlen import varlen_attn

SEQUENCE = (3, 40, 16)


def of_module(make: Callable[[], nn.Module]) -> Callable[[tm.Tensor], Any]:
    """A call of a module whose parameters have the input's dtype."""

    def call(x: tm.Tensor) -> tm.Tensor:
        module = make().to(x.dtype)
        found = module(x, x, x, need_weights=False) if isinstance(module, nn.MultiheadAttention) else module(x)
        return found[0] if isinstance(found, tuple) else found

    return call


def packed(x: tm.Tensor) -> tm.Tensor:
    rows = x.reshape(-1, 2, 8)
    ends = tm.tensor([0, 50, 120], dtype=tm.int32)
    return varlen_attn(rows, rows, rows, ends, ends, 70, 70, dropout_p=0.3)


CALLS: dict[str, Callable[[tm.Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout1d": lambda x: F.dropout1d(x, 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3, is_causal=True),
    "varlen_attn": packed,
    "MultiheadAttention": of_module(lambda: nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)),
    "TransformerEncoderLayer": of_module(lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.3, batch_first=True)),
    "LSTM": of_module(lambda: nn.LSTM(16, 8, 2, dropout=0.3)),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_half_precision_has_the_gradients_of_single(name: str, dtype: str):
    start = tm.randn(*SEQUENCE).to(getattr(tm, dtype))
    found = []
    for each in (getattr(tm, dtype), tm.float32):
        tm.manual_seed(3)
        x = start.to(each).detach().requires_grad_()
        y = CALLS[name](x)
        y.backward(tm.cos(tm.arange(y.numel(), dtype=tm.float32)).reshape(y.shape).to(each))
        assert x.grad is not None
        found.append([values(part.float()) for part in (y.detach(), x.grad)])
    for half, single in zip(*found, strict=True):
        assert np.abs(single).max() > 0.1
        size = 4e-3 if dtype == "float16" else 4e-2
        np.testing.assert_allclose(half, single, rtol=0, atol=size * np.abs(single).max())
