"""Several codes in a byte, each of 1, 2, 4 or 8 bits, the first in the lowest bits."""

import numpy as np


def unpack_bits(packed, each, out):
    """out = the codes of bytes that have ``each`` of them."""
    bits = 8 // each
    for i in range(each):
        part = out[i::each]
        np.right_shift(packed[: part.size], i * bits, out=part, casting="unsafe")
    np.bitwise_and(out, (1 << bits) - 1, out=out)


def pack_bits(codes, each, out):
    """out = bytes with ``each`` codes; the codes are overwritten."""
    np.copyto(out, codes[::each])
    for i in range(1, each):
        part = codes[i::each]
        np.left_shift(part, i * (8 // each), out=part)
        np.bitwise_or(out[: part.size], part, out=out[: part.size])
