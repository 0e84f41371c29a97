"""Convolution by rows: two axes, one group, no dilation; the general way where Winograd's does not pay.

A lane holds a few input rows of a few images in a slab (row, kernel column, channel, image, column): one copy for each kernel
*column*. Kernel *rows* need no copy: the operand of the product that makes one output row is a view of consecutive slab rows,
with kernel rows, kernel columns and channels as one axis. So windows are copied k times instead of k * k times, in long runs,
and a handful of calls does a whole tile. The gradient of x is the same walk over gy with the turned weight (a stride divides it
into phases, one for each remainder); the gradient of w multiplies the slab's views by rows of gy.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, WORKSPACE, Geometry, Lane, even, lane_count

WIDE = 256  # columns of a product, about
NARROW = 8  # columns of an image below which images lie side by side within a column, so that copies stay long
WEIGHT = 12 << 20  # bytes of a weight that may be copied into the slab's order
GRAIN = 1e6  # ns of work that pay for a core of their own
STACK = 1 << 14  # numbers of a weight gradient up to which rows are multiplied at once and summed afterwards


class Walk(NamedTuple):
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

    @property
    def depth(self) -> int:
        """Terms of one output."""
        return self.kernel[0] * self.kernel[1] * self.cin

    def reach(self, rows: int) -> int:
        """Input rows that so many output rows read."""
        return (rows - 1) * self.stride[0] + self.kernel[0]


class Tile(NamedTuple):
    """Output rows r0:r1 of images n0:n1."""

    n0: int
    n1: int
    r0: int
    r1: int


def _numbers(walk: Walk, images: int, rows: int, kind: str) -> int:
    """Numbers that a tile needs in its lane."""
    columns = images * walk.outside[1]
    size = (walk.reach(rows) * walk.kernel[1] * walk.cin + rows * walk.cout) * columns
    weight = walk.depth * walk.cout
    return size + (weight * (1 + (rows if weight <= STACK else 0)) if kind == "weight" else 0) + 256


@lru_cache(maxsize=256)
def tiles(walk: Walk, kind: str, room: int, lanes: int) -> list[Tile]:
    """The map cut into the tiles that take the least time, of those that fit ``room`` numbers.

    A tile costs what its calls cost (60 microseconds), its slab 0.4 ns a number (rows that two tiles read are copied twice),
    and products slow down when they are narrow: estimates, from measurements on one machine.
    """
    height, width = walk.outside
    best, least = (1, 1), math.inf
    for images in sorted({even(walk.images, most) for most in range(1, walk.images + 1)}):
        rows = height
        while rows > 1 and _numbers(walk, images, rows, kind) > room:
            rows = even(height, rows - 1)
        if images > 1 and (_numbers(walk, images, rows, kind) > room or images * width > 4 * WIDE):
            break
        count = -(-walk.images // images) * -(-height // rows)
        count = -(-count // lanes) * lanes  # the last ones wait for each other
        columns = images * width
        copies = walk.reach(rows) * walk.kernel[1] * walk.cin * columns
        products = rows * walk.depth * walk.cout * (columns + 32)
        cost = count * (60e3 + 0.4 * copies + products / 50)
        if cost < least:
            best, least = (images, rows), cost
    images, rows = best
    return [
        Tile(n, min(n + images, walk.images), r, min(r + rows, height))
        for n in range(0, walk.images, images)
        for r in range(0, height, rows)
    ]


def walk_of(geo: Geometry, kind: str) -> Walk:
    """The walk of a convolution; for "input", one that is as large as each of its phases."""
    kernel, stride, low, inside, outside = ((a[1], a[2]) for a in (geo.kernel, geo.stride, geo.low, geo.inside, geo.outside))
    if kind == "input":
        kernel = (-(-kernel[0] // stride[0]), -(-kernel[1] // stride[1]))
        largest = (-(-inside[0] // stride[0]), -(-inside[1] // stride[1]))
        return Walk(geo.images, geo.cout, geo.cin, outside, largest, kernel, (1, 1), (0, 0), geo.wide)
    return Walk(geo.images, geo.cin, geo.cout, inside, outside, kernel, stride, low, geo.wide)


def fits(geo: Geometry, kind: str) -> bool:
    """Whether rows compute this within their workspace on one lane; never a question of how many cores there are."""
    flat = geo.inside[0] == geo.outside[0] == geo.kernel[0] == 1 and geo.low[0] == 0
    if not flat or geo.groups != 1 or geo.dilation[1:] != (1, 1):
        return False
    if kind != "weight" and geo.taps * geo.cin * geo.cout * geo.wide.itemsize > WEIGHT:
        return False
    walk = walk_of(geo, kind)
    room = WORKSPACE // geo.wide.itemsize
    least = _numbers(walk, 1, 1, kind)
    return least * (2 if kind == "weight" else 1) <= room or (kind != "weight" and least <= 4 * room)


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes: slabs of all lanes, no more than hold everything, and the weight in the slab's order where it is read."""
    walk, size = walk_of(geo, kind), geo.wide.itemsize
    whole = (_numbers(walk, walk.images, walk.outside[0], kind) + 64) * max(int(_time(walk) / GRAIN), 1)
    slabs = max(min(WORKSPACE, whole * size), 2 * _numbers(walk, 1, 1, kind) * size)
    return slabs + LANES * 64 + (0 if kind == "weight" else geo.taps * geo.cin * geo.cout * size)


