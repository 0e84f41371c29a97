"""The shapes of a convolution, and the lanes of its workspace, one for each thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....dtypes import arithmetic
from . import threads

LARGE = 1 << 18  # numbers of a weight
WORKSPACE = 7 << 18  # bytes, all lanes together
LANES = 8  # at most; fewer lanes have larger tiles


def lift(sizes: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Three sizes or steps for one to three axes; missing leading axes get ``fill``."""
    return (fill,) * (3 - len(sizes)) + tuple(sizes)


def lift_array(x: np.ndarray) -> np.ndarray:
    """A view of (N, C, *spatial) with three spatial axes."""
    return x[(slice(None), slice(None), *(None,) * (5 - x.ndim))] if x.ndim < 5 else x


@dataclass(frozen=True)
class Geometry:
    """A convolution's shapes: ``inside`` is its input's spatial shape, ``outside`` its output's, all of length three."""

    images: int
    groups: int
    cin: int  # input channels per group
    cout: int  # output channels per group
    inside: tuple[int, ...]
    outside: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]  # padding before
    dilation: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, x_shape, w_shape, y_shape, stride, low, dilation, groups, dtype) -> Geometry:
        return cls(
            x_shape[0],
            groups,
            w_shape[1],
            w_shape[0] // groups,
            lift(x_shape[2:], 1),
            lift(y_shape[2:], 1),
            lift(w_shape[2:], 1),
            lift(stride, 1),
            lift(low, 0),
            lift(dilation, 1),
            np.dtype(dtype),
        )

    @property
    def wide(self) -> np.dtype:
        """The dtype of tiles and sums."""
        return arithmetic(self.dtype)

    @cached_property
    def taps(self) -> int:
        a, b, c = self.kernel
        return a * b * c

    @cached_property
    def pixels(self) -> int:
        a, b, c = self.outside
        return a * b * c

    @cached_property
    def pointwise(self) -> bool:
        """Windows are single pixels: the input itself is the column matrix."""
        return self.taps == 1 and self.stride == (1, 1, 1) and self.low == (0, 0, 0) and self.inside == self.outside

    def is_mostly_weight(self, pixels: int) -> bool:
        """True if the weight is large, and much larger than maps with ``pixels`` pixels in all images."""
        return self.taps * self.cin * self.cout >= max(8 * pixels * (self.cin + self.cout), LARGE)

    def reach(self, box: tuple[int, ...]) -> tuple[int, ...]:
        """The input extent that an output box of this shape reads."""
        return tuple(
            (b - 1) * s + d * (k - 1) + 1 for b, s, d, k in zip(box, self.stride, self.dilation, self.kernel, strict=True)
        )


def strided(numbers: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """A view of contiguous ``numbers``. NumPy's ``as_strided`` takes 30 microseconds, as long as a small copy."""
    return np.ndarray(shape, numbers.dtype, numbers, 0, strides)


def even(size: int, most: int) -> int:
    """The size of equal parts of ``size``, at most ``most`` each."""
    return -(-size // -(-size // max(min(most, size), 1)))


_SHORT = 64  # numbers of a row up to which starting to copy it takes as long as copying it


def whole_rows(values: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both (..., columns) as (..., 1) whole rows, if these are short: NumPy copies them in half of the time. Else unchanged."""
    columns, size = out.shape[-1], out.itemsize
    if 0 < columns <= _SHORT and values.strides[-1] == out.strides[-1] == size and values.dtype == out.dtype:
        row = np.dtype((np.void, columns * size))
        return values.view(row), out.view(row)
    return values, out


def copy_rows(values: np.ndarray, out: np.ndarray) -> None:
    """out = values (..., columns)."""
    values, out = whole_rows(values, out)
    np.copyto(out, values, casting="same_kind")


class Lane:
    """One lane's part of a workspace, given out as arrays."""

    zeros: tuple[object, ...] | None = None  # what the first array holds: its zeros stay where they are

    def __init__(self, work: np.ndarray, lane: int, of: int) -> None:
        size = work.nbytes // of // 64 * 64
        self.buffer, self.start, self.stop = work, lane * size, (lane + 1) * size
        self.next = self.start

    def part(self, number: int, of: int) -> Lane:
        """An equal share of the rest of this lane."""
        size = (self.stop - self.next) // of // 64 * 64
        lane = object.__new__(Lane)
        lane.buffer, lane.start = self.buffer, self.next + number * size
        lane.stop, lane.next = lane.start + size, lane.start
        return lane

    def reset(self) -> None:
        self.next = self.start

    def take(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        a = np.ndarray(shape, dtype, self.buffer, self.next)
        self.next += -(-a.nbytes // 64) * 64
        assert self.next <= self.stop + 63, "a convolution's plan does not fit its workspace"
        return a


def lane_count(work: np.ndarray) -> int:
    return min(threads.threads(), LANES)
