"""Max pooling with windows of 2 x 2 that cover an image once: two pixels side by side are one word of twice their size.

A word is read, shifted and written at once; a step over every second pixel takes twice as long or more. Copies of whole lines
tell the upper lines of windows from the lower ones. Words are little-endian: the left pixel is the low half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .threads import scratch
from .tiles import cuts

_POINTS = 1 << 15  # windows of a tile: its arrays share the scratch, and stay in a cache of 1 MiB
_HALVES = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}
_WORDS = {2: np.dtype(np.uint32), 4: np.dtype(np.uint64)}


def covered(sizes: tuple[int, ...], outs: tuple[int, ...], geometry: Any) -> bool:
    """True if windows of 2 x 2 see each pixel once."""
    return geometry == ((2, 2), (2, 2), (0, 0), (1, 1)) and sizes == tuple([2 * n for n in outs]) and 0 < outs[1] <= _POINTS


def _lines(x: np.ndarray, width: int) -> np.ndarray:
    """x (contiguous, ..., width) with each line as one element of bytes."""
    return x.view(np.dtype((np.void, width * x.itemsize)))[..., 0]


def _tiles(lines: int, width: int) -> list[slice]:
    return cuts(0, lines, max(_POINTS // width, 1))


def largest(x: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out = the largest of each window of float32, index = its number: 0 and 1 above, 2 and 3 below; the first of several."""
    width = out.shape[-1]
    best, which = out.reshape(-1, width), index.reshape(-1, width)
    pixels = x.reshape(len(best), 2 * 2 * width)
    for cut in _tiles(len(best), width):
        shape = (len(best[cut]), 2, width)
        left, right = (scratch(shape, np.float32, slot, 4) for slot in range(2))
        side, work = scratch(shape, np.uint8, 2, 4), scratch(shape[::2], np.float32, 3, 4)
        line = pixels[cut].reshape(-1)
        np.copyto(left.view(np.uint32).reshape(-1), line.view(np.uint64), casting="unsafe")  # the low halves
        np.copyto(right.reshape(-1), line[1::2])
        np.greater(right, left, out=side.view(np.bool_))
        np.maximum(right, left, out=left)
        above, below = best[cut], work
        for row, target in enumerate((above, below)):
            np.copyto(_lines(target, width), _lines(left, width)[:, row])
        first, second, lower = which[cut], *right.reshape(-1).view(np.uint8)[: 2 * work.size].reshape(2, *work.shape)
        for row, target in enumerate((first, second)):
            np.copyto(_lines(target, width), _lines(side, width)[:, row])
        np.greater(below, above, out=lower.view(np.bool_))
        np.maximum(below, above, out=above)
        np.add(second, 2, out=second)
        np.subtract(second, first, out=second)
        np.multiply(second, lower, out=second)
        np.add(first, second, out=first)  # second where lower


def to_largest(gy: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out (2 or 4 bytes a pixel) = gy at the place of each window's index, else 0: each pixel is written once.

    A word is gy shifted to the side of the index; a shift by more than the word leaves 0, and so blots out the other line.
    """
    width, half, whole = gy.shape[-1], _HALVES[gy.itemsize], _WORDS[gy.itemsize]
    bits = 8 * half.itemsize
    grads, which = gy.reshape(-1, width).view(half), index.reshape(-1, width)
    words = _lines(out.reshape(len(grads), 2, 2 * width).view(whole), width)
    for cut in _tiles(len(grads), width):
        shape = grads[cut].shape
        word, shift, moved = (scratch(shape, whole, slot, 3) for slot in range(3))
        np.copyto(word, grads[cut])
        np.copyto(shift, which[cut])
        np.multiply(shift, bits, out=shift)
        for row in range(2):
            if row:
                np.subtract(shift, 2 * bits, out=shift)  # modulo the range: indices above are now far beyond the word
            np.left_shift(word, shift, out=moved)
            np.copyto(words[cut, row], _lines(moved, width))
