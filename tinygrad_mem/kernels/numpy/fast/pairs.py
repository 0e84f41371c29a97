"""Max pooling with windows of 2 x 2 that cover an image once: two pixels side by side are one word of twice their size.

A word is read, shifted and written at once; a step over every second pixel takes twice as long or more. Copies of whole lines
tell the upper lines of windows from the lower ones. Words are little-endian: the left pixel is the low half.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .threads import scratch
from .tiles import cuts

_POINTS = 1 << 16  # windows of a tile, whose arrays fill the scratch: threads that make short calls wait for each other
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
    width, rows = out.shape[-1], 0
    best, which = out.reshape(-1, width), index.reshape(-1, width)
    pixels = x.reshape(len(best), 2, 2 * width)
    words, odd, best_lines, which_lines = pixels.view(np.uint64), pixels[..., 1::2], _lines(best, width), _lines(which, width)
    for cut in _tiles(len(best), width):
        if cut.stop - cut.start != rows:  # the first tile, or the last one
            rows = cut.stop - cut.start
            left, right = (scratch((rows, 2, width), np.float32, slot, 4) for slot in range(2))
            side, below = scratch((rows, 2, width), np.uint8, 2, 4), scratch((rows, width), np.float32, 3, 4)
            second, lower = right.reshape(-1).view(np.uint8)[: 2 * below.size].reshape(2, rows, width)
            low, wins, falls = left.view(np.uint32), side.view(np.bool_), lower.view(np.bool_)
            lines, sides, below_lines, second_lines = (_lines(a, width) for a in (left, side, below, second))
        above, first = best[cut], which[cut]
        np.copyto(low, words[cut], casting="unsafe")  # the low halves
        np.copyto(right, odd[cut])
        np.greater(right, left, out=wins)
        np.maximum(right, left, out=left)
        np.copyto(best_lines[cut], lines[:, 0])
        np.copyto(below_lines, lines[:, 1])
        np.copyto(which_lines[cut], sides[:, 0])
        np.copyto(second_lines, sides[:, 1])
        np.greater(below, above, out=falls)
        np.maximum(below, above, out=above)
        np.add(second, 2, out=second)
        np.subtract(second, first, out=second)
        np.multiply(second, lower, out=second)
        np.add(first, second, out=first)  # second where lower


def to_largest(gy: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
    """out (2 or 4 bytes a pixel) = gy at the place of each window's index, else 0: each pixel is written once.

    A word is gy shifted to the side of the index; a shift by more than the word leaves 0, and so blots out the other line.
    """
    width, rows, half, whole = gy.shape[-1], 0, _HALVES[gy.itemsize], _WORDS[gy.itemsize]
    bits = 8 * half.itemsize
    grads, which = gy.reshape(-1, width).view(half), index.reshape(-1, width)
    words = _lines(out.reshape(len(grads), 2, 2 * width).view(whole), width)
    for cut in _tiles(len(grads), width):
        if cut.stop - cut.start != rows:  # the first tile, or the last one
            rows = cut.stop - cut.start
            word, shift, moved = (scratch((rows, width), whole, slot, 3) for slot in range(3))
            line = _lines(moved, width)
        np.copyto(word, grads[cut])
        np.copyto(shift, which[cut])
        np.multiply(shift, bits, out=shift)
        np.left_shift(word, shift, out=moved)
        np.copyto(words[cut, 0], line)
        np.subtract(shift, 2 * bits, out=shift)  # modulo the range: indices above are now far beyond the word
        np.left_shift(word, shift, out=moved)
        np.copyto(words[cut, 1], line)
