"""The tiles of convolution by rows, and where the arrays of a tile are in a lane: computed once, for all steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from .conv_geometry import even

NARROW = 8  # columns of an image below which images are side by side within a column, so that copies stay long
DEEP = 32  # terms of a product that is worth while without the kernel's columns
FEW = (
    4,
    16,
)  # channels in, or out, up to which gy keeps its order; else it is copied to channels last: slower copies, faster products
STACK = 1 << 15  # numbers of weight gradients that are computed at once and added afterwards


@dataclass(frozen=True)
class TileWalk:
    """out[n, o, y, x] = sum over c, i, j of w[o, c, i, j] * source[n, c, y * stride + i - low, x * stride + j - low]."""

    images: int
    cin: int
    cout: int
    inside: tuple[int, int]
    outside: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    low: tuple[int, int]
    wide: np.dtype  # of slabs and sums

    @cached_property
    def parts(self) -> int:
        """Products whose sum is the output: one for each kernel column that is shifted, or one."""
        shifted = self.stride[1] == 1 and self.kernel[0] * self.cin >= DEEP
        return self.kernel[1] if shifted else 1

    @cached_property
    def copies(self) -> int:
        """Kernel columns that the slab holds a copy for."""
        return self.kernel[1] // self.parts

    @cached_property
    def narrow(self) -> bool:
        return self.outside[1] < NARROW

    @cached_property
    def line(self) -> int:
        """Columns of an image in the slab: with shifts, the zeros at its end are those at the next one's beginning."""
        if self.parts == 1:
            return self.outside[1]
        beyond = self.kernel[1] - 1
        high = self.outside[1] + beyond - self.low[1] - self.inside[1]
        shared = 0 if self.narrow else max(min(self.low[1], high, beyond), 0)
        return self.outside[1] + beyond - shared

    @cached_property
    def columns(self) -> int:
        """Columns of an image in a product."""
        return self.outside[1] if self.narrow else self.line

    @cached_property
    def depth(self) -> int:
        """Terms of one output in each product."""
        return self.kernel[0] * self.copies * self.cin

    @cached_property
    def overlaps(self) -> list[tuple[int, slice, slice]]:
        """(kernel column, columns of the input, columns of the slab's line) of each copy that sees the input."""
        found, step, width = [], self.stride[1], self.inside[1]
        for j in range(self.copies):
            shift = j - self.low[1]
            left = min(-(min(shift, 0) // step), self.line)
            right = max(min(self.line, (width - 1 - shift) // step + 1), left)
            if left < right:
                found.append((j, slice(left * step + shift, (right - 1) * step + shift + 1, step), slice(left, right)))
        return found

    def reach(self, rows: int) -> int:
        """The number of input rows that ``rows`` output rows read."""
        return (rows - 1) * self.stride[0] + self.kernel[0]

    def apart(self, images: int, columns: int) -> tuple[int, int]:
        """Numbers from one image to the next, and from one column to the next; of narrow images columns are outside."""
        return (1, images) if self.narrow else (columns, 1)


class Tile(NamedTuple):
    """Output rows r0:r1 of images n0:n1."""

    n0: int
    n1: int
    r0: int
    r1: int


class TileLayout:
    """The shapes and strides of the arrays of tiles of one kind, within a lane.

    Attributes:
        width: the columns of an output row that count.
        numbers: those of the slab; a shifted line ends behind it.
        zeros: what the places of the slab's zeros depend on.
        slab: the slab as (rows, kernel columns, channels, images, columns).
        copies: columns of the input, and the index of the slab, for each kernel column that is copied.
        windows: the slab as the operands of each output row's products, (parts, rows, depth, images * columns).
        products: the shape (parts, rows, cout, images * columns).
        result: the first part of products as (images, cout, rows, columns that count).
        gradient: the shape of gy's rows, (rows, images * columns, cout), or ``turned``, with the last two axes exchanged.
        incoming: the same as (rows, cout, images, columns).
        stack: the shape of weight gradients that are computed at once, and of their sum; ``None``: there are none.
    """

    def __init__(self, walk: TileWalk, images: int, rows: int, filled: slice) -> None:
        cout, reach, self.wide, self.width = walk.cout, walk.reach(rows), walk.wide, walk.outside[1]
        self.copies = [(here, (filled, j, ..., there)) for j, here, there in walk.overlaps]
        self.zeros = walk, images, rows, filled.start, filled.stop

        length, columns = images * walk.line, images * walk.columns
        row, shift = walk.copies * walk.cin * length, images if walk.narrow else 1
        self.numbers = reach * row + walk.kernel[1]
        lines = row, walk.cin * length, length, *walk.apart(images, walk.line)
        self.slab = self._with_strides((reach, walk.copies, walk.cin, images, walk.line), *lines)
        self.windows = self._with_strides((walk.parts, rows, walk.depth, columns), shift, walk.stride[0] * row, length, 1)

        image, column = walk.apart(images, walk.columns)
        self.products = walk.parts, rows, cout, columns
        self.result = self._with_strides((images, cout, rows, self.width), image, columns, cout * columns, column)

        self.turned = walk.cin <= FEW[0] or cout <= FEW[1]
        self.gradient = (rows, cout, columns) if self.turned else (rows, columns, cout)
        channel, pixel = (columns, 1) if self.turned else (1, cout)
        self.incoming = self._with_strides(
            (rows, cout, images, walk.columns), cout * columns, channel, image * pixel, column * pixel
        )
        stacked = _stacked(walk, rows)
        self.stack = (walk.parts, stacked, walk.depth, cout) if stacked > 1 else None

    def _with_strides(self, shape: tuple[int, ...], *apart: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape, and strides in bytes for steps in numbers."""
        return shape, tuple([n * self.wide.itemsize for n in apart])


class Piece(NamedTuple):
    """A tile: its layout, and the indices of the input rows that it reads and of its output."""

    layout: TileLayout
    seen: tuple[slice, ...]
    target: tuple[slice, ...]


def size_of(walk: TileWalk, images: int, rows: int, kind: str) -> int:
    """Numbers that a tile needs in its lane."""
    slab = walk.reach(rows) * walk.copies * walk.cin * walk.line * images + walk.kernel[1]
    results = rows * walk.cout * walk.columns * images
    if kind != "weight":
        return slab + results * walk.parts + 256
    weight = walk.parts * walk.depth * walk.cout
    return slab + results + weight * (1 + _stacked(walk, rows)) + 256


def _stacked(walk: TileWalk, rows: int) -> int:
    """Rows whose weight gradients are computed at once, and one more for their sum; none where a single one is large."""
    fit = min(STACK // (walk.parts * walk.depth * walk.cout), rows)
    return fit + 1 if fit else 0


def tiles(walk: TileWalk, kind: str, room: int, lanes: int) -> list[Piece]:
    """The map cut into the tiles that take the least time, of those that fit ``room`` numbers.

    A tile costs what its calls cost (60 microseconds), its slab 0.3 ns a number (rows that two tiles read are copied twice),
    and products slow down when they are narrow: estimates, from measurements on one machine.
    """
    height = walk.outside[0]
    best, least = (1, 1), math.inf
    for images in sorted({even(walk.images, most) for most in range(1, walk.images + 1)}):
        rows = height
        while rows > 1 and size_of(walk, images, rows, kind) > room:
            rows = even(height, rows - 1)
        columns = images * walk.columns
        if images > 1 and (size_of(walk, images, rows, kind) > room or columns > 1024):
            break
        count = -(-walk.images // images) * -(-height // rows)
        count = -(-count // lanes) * lanes  # the last ones wait for each other
        copies = walk.reach(rows) * walk.copies * walk.cin * walk.line * images
        products = rows * walk.parts * walk.depth * walk.cout * (columns + 16)
        cost = count * (60e3 + 0.3 * copies + products / 70)
        if cost < least:
            best, least = (images, rows), cost
    images, rows = best
    firsts = product(range(0, walk.images, images), range(0, height, rows))
    return _pieces(walk, [Tile(n, min(n + images, walk.images), r, min(r + rows, height)) for n, r in firsts])


def _pieces(walk: TileWalk, every: list[Tile]) -> list[Piece]:
    """The tiles as pieces, worked out once for all steps. Those of one kind have one layout."""
    pieces, layouts = [], {}
    for n0, n1, r0, r1 in every:
        first, reach = r0 * walk.stride[0] - walk.low[0], walk.reach(r1 - r0)
        a = min(max(-first, 0), reach)
        b = max(min(reach, walk.inside[0] - first), a)
        kind = n1 - n0, r1 - r0, a, b
        if kind not in layouts:
            layouts[kind] = TileLayout(walk, n1 - n0, r1 - r0, slice(a, b))
        images = slice(n0, n1), slice(None)
        pieces.append(Piece(layouts[kind], (*images, slice(first + a, first + b)), (*images, slice(r0, r1))))
    return pieces
