"""Convolution by rows: two axes, one group, no dilation; the general way where Winograd's does not pay.

A lane holds a few input rows of a few images in a slab (row, kernel column, channel, image, column). Kernel *rows* need no
copy: the operand of the product that makes one output row is a view of consecutive slab rows, with kernel rows and channels as
one axis. Kernel *columns* are one of two things. *Copied*: the slab holds the input once for each, and all belong to that axis
too. *Shifted*, where the stride allows it and a product without them is still deep: the slab holds the input once, with zeros
between the images of a line, and a kernel column is the slab read from one number further on; the products of all are added.

So windows are copied k times, or once, instead of k * k times, in long runs, and a handful of calls does a whole tile. The
gradient of x is the same walk over gy with the turned weight (a stride divides it into phases, one for each remainder); the
gradient of w multiplies the slab's views by rows of gy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, WORKSPACE, Geometry, Lane, copy_rows, even, lane_count, strided

NARROW = 8  # columns of an image below which images lie side by side within a column, so that copies stay long
DEEP = 32  # terms of a product that is worth while without the kernel's columns
WEIGHT = 12 << 20  # bytes of a weight that may be copied into the slab's order
LARGE = 9 << 19  # bytes of slabs, at most, where maps are large: threads that make short calls wait for each other
GRAIN = 1e5  # ns of work, as _time() estimates it, that pay for a core of their own; it takes 3 to 6 times as long
FEW = (4, 16)  # channels in, or out, up to which gy is copied as it lies; else channels last: slower copies, faster products
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
        """Input rows that so many output rows read."""
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


class Piece:
    """A tile of a walk, and how its arrays lie in a lane, as shapes and strides: worked out once, for all steps.

    Attributes:
        target: the index of its output, of which ``width`` columns count.
        numbers: those of its slab; a shifted line ends behind the slab.
        zeros: what the places of the slab's zeros depend on.
        slab: the slab as (rows, kernel columns, channels, images, columns).
        copies: the index of the input, and that of the slab, for each kernel column that is copied.
        windows: the slab as the operands of each output row's products, (parts, rows, depth, images * columns).
        products: the shape (parts, rows, cout, images * columns).
        result: the first part of products as (images, cout, rows, columns that count).
        gradient: the shape of gy's rows, (rows, images * columns, cout), or ``turned``, with the last two axes exchanged.
        incoming: the same as (rows, cout, images, columns).
        stack: the shape of weight gradients that are computed at once, and of their sum; ``None``: there are none.
    """

    def __init__(self, walk: TileWalk, tile: Tile) -> None:
        n0, n1, r0, r1 = tile
        images, rows, cout, self.wide = n1 - n0, r1 - r0, walk.cout, walk.wide
        first, reach = r0 * walk.stride[0] - walk.low[0], walk.reach(rows)
        a = min(max(-first, 0), reach)
        b = max(min(reach, walk.inside[0] - first), a)
        seen, filled = (slice(n0, n1), slice(None), slice(first + a, first + b)), slice(a, b)
        self.target, self.width = (slice(n0, n1), slice(None), slice(r0, r1)), walk.outside[1]
        self.copies = [((*seen, here), (filled, j, ..., there)) for j, here, there in walk.overlaps]
        self.zeros = walk, images, rows, a, b

        length, columns = images * walk.line, images * walk.columns
        row, shift = walk.copies * walk.cin * length, images if walk.narrow else 1
        self.numbers = reach * row + walk.kernel[1]
        lines = row, walk.cin * length, length, *walk.apart(images, walk.line)
        self.slab = self._lies((reach, walk.copies, walk.cin, images, walk.line), *lines)
        self.windows = self._lies((walk.parts, rows, walk.depth, columns), shift, walk.stride[0] * row, length, 1)

        image, column = walk.apart(images, walk.columns)
        self.products = walk.parts, rows, cout, columns
        self.result = self._lies((images, cout, rows, self.width), image, columns, cout * columns, column)

        self.turned = walk.cin <= FEW[0] or cout <= FEW[1]
        self.gradient = (rows, cout, columns) if self.turned else (rows, columns, cout)
        channel, pixel = (columns, 1) if self.turned else (1, cout)
        self.incoming = self._lies((rows, cout, images, walk.columns), cout * columns, channel, image * pixel, column * pixel)
        stacked = _stacked(walk, rows)
        self.stack = (walk.parts, stacked, walk.depth, cout) if stacked > 1 else None

    def _lies(self, shape: tuple[int, ...], *apart: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape, and strides in bytes for steps in numbers."""
        return shape, tuple([n * self.wide.itemsize for n in apart])


