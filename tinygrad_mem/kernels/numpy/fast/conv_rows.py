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
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, WORKSPACE, Geometry, Lane, copy_rows, lane_count, strided
from .conv_tiles import Piece, TileWalk, size_of, tiles

WEIGHT = 12 << 20  # bytes of a weight that may be copied into the slab's order
LARGE = 9 << 19  # bytes of slabs, at most, where maps are large: threads that make short calls wait for each other
GRAIN = 1e5  # ns of work, as _time() estimates it, for which the workspace has a lane; it takes 3 to 6 times as long
_LEAST = 4e5  # the same, that pay for a core of their own: another core also waits for what this one wrote


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
    least = size_of(walk, 1, 1, kind)
    return least * (2 if kind == "weight" else 1) <= room or (kind != "weight" and least <= 4 * room)


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes: slabs of all lanes, no more than hold everything, and the weight in the slab's order where it is read."""
    walk, size = walk_of(geo, kind), geo.wide.itemsize
    whole = (size_of(walk, walk.images, walk.outside[0], kind) + 64) * max(int(_time(walk) / GRAIN), 1)
    slabs = max(min(_most(walk), whole * size), 2 * size_of(walk, 1, 1, kind) * size)
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
    most = min(cores, numbers // (max([size_of(walk, 1, 1, kind) for walk in walks]) + 64))
    lanes = max(min(most, int(sum(map(_time, walks)) / _LEAST)), 1)
    return lanes, [tiles(walk, kind, numbers // lanes - 64, lanes) for walk in walks]


def gather(source: np.ndarray, piece: Piece, lane: Lane) -> np.ndarray:
    """The operands of a piece's products, in a slab of what it reads; zeros beyond the edges.

    Pieces of one walk use the same memory of the lane, one after another. So zeros are written only when the layout changes.
    """
    layout = piece.layout
    flat = lane.take((layout.numbers,), layout.wide)
    if lane.zeros != layout.zeros:
        flat.fill(0)
        lane.zeros = layout.zeros
    slab, seen = strided(flat, *layout.slab), source[piece.seen].transpose(2, 1, 0, 3)
    for here, there in layout.copies:
        copy_rows(seen[..., here], slab[there])
    return strided(flat, *layout.windows)


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
    """Run all walks at once; their outputs do not overlap, and ``bias`` is added to each."""
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
        products = lane.take(piece.layout.products, piece.layout.wide)
        blas.multiply(blas.by_columns(matrix, operands, products))
        total = products[0]
        for other in products[1:]:
            np.add(total, other, out=total)
        if shift is not None:
            np.add(total, shift, out=total)
        copy_rows(strided(products, *piece.layout.result), out[piece.target])

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
    """total (parts, depth, cout) = the sums of one lane's pieces."""
    total.fill(0)
    mark = lane.next
    for piece in pieces:
        lane.next = mark
        left, layout = gather(x, piece, lane), piece.layout
        right = lane.take(layout.gradient, layout.wide)
        incoming = strided(right, *layout.incoming)
        if incoming.shape[3] > layout.width:
            incoming[..., layout.width :] = 0  # what the slab holds there does not count
        copy_rows(gy[piece.target].transpose(2, 1, 0, 3), incoming[..., : layout.width])
        right = right.swapaxes(1, 2) if layout.turned else right
        if layout.stack is not None:
            _addstacked(left, right, lane.take(layout.stack, layout.wide), total)
            continue
        for part, rows in zip(total, left, strict=True):
            for a, b in zip(rows, right, strict=True):
                blas.add_product(a, b, part)


def _addstacked(left: np.ndarray, right: np.ndarray, stack: np.ndarray, total: np.ndarray) -> None:
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
