"""Rows of numbers in a few bits: random roundings, compared by their own tests (tests/techniques/test_compression.py)."""

from __future__ import annotations

import torch

from tests.case import OpCase
from tinygrad_mem.autograd.core import apply
from tinygrad_mem.ops.quantize import Dequantize, Quantize


def _there_and_back(bits, group, shape):
    def run(x):
        codes, scales = apply(Quantize, x, bits=bits, group=group, ticket=(3, 4))
        return apply(Dequantize, codes, scales, bits=bits, group=group, shape=tuple(x.shape), dtype=x.dtype)

    return OpCase(
        f"quantize {bits} bits {len(shape)}-d",
        ("Quantize", "Dequantize"),
        run,
        torch.clone,
        lambda rng: [rng.standard_normal(shape)],
        grad=False,
        exact=False,
    )


CASES = [_there_and_back(bits, 16, shape) for bits, shape in ((8, (5, 7)), (4, (3, 4, 9)), (2, (64,)), (8, (40000,)))]