def _numbers(walk: TileWalk, images: int, rows: int, kind: str) -> int:
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
        while rows > 1 and _numbers(walk, images, rows, kind) > room:
            rows = even(height, rows - 1)
        columns = images * walk.columns
        if images > 1 and (_numbers(walk, images, rows, kind) > room or columns > 1024):
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
    return [Piece(walk, Tile(n, min(n + images, walk.images), r, min(r + rows, height))) for n, r in firsts]


@lru_cache(maxsize=256)
def walk_of(geo: Geometry, kind: str) -> TileWalk:
    """The walk of a convolution; for "input", one that is as large as each of its phases."""
    kernel, stride, low, inside, outside = ((a[1], a[2]) for a in (geo.kernel, geo.stride, geo.low, geo.inside, geo.outside))
    if kind == "input":
        whole = (kernel[0] - 1 - low[0], kernel[1] - 1 - low[1]) if stride == (1, 1) else (0, 0)
        kernel = (-(-kernel[0] // stride[0]), -(-kernel[1] // stride[1]))
        largest = (-(-inside[0] // stride[0]), -(-inside[1] // stride[1]))
        return TileWalk(geo.images, geo.cout, geo.cin, outside, largest, kernel, (1, 1), whole, geo.wide)
    return TileWalk(geo.images, geo.cin, geo.cout, inside, outside, kernel, stride, low, geo.wide)


def fits(geo: Geometry, kind: str) -> bool:
    """True if rows compute this within their workspace on one lane; never a question of how many cores there are."""
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
    slabs = max(min(_most(walk), whole * size), 2 * _numbers(walk, 1, 1, kind) * size)
    return slabs + LANES * 64 + (0 if kind == "weight" else geo.taps * geo.cin * geo.cout * size)


def _most(walk: TileWalk) -> int:
    """Bytes of slabs, at most: half of what the maps take, so that small networks have small workspaces and calls are long."""
    maps = walk.images * (walk.cin * math.prod(walk.inside) + walk.cout * math.prod(walk.outside)) * walk.wide.itemsize
    return max(WORKSPACE, min(maps // 2, LARGE))


def _time(walk: TileWalk) -> float:
    """Nanoseconds of one core, about."""
    pixels = walk.images * walk.outside[0] * walk.outside[1]
    return pixels * (walk.parts * walk.depth * walk.cout / 60 + 0.4 * (walk.copies * walk.cin + walk.parts * walk.cout))


@lru_cache(maxsize=256)
def _plan(walks: tuple[TileWalk, ...], kind: str, size: int, cores: int) -> tuple[int, list[list[Piece]]]:
    """(lanes, the pieces of each walk), in ``size`` bytes: a lane for each core, if it has work and can hold the least tile."""
    numbers = size // walks[0].wide.itemsize
    most = min(cores, numbers // (max([_numbers(walk, 1, 1, kind) for walk in walks]) + 64))
    lanes = max(min(most, int(sum(map(_time, walks)) / GRAIN)), 1)
    return lanes, [tiles(walk, kind, numbers // lanes - 64, lanes) for walk in walks]


def gather(source: np.ndarray, piece: Piece, lane: Lane) -> np.ndarray:
    """The operands of a piece's products, in a slab of what it reads; zeros beyond the edges.

    Pieces of one walk take their slabs at one place of the lane: what is zero in one is still zero in the next of its kind.
    """
    flat = lane.take((piece.numbers,), piece.wide)
    if lane.zeros != piece.zeros:
        flat.fill(0)
        lane.zeros = piece.zeros
    slab = strided(flat, *piece.slab)
    for here, there in piece.copies:
        copy_rows(source[here].transpose(2, 1, 0, 3), slab[there])
    return strided(flat, *piece.windows)


def weights(walk: TileWalk, w: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out as (parts, 1, cout, depth) = w (cout, cin, kernel rows, kernel columns), on all cores."""
    by_part = out.reshape(walk.parts, walk.cout, walk.kernel[0], walk.copies, walk.cin)
    source = w.transpose(3, 0, 2, 1)[:, :, :, None] if walk.parts > 1 else w.transpose(0, 2, 3, 1)[None]

    def part(start: int, stop: int) -> None:
        np.copyto(by_part[:, start:stop], source[:, start:stop])

    threads.split(walk.cout, part, grain=max(threads.GRAIN * walk.cout // max(out.size, 1), 1))
    return by_part.reshape(walk.parts, 1, walk.cout, walk.depth)


class Correlation(NamedTuple):
    """One walk: ``w`` is a view (cout, cin, kernel rows, kernel columns), ``out`` any view of (images, cout, rows, columns)."""

    walk: TileWalk
    source: np.ndarray
    w: np.ndarray
    out: np.ndarray


def correlate(several: list[Correlation], bias: Any, work: np.ndarray) -> None:
    """Run all walks, whose outputs lie apart, at once; ``bias`` is added to each."""
    whole, shift = Lane(work, 0, 1), None if bias is None else bias[:, None]
    matrices = [weights(each.walk, each.w, whole.take((each.w.size,), each.walk.wide)) for each in several]
    lanes, found = _plan(tuple([each.walk for each in several]), "forward", whole.stop - whole.next, lane_count(work))
    tasks = [(*each, piece) for each, mine in zip(zip(several, matrices, strict=True), found, strict=True) for piece in mine]
    spaces = [whole.part(number, lanes) for number in range(lanes)]

    def run(number: int, task: int) -> None:
        (_, source, _, out), matrix, piece = tasks[task]
        lane = spaces[number]
        lane.reset()
        operands = gather(source, piece, lane)
        products = lane.take(piece.products, piece.wide)
        blas.multiply(blas.by_columns(matrix, operands, products))
        total = products[0]
        for other in products[1:]:
            np.add(total, other, out=total)
        if shift is not None:
            np.add(total, shift, out=total)
        copy_rows(strided(products, *piece.result), out[piece.target])

    with blas.single():
        threads.lanes(len(tasks), lanes, run)


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias."""
    walk = walk_of(geo, "forward")
    x, out = _two_axes(x), _two_axes(out)
    correlate([Correlation(walk, x, w.reshape(*w.shape[:2], *geo.kernel[1:]), out)], bias, work)


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x, which is also the transposed convolution of gy; a bias is added to it."""
    gy, gx = _two_axes(gy), _two_axes(out)
    w = w.reshape(*w.shape[:2], *geo.kernel[1:]).transpose(1, 0, 2, 3)
    if geo.stride[1] > w.shape[2] or geo.stride[2] > w.shape[3]:  # no tap reaches some of the phases
        np.copyto(gx, 0 if bias is None else bias.reshape(-1, 1, 1))
    phases = [Correlation(walk, gy, w[taps][:, :, ::-1, ::-1], gx[pixels]) for walk, taps, pixels in _phases(geo)]
    if phases:
        correlate(phases, bias, work)


@lru_cache(maxsize=256)
def _phases(geo: Geometry) -> list[tuple[TileWalk, tuple[slice, ...], tuple[slice, ...]]]:
    """(walk, the index of its taps, and that of the pixels that it makes) for each remainder of the stride."""
    stride, low, kernel, inside, outside = ((a[1], a[2]) for a in (geo.stride, geo.low, geo.kernel, geo.inside, geo.outside))
    found = []
    for phase in np.ndindex(*stride):
        axes = list(zip(phase, stride, low, kernel, inside, strict=True))
        taps = [range((p + m) % s, k, s) for p, s, m, k, _ in axes]  # from the first one that reaches this phase
        pixels = [range(p, n, s) for p, s, _, _, n in axes]
        if not all([*taps, *pixels]):
            continue
        a, b = (len(each) - 1 - (p + m) // s for each, (p, s, m, _, _) in zip(taps, axes, strict=True))
        sizes, some = (len(pixels[0]), len(pixels[1])), (len(taps[0]), len(taps[1]))
        walk = TileWalk(geo.images, geo.cout, geo.cin, outside, sizes, some, (1, 1), (a, b), geo.wide)
        both = [(slice(None), slice(None), *[slice(r.start, None, r.step) for r in each]) for each in (taps, pixels)]
        found.append((walk, both[0], both[1]))
    return found


def backward_weight(geo, gy, x, work, out):
    """The gradient of w: each lane sums its own tiles, the lanes' sums are added in order."""
    walk = walk_of(geo, "weight")
    gy, x = _two_axes(gy), _two_axes(x)
    whole = Lane(work, 0, 1)
    lanes, (tasks,) = _plan((walk,), "weight", whole.stop - whole.next, lane_count(work))
    parts = [whole.part(number, lanes) for number in range(lanes)]
    totals = [part.take((walk.parts, walk.depth, walk.cout), walk.wide) for part in parts]
    spans = [len(tasks) * i // lanes for i in range(lanes + 1)]

    def run(_: int, i: int) -> None:
        _weight_lane(gy, x, parts[i], tasks[spans[i] : spans[i + 1]], totals[i])

    with blas.single():
        threads.lanes(lanes, lanes, run)
    for other in totals[1:]:
        totals[0] += other
    total = totals[0].reshape(walk.parts, walk.kernel[0], walk.copies, walk.cin, walk.cout)  # one of the two is one
    total = total.transpose(4, 3, 1, 0, 2).reshape(walk.cout, walk.cin, *walk.kernel)
    np.copyto(out.reshape(total.shape), total, casting="same_kind")


def _weight_lane(gy: np.ndarray, x: np.ndarray, lane: Lane, pieces: list[Piece], total: np.ndarray) -> None:
    """total (parts, depth, cout) = what one lane's pieces give."""
    total.fill(0)
    mark = lane.next
    for piece in pieces:
        lane.next = mark
        left = gather(x, piece, lane)
        right = lane.take(piece.gradient, piece.wide)
        incoming = strided(right, *piece.incoming)
        if incoming.shape[3] > piece.width:
            incoming[..., piece.width :] = 0  # what the slab holds there does not count
        copy_rows(gy[piece.target].transpose(2, 1, 0, 3), incoming[..., : piece.width])
        right = right.swapaxes(1, 2) if piece.turned else right
        if piece.stack is not None:
            _add_stacked(left, right, lane.take(piece.stack, piece.wide), total)
            continue
        for part, rows in zip(total, left, strict=True):
            for a, b in zip(rows, right, strict=True):
                blas.add_product(a, b, part)


def _add_stacked(left: np.ndarray, right: np.ndarray, stack: np.ndarray, total: np.ndarray) -> None:
    """total (parts, depth, cout) += the sum over rows of left (parts, rows, ...) @ right (rows, ...)."""
    rows, most = len(right), stack.shape[1] - 1
    room, sums = stack[:, 0], stack[:, 1:]
    for start in range(0, rows, most):
        stop = min(start + most, rows)
        part = sums[:, : stop - start]
        np.matmul(left[:, start:stop], right[start:stop], out=part)
        np.add.reduce(part, axis=1, out=room)
        np.add(total, room, out=total)


def _two_axes(x: np.ndarray) -> np.ndarray:
    """(N, C, rows, columns): a single row where there is one axis, and the first of three (it has one entry) left out."""
    return x[:, :, None] if x.ndim == 3 else x[:, :, 0] if x.ndim == 5 else x