def _time(walk: Walk) -> float:
    """Nanoseconds of one core, about."""
    pixels = walk.images * walk.outside[0] * walk.outside[1]
    return pixels * (walk.depth * walk.cout / 50 + 0.4 * (walk.kernel[1] * walk.cin + walk.cout))


def _lanes(walk: Walk, kind: str, whole: Lane) -> tuple[int, int]:
    """(lanes, numbers of each): as many as there are cores, as long as each has work and can hold the least tile."""
    numbers = (whole.stop - whole.next) // walk.wide.itemsize
    most = min(lane_count(whole.buffer), numbers // (_numbers(walk, 1, 1, kind) + 64))
    lanes = max(min(most, int(_time(walk) / GRAIN)), 1)
    return lanes, numbers // lanes - 64


def _slab(lane: Lane, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """(..., images, columns); narrow images lie with their columns outside, so that the last axis of memory stays long."""
    if shape[-1] >= NARROW:
        return lane.take(shape, dtype)
    return lane.take((*shape[:-2], shape[-1], shape[-2]), dtype).swapaxes(-1, -2)


def _flat(slab: np.ndarray) -> np.ndarray:
    """A slab with images and columns as one axis, in the order of memory."""
    if slab.strides[-1] > slab.strides[-2]:
        slab = slab.swapaxes(-1, -2)
    return slab.reshape(*slab.shape[:-2], -1)


def gather(walk: Walk, source: np.ndarray, tile: Tile, lane: Lane) -> np.ndarray:
    """The slab (rows, kernel columns, channels, images, columns) that a tile reads; zeros beyond the edges."""
    (height, width), first = walk.inside, tile.r0 * walk.stride[0] - walk.low[0]
    rows = walk.reach(tile.r1 - tile.r0)
    shape = (rows, walk.kernel[1], walk.cin, tile.n1 - tile.n0, walk.outside[1])
    slab = _slab(lane, shape, walk.wide)
    a = min(max(-first, 0), rows)
    b = max(min(rows, height - first), a)
    slab[:a] = 0
    slab[b:] = 0
    part = source[tile.n0 : tile.n1, :, first + a : first + b].transpose(2, 1, 0, 3)
    step = walk.stride[1]
    for j in range(walk.kernel[1]):
        shift = j - walk.low[1]
        left = min(-(min(shift, 0) // step), walk.outside[1])
        right = max(min(walk.outside[1], (width - 1 - shift) // step + 1), left)
        to = slab[a:b, j]
        if left:
            to[..., :left] = 0
        if right < walk.outside[1]:
            to[..., right:] = 0
        if left < right:
            np.copyto(to[..., left:right], part[..., left * step + shift : (right - 1) * step + shift + 1 : step])
    return slab


def windows(walk: Walk, slab: np.ndarray, rows: int) -> np.ndarray:
    """The operand of each output row's product: (rows, kernel rows * kernel columns * channels, images * columns), a view."""
    line = walk.kernel[1] * walk.cin
    columns = slab.shape[3] * slab.shape[4]
    size = slab.itemsize
    strides = (walk.stride[0] * line * columns * size, columns * size, size)
    return np.lib.stride_tricks.as_strided(slab, (rows, walk.kernel[0] * line, columns), strides)


def weights(w: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out (cout, taps..., cin) = w (cout, cin, taps...), on all cores."""
    source = np.moveaxis(w, 1, -1)

    def part(start: int, stop: int) -> None:
        np.copyto(out[start:stop], source[start:stop])

    threads.split(len(out), part, grain=max(threads.GRAIN * len(out) // max(out.size, 1), 1))
    return out


def correlate(walk: Walk, source: np.ndarray, w: np.ndarray, bias: Any, work: np.ndarray, out: np.ndarray) -> None:
    """One walk: ``w`` is a view (cout, cin, kernel rows, kernel columns), ``out`` any view of (images, cout, rows, columns)."""
    whole = Lane(work, 0, 1)
    matrix = weights(w, whole.take((walk.cout, *walk.kernel, walk.cin), walk.wide)).reshape(walk.cout, -1)
    shift = None if bias is None else bias.reshape(-1, 1, 1)
    lanes, room = _lanes(walk, "forward", whole)
    tasks = tiles(walk, "forward", room, lanes)

    def run(number: int, start: int, stop: int) -> None:
        lane = whole.part(number, lanes)
        for tile in tasks[start:stop]:
            lane.reset()
            rows = tile.r1 - tile.r0
            slab = gather(walk, source, tile, lane)
            sums = _slab(lane, (rows, walk.cout, *slab.shape[3:]), walk.wide)
            blas.by_columns(matrix, windows(walk, slab, rows), _flat(sums))
            target, values = out[tile.n0 : tile.n1, :, tile.r0 : tile.r1], sums.transpose(2, 1, 0, 3)
            if shift is None:
                np.copyto(target, values, casting="same_kind")
            else:
                np.add(values, shift, out=target, casting="same_kind")

    with blas.single():
        threads.lanes(len(tasks), lanes, run)


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias."""
    walk = walk_of(geo, "forward")
    x, out = _two_axes(x), _two_axes(out)
    correlate(walk, x, w.reshape(*w.shape[:2], *geo.kernel[1:]), bias, work, out)


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x, which is also the transposed convolution of gy; a bias is added to it."""
    gy, gx = _two_axes(gy), _two_axes(out)
    w = w.reshape(*w.shape[:2], *geo.kernel[1:]).transpose(1, 0, 2, 3)
    (sy, sx), low = geo.stride[1:], geo.low[1:]
    for py, px in np.ndindex(sy, sx):
        target = gx[:, :, py::sy, px::sx]
        first = ((py + low[0]) % sy, (px + low[1]) % sx)  # the first kernel row and column that reach this phase
        taps = w[:, :, first[0] :: sy, first[1] :: sx][:, :, ::-1, ::-1]
        if target.size == 0:
            continue
        if taps.size == 0:
            np.copyto(target, 0 if bias is None else bias.reshape(-1, 1, 1))
            continue
        kernel = taps.shape[2:]
        start = (kernel[0] - 1 - (py + low[0]) // sy, kernel[1] - 1 - (px + low[1]) // sx)
        walk = Walk(geo.images, geo.cout, geo.cin, gy.shape[2:], target.shape[2:], kernel, (1, 1), start, geo.wide)
        correlate(walk, gy, taps, bias, work, target)


def backward_weight(geo, gy, x, work, out):
    """The gradient of w: each lane sums its own tiles, the lanes' sums are added in order."""
    walk = walk_of(geo, "weight")
    gy, x = _two_axes(gy), _two_axes(x)
    whole = Lane(work, 0, 1)
    lanes, room = _lanes(walk, "weight", whole)
    tasks = tiles(walk, "weight", room, lanes)
    parts = [whole.part(number, lanes) for number in range(lanes)]
    totals = [part.take((walk.depth, walk.cout), walk.wide) for part in parts]
    spans = [len(tasks) * i // lanes for i in range(lanes + 1)]

    def run(number: int, start: int, stop: int) -> None:
        for i in range(start, stop):
            _weight_lane(walk, gy, x, parts[i], tasks[spans[i] : spans[i + 1]], totals[i])

    with blas.single():
        threads.lanes(lanes, lanes, run)
    for other in totals[1:]:
        totals[0] += other
    total = totals[0].reshape(*walk.kernel, walk.cin, walk.cout).transpose(3, 2, 0, 1)
    np.copyto(out.reshape(total.shape), total, casting="same_kind")


def _weight_lane(walk: Walk, gy: np.ndarray, x: np.ndarray, lane: Lane, tasks: list[Tile], total: np.ndarray) -> None:
    """total (depth, cout) = what one lane's tiles give."""
    total.fill(0)
    mark = lane.next
    for tile in tasks:
        lane.next = mark
        rows = tile.r1 - tile.r0
        slab = gather(walk, x, tile, lane)
        incoming = _slab(lane, (rows, walk.cout, *slab.shape[3:]), walk.wide)
        np.copyto(incoming, gy[tile.n0 : tile.n1, :, tile.r0 : tile.r1].transpose(2, 1, 0, 3))
        left, right = windows(walk, slab, rows), _flat(incoming).swapaxes(1, 2)
        if total.size <= STACK:
            sums = lane.take((rows, *total.shape), walk.wide)
            np.matmul(left, right, out=sums)
            for part in sums:
                total += part
        else:
            for a, b in zip(left, right, strict=True):
                blas.add_product(a, b, total)


def _two_axes(x: np.ndarray) -> np.ndarray:
    """(N, C, rows, columns): a single row where there is one axis, and the first of three (it has one entry) left out."""
    return x[:, :, None] if x.ndim == 3 else x[:, :, 0] if x.ndim == 5 else x
