"""Slabs of Winograd's convolution: rows of all channels of a few images side by side, and the sums of six of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .conv_geometry import copy_rows, strided
from .conv_rows import Tile

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

    @property
    def pitch(self) -> int:
        """Numbers from one channel to the next: caches hold few lines that are a large power of two apart."""
        return self.columns + (min(2 * self.images, 16) if self.before and self.columns % 512 == 0 else 0)

    def in_images(self, flat: np.ndarray) -> np.ndarray:
        """(..., columns or pitch) as (..., images, width)."""
        return flat[..., : self.columns].reshape(*flat.shape[:-1], self.images, self.width)

    def shifted(self, numbers: np.ndarray, channels: int) -> np.ndarray:
        """(3, 6, channels, columns): a view of six rows behind ``SLACK`` numbers, as each kernel column reads them."""
        size = numbers.itemsize
        strides = (size, channels * self.pitch * size, self.pitch * size, size)
        return strided(numbers[SLACK - self.before :], (3, 6, channels, self.columns), strides)


def gather(source: np.ndarray, tile: Tile, first: int, left: int, slab: np.ndarray) -> None:
    """slab (rows, channels, images, columns) = source's rows from ``first`` on, put behind ``left`` columns of zeros."""
    height, width = source.shape[2:]
    rows, columns = len(slab), slab.shape[3]
    a = min(max(-first, 0), rows)
    b = max(min(rows, height - first), a)
    right = min(left + width, columns)
    if a > 0 or b < rows:
        slab[:a] = slab[b:] = 0
    if left > 0 or right < columns:
        slab[a:b, ..., : max(left, 0)] = slab[a:b, ..., right:] = 0
    part = source[tile.n0 : tile.n1, :, first + a : first + b, max(-left, 0) : right - left]
    copy_rows(part.transpose(2, 1, 0, 3), slab[a:b, ..., max(left, 0) : right])


def sums_of_rows(matrix: np.ndarray, slab: np.ndarray, out: np.ndarray) -> None:
    """out (a, n) = matrix (a, b) @ slab (b, n), in pieces that stay in cache."""
    whole = slab.shape[1] // _PIECE * _PIECE
    if whole:
        pieces = (-1, whole // _PIECE, _PIECE)
        left, right = slab[:, :whole].reshape(pieces), out[:, :whole].reshape(pieces)
        np.matmul(matrix, left.transpose(1, 0, 2), out=right.transpose(1, 0, 2))
    if whole < slab.shape[1]:
        np.matmul(matrix, slab[:, whole:], out=out[:, whole:])


def sums_of_six(line: Line, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The sums of six input rows, a part of ``numbers``; what kernel columns read beside a channel's sums is zero."""
    stop = SLACK + rows.size
    if line.pitch > line.columns:
        rows.reshape(-1, line.pitch)[:, line.columns :].fill(0)
    sums = numbers[SLACK:stop]
    sums_of_rows(INPUT, rows.reshape(6, -1), sums.reshape(6, -1))
    numbers[SLACK - 1] = numbers[stop] = numbers[stop + 1] = 0
    return sums
