"""Dropout from a ticket: the same ticket gives the same mask. The numbers are not the CPU's; their distribution is."""

from __future__ import annotations

from .fused import Fused
from .philox import SOURCE

_dropout = Fused(
    "uint64 seed, uint64 call, float32 p, float64 scale, float64 shift, float64 dropped, int64 length, T x",
    "T y",
    "typedef typename Wide<T>::type W;\n"
    "y = philox_uniform(philox_at(seed, call, i / length)) < p ? (T)dropped : (T)(x * (W)scale + (W)shift)",
    "tinygrad_mem_dropout",
    preamble=SOURCE,
)


def dropout(ticket, p, kept, dropped, x, out):
    _dropout(*ticket, p, *kept, dropped, x.shape[1], x, out)
