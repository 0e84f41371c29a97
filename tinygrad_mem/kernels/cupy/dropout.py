"""Dropout from a ticket: the same ticket gives the same mask. The numbers are not the CPU's; their distribution is."""

from __future__ import annotations

from .fused import Fused
from .philox import SOURCE

_dropout = Fused(
    "uint64 seed, uint64 call, float32 p, float64 scale, float64 shift, float64 dropped, int64 length, T x",
    "T y",
    "y = philox_uniform(philox_at(seed, call, i / length)) < p ? (T)dropped : (T)((double)x * scale + shift)",
    "tinygrad_mem_dropout",
    preamble=SOURCE,
)
_dropout_float = Fused(
    "uint64 seed, uint64 call, float32 p, float32 scale, float32 shift, float32 dropped, int64 length, T x",
    "T y",
    "y = philox_uniform(philox_at(seed, call, i / length)) < p ? (T)dropped : (T)((float)x * scale + shift)",
    "tinygrad_mem_dropout_float",
    preamble=SOURCE,
)


def dropout(ticket, p, kept, dropped, x, out):
    run = _dropout if x.dtype.itemsize == 8 else _dropout_float
    run(*ticket, p, *kept, dropped, x.shape[1], x, out)
