"""Elementwise functions."""

from __future__ import annotations

from ..autograd.tape import apply
from ..autograd.tensor import Tensor
from ..ops import elementwise as ops


def mul(input: Tensor, other: Tensor | float) -> Tensor:
    """``input * other``, broadcast and promoted. Saves for backward: each factor that the other's gradient needs."""
    return apply(ops.Mul, input, other)
