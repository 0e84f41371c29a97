"""Rows of numbers in a few bits. Random roundings are compared by their own tests (tests/techniques/test_compression.py)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tests.case import OpCase
from tinygrad_mem import tensor
from tinygrad_mem.autograd.core import apply
from tinygrad_mem.functional.quantize import dequantize_blocks, quantize_blocks, quantized_linear
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


# --- codes of a table, with a scale for each block


def _numbers(codes, table, absmax, block):
    """The numbers of codes, by the rule of a dequantization: the table's number times the scale of its block."""
    return table[codes] * np.repeat(absmax, block)[: codes.size]


def _nearest(x, table, block):
    """What is left of x when each number is the nearest of the table, times the largest absolute value of its block."""
    flat = x.reshape(-1).astype(np.float32)
    absmax = np.array([np.abs(flat[i : i + block]).max() for i in range(0, flat.size, block)], np.float32)
    share = flat / np.repeat(absmax, block)[: flat.size]
    if len(table) == 255:  # even steps
        codes = np.rint(share * np.float32(127)).astype(int) + 127
    else:
        codes = np.abs(share[:, None].astype(np.float64) - table).argmin(1)
    return _numbers(codes, table.astype(np.float64), absmax.astype(np.float64), block).reshape(x.shape)


NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
        *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ]
)
"""The 16 numbers in the table of QLoRA's paper."""
TABLES = {"nf4": NF4, "int8": (np.arange(-127, 128) / 127).astype(np.float32)}


def _blocks(table, block, shape):
    """There and back: the nearest numbers of the table."""

    def run(x):
        return dequantize_blocks(quantize_blocks(x, table, block, False), x.dtype)

    return OpCase(
        f"{table} in blocks of {block}, {len(shape)}-d",
        ("QuantizeBlocks", "DequantizeBlocks"),
        run,
        lambda x: torch.tensor(_nearest(x.detach().numpy(), TABLES[table], block)).to(x.dtype),
        lambda rng: [rng.standard_normal(shape)],
        grad=False,
    )


def _linear(table, block, double, lead, biased):
    """A product with a fixed weight in codes; PyTorch multiplies by the dequantized one."""
    out, width = 40, 96
    weight = np.random.default_rng(11).standard_normal((out, width)).astype(np.float32)

    def quantized(device):
        made = quantize_blocks(tensor(weight), table, block, double)
        return replace(made, **{part: getattr(made, part).to(device) for part in parts})

    def run(x, *bias):
        return quantized_linear(x, quantized(x.device), *bias)

    def reference(x, *bias):
        full = dequantize_blocks(quantized("cpu"), np.dtype(np.float64)).numpy()
        return torch.nn.functional.linear(x, torch.tensor(full).to(x.dtype), *bias)

    parts = ("codes", "absmax", "nested", "offset") if double else ("codes", "absmax")
    blocks = -(-weight.size // block)
    scales = blocks + 4 * -(-blocks // 256) + 4 if double else 4 * blocks
    return OpCase(
        f"linear of {table}{', double quantization' * double}, {len(lead) + 1}-d{', bias' * biased}",
        "QuantizedLinear",
        run,
        reference,
        lambda rng: [rng.standard_normal((*lead, width))] + [rng.standard_normal(out)] * biased,
        saved=lambda *_: weight.size * (4 if table == "nf4" else 8) // 8 + scales,
    )


CASES += [
    _blocks("nf4", 64, (300, 41)),
    _blocks("nf4", 64, (7,)),
    _blocks("int8", 33, (5, 33)),
    _blocks("int8", 40000, (2, 40000)),
]
CASES += [
    _linear("nf4", 64, True, (3, 5), False),
    _linear("nf4", 64, False, (6,), True),
    _linear("int8", 96, False, (6,), True),
]
