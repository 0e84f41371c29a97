"""Numbers as codes of 4 or 8 bits with a scale for each block, and products with such a matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..autograd.core import apply
from ..autograd.grad_mode import no_grad
from ..autograd.tensor import Tensor
from ..kernels.code_tables import NESTED
from ..ops.quantize import DequantizeBlocks, QuantizeBlocks, QuantizedLinear
from .door import LOWER, public


@dataclass(frozen=True, eq=False)
class Codes:
    """A tensor in 4 or 8 bits a number. No public function casts its parts: it is not a tensor.

    Attributes:
        codes: uint8, flat; of 4 bits, two in a byte, the first in the lower half.
        absmax: of each block of neighbours, float32; with double quantization its codes, uint8.
        nested, offset: with double quantization, float32: the scale of each 256 of ``absmax``, and its mean; else ``None``.
        table: the name of the table of numbers that codes are decoded to: see ``kernels/code_tables.py``.
        block: the numbers that share an ``absmax``.
        shape: the tensor's.
    """

    codes: Tensor
    absmax: Tensor
    nested: Tensor | None
    offset: Tensor | None
    table: str
    block: int
    shape: tuple[int, ...]


@no_grad()
def quantize_blocks(x: Tensor, table: str, block: int, double: bool) -> Codes:
    """The tensor in codes. A block with a number that is not finite becomes nan or inf; with ``double`` the whole tensor.

    Memory: besides the result, ``absmax`` in float32, and with ``double`` its difference from its mean.
    """
    codes, absmax = apply(QuantizeBlocks, x, table=table, block=block)
    whole = Codes(codes, absmax, None, None, table, block, tuple(x.shape))
    if not double:
        return whole
    offset = absmax.mean(0, keepdim=True)
    absmax, nested = apply(QuantizeBlocks, absmax - offset, table="dynamic", block=NESTED)
    return replace(whole, absmax=absmax, nested=nested, offset=offset)


@no_grad()
def dequantize_blocks(x: Codes, dtype: np.dtype) -> Tensor:
    """The tensor of the codes: a new one, in ``dtype``."""
    how = {"table": x.table, "block": x.block, "shape": x.shape, "dtype": dtype}
    return apply(DequantizeBlocks, x.codes, x.absmax, x.nested, x.offset, **how)


@public(cpu=LOWER, cuda=LOWER)
def quantized_linear(input: Tensor, weight: Codes, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``: (..., in), codes of (out, in), (out,) -> (..., out), in the dtype of ``input``.

    Saves: references to the codes and their scales, if ``input`` needs a gradient: no new memory.

    Raises:
        ShapeError, DTypeError: they do not fit.
    """
    how = {"table": weight.table, "block": weight.block, "shape": weight.shape}
    return apply(QuantizedLinear, input, weight.codes, bias, weight.absmax, weight.nested, weight.offset, **how)
