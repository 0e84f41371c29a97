"""Slabs of Winograd's convolution: rows of all channels of a few images side by side, and the sums of six of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blas import Product, multiply
from .conv_geometry import strided, whole_rows

INPUT = np.array(  # B^T: six rows to six sums of rows
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float32,
)
SLACK = 16  # numbers before and behind a slab: read from another number on, it begins before itself or ends behind
_PIECE = 1 << 13  # columns of a tiny product that stay in cache


class Line(NamedTuple):
    """A few images side by side: each has ``width`` columns in a slab, of which the first ``out`` count in a product.

    Where the output is as wide as the input, no column is for zeros: ``before`` is 1, the first kernel column reads a slab from
    one number before its first one, and what it reads at an image's left edge, the third one at its right, must not count.
    Otherwise ``before`` is 0, and there are zeros: those at the end of one image are those at the beginning of the next.
    """

    images: int
    width: int
    out: int
    before: int

    @classmethod
    def of(cls, images: int, inside: int, out: int, low: int) -> Line:
        if inside == out and low == 1:
            return cls(images, out, out, 1)
        shared = max(min(low, out + 2 - low - inside, 2), 0)
        return cls(images, out + 2 - shared, out, 0)

    @property
    def columns(self) -> int:
        return self.images * self.width

    def in_images(self, flat: np.ndarray) -> np.ndarray:
        """(..., columns) as (..., images, width)."""
        return flat.reshape(*flat.shape[:-1], self.images, self.width)

    def edges(self, products: np.ndarray) -> np.ndarray:
        """Of products (parts, 6, channels, columns): those of the first kernel column with the left edge of each image,
        and of the third one, if it is there, with the right edge. One view of both; none are there if ``before`` is 0.
        """
        count = self.before * (len(products) + 1) // 2
        column, *strides = products.strides
        strides = 2 * column + (self.width - 1) * products.itemsize, *strides[:2], self.width * products.itemsize
        return strided(products.reshape(-1), (count, *products.shape[1:3], self.images), strides)


class SlabReader:
    """Copies rows of a map (images, channels, rows, columns) into one slab (rows, channels, images, width).

    Columns follow after ``left`` zeros. All views that do not depend on the tile are made once: one takes as long as a small
    copy.
    """

    def __init__(self, source: np.ndarray, left: int, slab: np.ndarray) -> None:
        right = min(left + source.shape[3], slab.shape[3])
        start = max(left, 0)
        rows = source.transpose(2, 1, 0, 3)[..., start - left : right - left]
        self._rows, self._inside = whole_rows(rows, slab[..., start:right])
        self._slab, self._beside = slab, [part for part in (slab[..., :start], slab[..., right:]) if part.size]
        self._count, self._height = len(slab), len(rows)

    def read(self, first: int, n0: int, n1: int) -> None:
        """Fill the slab with the rows from ``first`` on of images n0:n1; rows beyond the edges are zero."""
        stop, inside = first + self._count, self._inside
        if first < 0 or stop > self._height:
            a = min(max(-first, 0), self._count)
            b = max(min(self._count, self._height - first), a)
            self._slab[:a] = self._slab[b:] = 0
            first, stop, inside = first + a, first + b, inside[a:b]
        for part in self._beside:
            part.fill(0)
        np.copyto(inside, self._rows[first:stop, :, n0:n1])


def sums_of_rows(matrix: np.ndarray, slab: np.ndarray, out: np.ndarray) -> list[Product]:
    """The products of out (a, n) = matrix (a, b) @ slab (b, n), in pieces that stay in cache."""
    whole = slab.shape[1] // _PIECE * _PIECE
    products = []
    if whole:
        pieces = (-1, whole // _PIECE, _PIECE)
        left, right = slab[:, :whole].reshape(pieces), out[:, :whole].reshape(pieces)
        products.append((matrix, left.transpose(1, 0, 2), right.transpose(1, 0, 2)))
    if whole < slab.shape[1]:
        products.append((matrix, slab[:, whole:], out[:, whole:]))
    return products


class SixRows:
    """Six input rows of all channels of a line of images, and their six sums, in two buffers.

    Attributes:
        slab: the rows (6, channels, images, width).
        windows: the sums as each kernel column reads them (3, 6, channels, columns).
        edge: the sums in the first column of each image.
    """

    def __init__(self, line: Line, channels: int, first: np.ndarray, second: np.ndarray) -> None:
        shape, stop = (6, channels, line.columns), SLACK + 6 * channels * line.columns
        rows, sums = first[: stop - SLACK].reshape(shape), second[SLACK:stop].reshape(shape)
        size = rows.itemsize
        self.slab = line.in_images(rows)
        self._products = sums_of_rows(INPUT, rows.reshape(6, -1), sums.reshape(6, -1))
        self._ends = second[SLACK - 1 : stop + 1 : stop + 1 - SLACK] if line.before else second[stop : stop + 2]
        self.edge = line.in_images(sums)[..., 0]
        strides = (size, channels * line.columns * size, line.columns * size, size)
        self.windows = strided(second[SLACK - line.before :], (3, 6, channels, line.columns), strides)

    def add_up(self) -> None:
        """Make the sums; what kernel columns read beside a channel's sums is zero."""
        multiply(self._products)
        self._ends.fill(0)
