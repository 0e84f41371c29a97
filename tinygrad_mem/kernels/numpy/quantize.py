"""Numbers in a few bits: each group of neighbours between its own smallest and largest, rounded up or down by chance."""

import numpy as np

from ..formula import formula
from .fast.bits import pack_bits, unpack_bits
from .fast.philox import uniform
from .fast.threads import scratch

_TILE = 1 << 15  # elements at once: part of what a ticket means


def _tiles(size, group):
    """(number, first group, first element, groups, elements of each): whole groups together, the rest by itself."""
    whole, step = size // group, max(_TILE // group, 1)
    for number, i in enumerate(range(0, whole, step)):
        yield number, i, i * group, min(step, whole - i), group
    if size % group:
        yield -(-whole // step), whole, whole * group, 1, size % group


@formula(None, "it rounds up or down by chance")
def quantize(x, ticket, bits, codes, scales, group):
    """codes (uint8), ``bits`` of each element of the flat x; scales (groups, 2): each group's smallest value and its step.

    A value between two steps goes to either, by chance, so that it is right on average.
    """
    levels, per, wide = (1 << bits) - 1, 8 // bits, scales.dtype
    for number, first, start, rows, width in _tiles(x.size, group):
        room = -(-width // per) * per  # of the rest, whole bytes
        part = scratch((rows, width), wide, 0, 4)
        np.copyto(part, x[start : start + rows * width].reshape(rows, width))
        low, step = scales[first : first + rows, :1], scales[first : first + rows, 1:]
        np.maximum.reduce(part, axis=1, keepdims=True, out=step)
        np.minimum.reduce(part, axis=1, keepdims=True, out=low)
        np.subtract(step, low, out=step)
        np.divide(step, levels, out=step)
        np.subtract(part, low, out=part)
        np.divide(part, step, out=part)
        flat = scratch(step.shape, np.bool_, 3, 4)
        np.equal(step, 0, out=flat)
        np.copyto(part, 0, where=flat)
        chance = scratch((rows, width), np.float32, 1, 4)
        uniform(ticket, number, 2, chance)
        np.add(part, chance, out=part)
        np.floor(part, out=part)
        np.minimum(part, levels, out=part)
        small = scratch((rows, room), np.uint8, 2, 4)
        small[:, width:] = 0
        np.copyto(small[:, :width], part, casting="unsafe")
        at = start // per
        pack_bits(small.reshape(-1), per, codes[at : at + rows * room // per])


def _dequantize(codes, scales, bits, group, out):
    numbers = (codes[:, None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)  # a byte's, the first in the lowest bits
    low, step = np.repeat(scales, group, axis=0)[: out.size].T
    return low + numbers.reshape(-1)[: out.size] * step


@formula(_dequantize)
def dequantize(codes, scales, bits, group, out):
    """The flat out = smallest value + code * step of each group."""
    per, wide = 8 // bits, scales.dtype
    for _, first, start, rows, width in _tiles(out.size, group):
        room = -(-width // per) * per
        part, small = scratch((rows, room), wide, 0, 4), scratch((rows, room), np.uint8, 2, 4)
        unpack_bits(codes[start // per : start // per + rows * room // per], per, small.reshape(-1))
        np.copyto(part, small)
        np.multiply(part, scales[first : first + rows, 1:], out=part)
        np.add(part, scales[first : first + rows, :1], out=part)
        np.copyto(out[start : start + rows * width].reshape(rows, width), part[:, :width], casting="unsafe")
