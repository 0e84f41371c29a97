"""Numbers with a byte or half of one each, and one float32 per block of them, in C order.

They are unpacked, changed and packed again tile by tile. A number is the largest absolute value of its block times one of 256
or 16 values: see ``kernels/code_tables.py``. It is rounded to the nearest of them. Of two numbers in a byte the first has the
lower bits.
"""

import numpy as np

from ....dtypes import arithmetic
from ...code_tables import TABLES
from .bits import pack_bits, unpack_bits
from .threads import GRAIN, scratch, split
from .tiles import cuts

_TILE = 1 << 15  # numbers at a time: eight tiles of int64 or float64 share the scratch


def _guesses(table):
    """The code of the lowest number of each bucket of float32s that share their upper 16 bits; none has two borders."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lowest = np.where(upper >> 31, upper | 0xFFFF, upper)  # a negative one grows downwards
    lowest = lowest.astype(np.uint32).view(np.float32)
    return np.searchsorted(table.borders, lowest).clip(0, len(table.numbers) - 1).astype(np.uint8)


_GUESSES = {table: _guesses(table) for name, table in TABLES.items() if name != "int8"}  # which has even steps


def decoded(codes, top, block, coded, shape):
    """The numbers that bytes are decoded to."""
    size = int(np.prod(shape))
    codes = codes.reshape(-1) if coded.each == 1 else np.stack([codes & 15, codes >> 4], -1).reshape(-1)[:size]
    return (coded.values["d"][codes] * np.repeat(top, block)[:size]).reshape(shape)


class Blocks:
    """A state in bytes, with the largest number of each block."""

    def __init__(self, codes, top, coded, block):
        self.codes, self.top, self.coded, self.block = codes.reshape(-1), top, coded, block

    def at(self, start, stop):
        """The bytes of some elements, and the largest numbers of their blocks."""
        each, block = self.coded.each, self.block
        return self.codes[start // each : -(-stop // each)], self.top[start // block : -(-stop // block)]

    def read(self, start, stop, out):
        codes, top = self.at(start, stop)
        unpack(codes, top, self.coded, self.block, out)

    def write(self, start, stop, x):
        codes, top = self.at(start, stop)
        pack(x, self.coded, self.block, top, codes)


def run_by_block(rule, p, g, block, states, numbers):
    """The rule of p, g, the states and numbers, over whole blocks of all; a state has ``codes``, ``read`` and ``write``."""
    wide = arithmetic(p.dtype)
    update, temps = rule(p, g, *[state.codes for state in states], *numbers)
    count = 2 + len(states)

    def part(start, stop):
        tiles = [scratch((stop - start,), wide, k, 8) for k in range(count + temps)]
        for array, tile in ((p, tiles[0]), (g, tiles[1])):
            for at, piece in pieces(array, start, stop):
                np.copyto(tile[at : at + piece.size].reshape(piece.shape), piece, casting="unsafe")
        for state, tile in zip(states, tiles[2:], strict=False):
            state.read(start, stop, tile)
        update(*tiles[:count], *numbers, *tiles[count:])
        for at, piece in pieces(p, start, stop):
            np.copyto(piece, tiles[0][at : at + piece.size].reshape(piece.shape), casting="unsafe")
        for state, tile in zip(states, tiles[2:], strict=False):
            state.write(start, stop, tile)

    by_tile(p.size, block, part)


def by_tile(size, block, part):
    """Call ``part(start, stop)`` for whole blocks of ``size`` numbers, a tile at a time, in several threads."""
    step = max(_TILE // block, 1)

    def parts(first, last):
        for some in cuts(first, last, step):
            part(some.start * block, min(some.stop * block, size))

    split(-(-size // block), parts, grain=max(GRAIN // 4 // block, 1))


def pieces(a, start, stop):
    """(place, piece) of views that together are the elements ``start`` to ``stop`` of ``a`` in C order, for any strides."""
    if a.flags.c_contiguous or a.ndim < 2:
        yield 0, a.reshape(-1)[start:stop]
        return
    inner, i = a[0].size, start
    while i < stop:
        row, skip = divmod(i, inner)
        if skip == 0 and stop - i >= inner:
            rows = (stop - i) // inner
            yield i - start, a[row : row + rows]
            i += rows * inner
        else:
            end = min((row + 1) * inner, stop)
            for at, piece in pieces(a[row], skip, end - row * inner):
                yield i - start + at, piece
            i = end


def by_block(tile, block):
    """(blocks, numbers of each) of a tile: all whole ones, and the last where it is shorter."""
    whole = tile.size // block
    if whole:
        yield slice(0, whole), tile[: whole * block].reshape(whole, block)
    if whole * block < tile.size:
        yield slice(whole, whole + 1), tile[whole * block :].reshape(1, -1)


def unpack(codes, top, coded, block, out):
    """out = the numbers that the codes are decoded to."""
    look_up(codes, coded, out)
    for some, numbers in by_block(out, block):
        np.multiply(numbers, top[some, None], out=numbers)


def look_up(codes, coded, out):
    """out = the numbers of the map with these codes, before they are scaled."""
    index = scratch(out.shape, np.int64, 7, 8)
    unpack_bits(codes, coded.each, index)
    np.take(coded.values[out.dtype.char], index, out=out, mode="clip")  # other modes buffer the output


def pack(x, coded, block, top, codes):
    """codes = the nearest in the map to x divided by its block's largest absolute value, which is written to top."""
    size = scratch(x.shape, x.dtype, 0, 8)
    np.absolute(x, out=size)
    for some, sizes in by_block(size, block):
        np.maximum.reduce(sizes, axis=1, out=top[some])
    share = scratch(x.shape, np.float32, 1, 8)
    for (some, numbers), (_, shares) in zip(by_block(x, block), by_block(share, block), strict=True):
        np.divide(numbers, top[some, None], out=shares, casting="unsafe")  # a block of zeros: any code times 0
    nearest(share, coded, codes)


def nearest(share, coded, codes):
    """codes = those of the numbers of the map that are nearest to the shares, which are in slot 1 of 8 of the scratch."""
    index = scratch(share.shape, np.int64, 7, 8)
    np.right_shift(share.view(np.uint32), 16, out=index, casting="unsafe")
    found = scratch(share.shape, np.uint8, 6, 8)
    np.take(_GUESSES[coded], index, out=found, mode="clip")
    np.copyto(index, found)
    border = scratch(share.shape, np.float32, 0, 8)
    np.take(coded.borders, index, out=border, mode="clip")
    above = scratch(share.shape, np.bool_, 7, 8)
    np.greater(share, border, out=above)
    np.add(found, above.view(np.uint8), out=found)
    pack_bits(found, coded.each, codes)
