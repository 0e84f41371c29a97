"""Numbers as codes of 4 or 8 bits: each block of neighbours is divided by its largest absolute value, and each quotient is
rounded to the nearest number of a table (``kernels/code_tables.py``).

The blocks' scales may be kept as codes too: of the table ``dynamic``, in blocks of ``NESTED``, less their mean (``offset``).
"""

import numpy as np

from ...dtypes import arithmetic
from ..code_tables import NESTED, TABLES
from ..formula import formula
from .fast import blocks
from .fast.bits import unpack_bits
from .fast.threads import scratch


def _quantize_blocks(x, table, block):
    x = x.astype(np.float32)
    top = np.array([np.max(np.abs(x[i : i + block])) for i in range(0, x.size, block)], np.float32)
    share = np.nan_to_num(x / np.repeat(top, block)[: x.size])
    if table == "int8":
        codes = np.rint(share * np.float32(127)) + 127
    else:
        codes = np.abs(share[:, None] - TABLES[table].values["d"]).argmin(1)
    codes = codes.astype(np.uint8)
    if TABLES[table].bits == 4:
        codes = np.append(codes, [0] * (codes.size % 2)).astype(np.uint8)
        codes = codes[::2] | codes[1::2] << 4
    return {"codes": codes, "absmax": top}


@formula(_quantize_blocks)
def quantize_blocks(x, table, block, codes, absmax):
    """codes (uint8; of 4 bits, two in a byte, the first in the lower half) of the flat x, and absmax of each block.

    A block with a number that is not finite has such an absmax.
    """
    each, nearest = TABLES[table].each, _nearest_step if table == "int8" else blocks.nearest

    def part(start, stop):
        top = absmax[start // block : -(-stop // block)]
        size, share = (scratch((stop - start,), np.float32, k, 4) for k in (0, 1))
        np.copyto(share, x[start:stop], casting="unsafe")
        np.absolute(share, out=size)
        for some, sizes in blocks.by_block(size, block):
            np.maximum.reduce(sizes, axis=1, out=top[some])
        for some, shares in blocks.by_block(share, block):
            np.divide(shares, top[some, None], out=shares)
        lost = scratch(share.shape, np.bool_, 3, 4)
        np.isnan(share, out=lost)
        np.copyto(share, 0, where=lost)
        nearest(share, TABLES[table], codes[start // each : -(-stop // each)])

    blocks.by_tile(x.size, block, part)


def _nearest_step(share, table, out):
    """out = the codes of the nearest of 255 even steps; share is overwritten."""
    np.multiply(share, 127, out=share)
    np.rint(share, out=share)
    np.add(share, 127, out=share)
    np.copyto(out, share, casting="unsafe")


def _dequantize_blocks(codes, absmax, nested, offset, table, block, out):
    if TABLES[table].bits == 4:
        codes = np.stack([codes & 15, codes >> 4], 1).reshape(-1)
    if nested is not None:
        absmax = TABLES["dynamic"].values["d"][absmax] * np.repeat(nested, NESTED)[: absmax.size] + offset
    return TABLES[table].values["d"][codes[: out.size]] * np.repeat(absmax, block)[: out.size]


@formula(_dequantize_blocks)
def dequantize_blocks(codes, absmax, nested, offset, table, block, out):
    """The flat out = the numbers of the codes, times their block's absmax.

    Args:
        absmax: of each block; if ``nested`` is not ``None``, its codes, with the scale of each ``NESTED`` of them in ``nested``
            and their mean, (1), in ``offset``.
    """
    wide, table = arithmetic(out.dtype), TABLES[table]

    def part(start, stop):
        here = slice(start // block, -(-stop // block))
        numbers, index = scratch((stop - start,), wide, 0, 4), scratch((stop - start,), np.int64, 1, 2)
        unpack_bits(codes[start // table.each : -(-stop // table.each)], table.each, index)
        np.take(table.values[wide.char], index, out=numbers, mode="clip")  # other modes buffer the output
        scales = absmax[here] if nested is None else _scales(absmax, nested, offset, here, wide)
        for some, values in blocks.by_block(numbers, block):
            np.multiply(values, scales[some, None], out=values)
        np.copyto(out[start:stop], numbers, casting="unsafe")

    blocks.by_tile(out.size, block, part)


def _scales(absmax, nested, offset, here, wide):
    """The scales of the blocks ``here``, of their codes."""
    count = here.stop - here.start
    scales, index = scratch((count,), wide, 1, 4), scratch((count,), np.int64, 1, 2)
    np.copyto(index, absmax[here])
    np.take(TABLES["dynamic"].values[wide.char], index, out=scales, mode="clip")
    for group in range(here.start // NESTED, (here.stop - 1) // NESTED + 1):
        some = slice(max(group * NESTED - here.start, 0), (group + 1) * NESTED - here.start)
        np.multiply(scales[some], nested[group], out=scales[some])
    np.add(scales, offset[0], out=scales)
    return scales
