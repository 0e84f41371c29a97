"""Convolution by columns: windows of the input are copied into a tile, and one matrix product per tile does the arithmetic.

It works for every shape, stride, dilation, number of groups and dtype, and for one to three spatial axes (others get size 1).
The column tile has a fixed size: the output is computed in boxes, and products are summed over blocks of input channels. Tiles
of float16 are float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, WORKSPACE, Geometry, Lane, even, lane_count, lift_array

PIXELS = 512  # output pixels per tile, about
GRAIN = 1e5  # nanoseconds of work that are worth a core
DEPTH = 320  # rows of a column tile, about: the block size of BLAS


def _volume(box: tuple[int, ...]) -> int:
    return box[0] * box[1] * box[2]


@dataclass(frozen=True)
class ColumnTiles:
    """The tiles of one lane: ``images`` at a time, output boxes, and ``channels`` of a group (or ``groups`` whole groups)."""

    images: int
    box: tuple[int, ...]
    channels: int
    groups: int


def _box(geo: Geometry, pixels: int) -> tuple[int, tuple[int, ...]]:
    """(images, box) with about ``pixels`` output pixels, full in the last axes first."""
    d, h, w = geo.outside
    bw = even(w, pixels)
    bh = even(h, pixels // bw) if bw == w else 1
    bd = even(d, pixels // (bw * bh)) if bh == h and bw == w else 1
    box = (bd, bh, bw)
    images = even(geo.images, pixels // geo.pixels) if box == geo.outside else 1
    return images, box


def _needs(geo: Geometry, images: int, box: tuple[int, ...], kind: str) -> tuple[int, int]:
    """Elements of a lane: (per input channel of a block, per group)."""
    pixels = images * _volume(box)
    half = geo.wide != geo.dtype
    channel = geo.taps * pixels + images * _volume(geo.reach(box))
    if half:
        channel += geo.cout * geo.taps * (2 if kind == "weight" else 1)
        if kind == "input":
            channel += images * _volume(geo.inside)
    return channel, geo.cout * pixels


def make_plan(geo: Geometry, kind: str, nbytes: int, parts: int = 1) -> ColumnTiles:
    """The largest tiles that fit ``nbytes``; kind is "forward", "input" or "weight"."""
    room = nbytes // geo.wide.itemsize
    pixels = PIXELS
    while True:
        images, box = _box(geo, pixels)
        channel, group = _needs(geo, images, box, kind)
        if pixels == 1 or channel + group <= room * 3 // 4:
            break
        pixels = max(pixels * 3 // 4, 1)
    whole = geo.cin * channel + group
    if geo.groups > 1 and geo.cin * geo.taps <= DEPTH and whole <= room:
        return ColumnTiles(images, box, geo.cin, even(geo.groups, min(room // whole, max(geo.groups // parts, 1))))
    most = min((room - group) // channel, max(DEPTH // geo.taps, 1))
    return ColumnTiles(images, box, even(geo.cin, max(most, 1)), 1)


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes for any number of lanes: a constant, unless the smallest possible tile is larger, or small maps need less."""
    channel, group = _needs(geo, 1, (1, 1, 1), kind)
    least = LANES * (channel + group) * geo.wide.itemsize * 4 // 3 + 4096
    plain = geo.groups == 1 and geo.images * geo.pixels * geo.cin * geo.cout
    return max(min(_enough(geo, kind), WORKSPACE) if plain else WORKSPACE, least)


def _enough(geo: Geometry, kind: str) -> int:
    """Bytes with which each lane has the tiles that a single lane would have. More would change nothing."""
    plan = make_plan(geo, kind, WORKSPACE - 1024)
    channel, group = _needs(geo, plan.images, plan.box, kind)
    numbers = max(plan.channels * channel + group, (channel + group) * 4 // 3 + 2)
    weight = 4 * geo.cin * geo.taps * geo.cout  # memory in which each lane sums a small weight
    if kind == "weight" and geo.images > 1 and weight * geo.wide.itemsize <= WORKSPACE:
        numbers += weight
    return LANES * (numbers * geo.wide.itemsize + 2048)


def boxes(geo: Geometry, plan: ColumnTiles) -> list[tuple[int, int, tuple[slice, ...]]]:
    """(first image, last image, output box) in order; for a single image, only its boxes."""
    cuts = [[slice(a, min(a + b, size)) for a in range(0, size, b)] for size, b in zip(geo.outside, plan.box, strict=True)]
    return [
        (n, min(n + plan.images, geo.images), (a, b, c))
        for n in range(0, geo.images, plan.images)
        for a in cuts[0]
        for b in cuts[1]
        for c in cuts[2]
    ]


def blocks(geo: Geometry, plan: ColumnTiles) -> list[tuple[int, int, int, int]]:
    """(first group, last group, first channel, last channel within a group)."""
    return [
        (g, min(g + plan.groups, geo.groups), c, min(c + plan.channels, geo.cin))
        for g in range(0, geo.groups, plan.groups)
        for c in range(0, geo.cin, plan.channels)
    ]


def _shape(box: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in box)


def _clip(geo: Geometry, box: tuple[slice, ...]) -> tuple[list[slice], list[slice], bool]:
    """The input of an output box: (slices of the input, the same within the box's reach, whether they cover the reach)."""
    inside, within, whole = [], [], True
    for s, size, step, low, extent in zip(box, geo.inside, geo.stride, geo.low, geo.reach(_shape(box)), strict=True):
        first = s.start * step - low
        a, b = min(max(first, 0), size), max(min(first + extent, size), 0)
        b = max(a, b)
        inside.append(slice(a, b))
        within.append(slice(a - first, b - first) if b > a else slice(0, 0))
        whole = whole and b - a == extent
    return inside, within, whole


def _windows(geo: Geometry, padded: np.ndarray, out: tuple[int, ...]) -> np.ndarray:
    """(groups, channels, *kernel, images, *out), a view of (groups, channels, images, *reach)."""
    s, d = padded.strides, geo.dilation
    shape = (*padded.shape[:2], *geo.kernel, padded.shape[2], *out)
    strides = (
        *s[:2],
        *(a * b for a, b in zip(s[3:], d, strict=True)),
        s[2],
        *(a * b for a, b in zip(s[3:], geo.stride, strict=True)),
    )
    return np.lib.stride_tricks.as_strided(padded, shape, strides)


def columns(geo: Geometry, x: np.ndarray, where: tuple, block: tuple, lane: Lane) -> np.ndarray:
    """The column matrix (groups, channels * taps, images * pixels) of one tile; x is (N, groups, channels, *inside)."""
    (n0, n1, box), (g0, g1, c0, c1) = where, block
    out = _shape(box)
    part = x[n0:n1, g0:g1, c0:c1]
    depth, width = (c1 - c0) * geo.taps, (n1 - n0) * _volume(out)
    inside, within, whole = _clip(geo, box)
    if geo.pointwise and n1 - n0 == 1 and x.dtype == geo.wide and out[1:] == geo.outside[1:] and part[0].flags.aligned:
        source = part[0, :, :, box[0]]
        if source.strides[2:] == tuple(np.cumprod([source.itemsize, *source.shape[:2:-1]])[::-1].tolist()):
            return source.reshape(g1 - g0, depth, width)  # a view: its pixels are contiguous
    source = part[:, :, :, inside[0], inside[1], inside[2]].transpose(1, 2, 0, 3, 4, 5)
    if not whole or x.dtype != geo.wide:
        padded = lane.take((g1 - g0, c1 - c0, n1 - n0, *geo.reach(out)), geo.wide)
        if not whole:
            padded.fill(0)
        np.copyto(padded[:, :, :, within[0], within[1], within[2]], source)
        source = padded
    matrix = lane.take((g1 - g0, c1 - c0, *geo.kernel, n1 - n0, *out), geo.wide)
    np.copyto(matrix, _windows(geo, source, out))
    return matrix.reshape(g1 - g0, depth, width)


def scatter(geo: Geometry, matrix: np.ndarray, where: tuple, target: np.ndarray) -> None:
    """Add columns (groups, channels * taps, images * pixels) to target (images, groups, channels, *inside)."""
    n0, n1, box = where
    out = _shape(box)
    groups, channels = target.shape[1:3]
    matrix = matrix.reshape(groups, channels, *geo.kernel, n1 - n0, *out)
    for tap in np.ndindex(*geo.kernel):
        to, of = [], []
        for axis in range(3):
            s, step = box[axis], geo.stride[axis]
            shift = tap[axis] * geo.dilation[axis] - geo.low[axis]
            a = max(s.start, -(shift // step))  # the first output whose window reaches the input
            b = min(s.stop, (geo.inside[axis] - 1 - shift) // step + 1)
            if b <= a:
                break
            of.append(slice(a - s.start, b - s.start))
            to.append(slice(a * step + shift, (b - 1) * step + shift + 1, step))
        else:
            target[:, :, :, to[0], to[1], to[2]] += matrix[:, :, tap[0], tap[1], tap[2], :, of[0], of[1], of[2]].transpose(
                2, 0, 1, 3, 4, 5
            )


def _result(geo: Geometry, y: np.ndarray, where: tuple, g0: int, g1: int, lane: Lane) -> tuple[np.ndarray, np.ndarray | None]:
    """A matrix (groups, cout, pixels) to write, and the part of y to copy it to (None: it is a view of that part)."""
    n0, n1, box = where
    out = _shape(box)
    part = y[n0:n1, g0:g1, :, box[0], box[1], box[2]]
    full = (out[1] == geo.outside[1], out[2] == geo.outside[2])
    one_run = full == (True, True) or (full[1] and out[0] == 1) or out[:2] == (1, 1)
    if one_run and n1 - n0 == 1 and y.dtype == geo.wide and y.flags.c_contiguous:
        first = part[0, :, :, 0, 0, 0]
        return np.lib.stride_tricks.as_strided(first, (*first.shape, _volume(out)), (*first.strides, y.itemsize)), None
    tile = lane.take((g1 - g0, geo.cout, n1 - n0, *out), geo.wide)
    return tile.reshape(g1 - g0, geo.cout, -1), part.transpose(1, 2, 0, 3, 4, 5)


def _weights(geo: Geometry, w: np.ndarray, block: tuple, lane: Lane) -> np.ndarray:
    """(groups, cout, channels * taps) of one block."""
    g0, g1, c0, c1 = block
    part = w[g0:g1, :, c0:c1]
    if w.dtype != geo.wide:
        tile = lane.take(part.shape, geo.wide)
        np.copyto(tile, part)
        part = tile
    return np.lib.stride_tricks.as_strided(
        part, (g1 - g0, geo.cout, (c1 - c0) * geo.taps), (part.strides[0], part.strides[1], part.itemsize)
    )


def _products(a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
    """Matrix products group by group; sums only happen with one group at a time."""
    if out.shape[0] == 1:
        blas.product(a[0], b[0], out[0], add)
    elif not add:
        np.matmul(a, b, out=out)
    else:
        for g in range(out.shape[0]):
            blas.add_product(a[g], b[g], out[g])


def _split(x: np.ndarray, groups: int) -> np.ndarray:
    """(N, C, *spatial) as (N, groups, C / groups, *three axes)."""
    x = lift_array(x)
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]) if groups > 1 else x[:, None]


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias; w and out are contiguous."""
    x, y = _split(x, geo.groups), _split(out, geo.groups)
    w = w.reshape(geo.groups, geo.cout, geo.cin, geo.taps)
    shift = None if bias is None else bias.reshape(geo.groups, geo.cout, 1)
    lanes = lane_count(work)
    plan = make_plan(geo, "forward", work.nbytes // lanes - 1024, 1)
    tiles, parts = boxes(geo, plan), blocks(geo, plan)
    by_group = [[b for b in parts if b[0] == g] for g in sorted({b[0] for b in parts})]
    spans = _spans(geo, lanes // max(len(tiles) * len(by_group), 1))
    tasks = [(where, mine, span) for where in tiles for mine in by_group for span in spans]

    def run(number: int, task: int) -> None:
        where, mine, (o0, o1) = tasks[task]
        bias = None if shift is None else shift[mine[0][0] : mine[0][1], o0:o1]
        part = replace(geo, cout=o1 - o0)
        _forward_tile(part, x, w[:, o0:o1], bias, y[:, :, o0:o1], where, mine, Lane(work, number, lanes))

    with blas.single():
        threads.lanes(len(tasks), lanes, run)


def _spans(geo: Geometry, parts: int) -> list[tuple[int, int]]:
    """The output channels in at most ``parts`` spans: for a single tile with a large weight."""
    nanoseconds = geo.cout * geo.cin * geo.taps * (geo.images * geo.pixels / 60 + 0.4)
    most = even(geo.cout, -(-geo.cout // max(min(parts, int(nanoseconds / GRAIN)), 1)))
    return [(o, min(o + most, geo.cout)) for o in range(0, geo.cout, most)]


def _forward_tile(geo, x, w, bias, y, where, parts, lane):
    """One tile of y: the products with all ``parts`` of the input channels, summed."""
    g0, g1 = parts[0][:2]
    result, target = _result(geo, y, where, g0, g1, lane)
    mark = lane.next
    for i, block in enumerate(parts):
        lane.next = mark
        matrix = columns(geo, x, where, block, lane)
        _products(_weights(geo, w, block, lane), matrix, result, i > 0)
    if bias is not None:
        result += bias
    if target is not None:
        np.copyto(target, result.reshape(target.shape), casting="unsafe")


def _incoming(geo: Geometry, gy: np.ndarray, where: tuple, g0: int, g1: int, lane: Lane) -> np.ndarray:
    """The gradient's tile as (groups, cout, pixels)."""
    matrix, part = _result(geo, gy, where, g0, g1, lane)
    if part is not None:
        np.copyto(matrix.reshape(part.shape), part)
    return matrix


def backward_weight(geo, gy, x, work, out):
    """The gradient of w, from x and the gradient gy (contiguous)."""
    x, gy = _split(x, geo.groups), _split(gy, geo.groups)
    gw = out.reshape(geo.groups, geo.cout, geo.cin * geo.taps)
    lanes = lane_count(work)
    room = work.nbytes // lanes - 1024
    total = gw.size * geo.wide.itemsize
    if total * 4 <= room and lanes > 1 and geo.images > 1:
        _weight_by_tiles(geo, gy, x, work, gw, lanes, room - total)
        return
    plan = make_plan(geo, "weight", room, lanes)
    if plan.groups == 1 and geo.groups == 1:
        plan = ColumnTiles(plan.images, plan.box, even(geo.cin, min(plan.channels, -(-geo.cin // lanes))), 1)
    tiles, parts = boxes(geo, plan), blocks(geo, plan)

    def run(number: int, part: int) -> None:
        _weight_block(geo, gy, x, Lane(work, number, lanes), gw, tiles, parts[part])

    with blas.single():
        threads.lanes(len(parts), lanes, run)


def _weight_block(geo, gy, x, lane, gw, tiles, block):
    """The columns of gw that belong to one block, summed over ``tiles``."""
    g0, g1, c0, c1 = block
    target = gw[g0:g1, :, c0 * geo.taps : c1 * geo.taps]
    total = lane.take(target.shape, geo.wide) if gw.dtype != geo.wide else target
    mark = lane.next
    for i, where in enumerate(tiles):
        lane.next = mark
        matrix = columns(geo, x, where, block, lane)
        _products(_incoming(geo, gy, where, g0, g1, lane), matrix.transpose(0, 2, 1), total, i > 0)
    if total is not target:
        np.copyto(target, total, casting="unsafe")


def _weight_by_tiles(geo, gy, x, work, gw, lanes, room):
    """For small weights: each lane sums some images, and the lanes' sums are added in order."""
    plan = make_plan(geo, "weight", room, 1)
    tiles, parts = boxes(geo, plan), blocks(geo, plan)
    spaces = [Lane(work, i, lanes) for i in range(lanes)]
    sums = [space.take(gw.shape, geo.wide) for space in spaces]
    spans = [len(tiles) * i // lanes for i in range(lanes + 1)]

    def run(_: int, i: int) -> None:
        mine, mark = tiles[spans[i] : spans[i + 1]], spaces[i].next
        if not mine:
            sums[i].fill(0)
        for block in parts if mine else ():
            spaces[i].next = mark
            _weight_block(geo, gy, x, spaces[i], sums[i], mine, block)

    with blas.single():
        threads.lanes(lanes, lanes, run)
    for other in sums[1:]:
        sums[0] += other
    np.copyto(gw, sums[0], casting="unsafe")


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x from gy (contiguous), which is also the transposed convolution of gy; a bias is added to it."""
    gy, gx = _split(gy, geo.groups), _split(out, geo.groups)
    w = w.reshape(geo.groups, geo.cout, geo.cin, geo.taps)
    shift = None if bias is None else bias.reshape(geo.groups, geo.cin, 1, 1, 1)
    lanes = lane_count(work)
    plan = make_plan(geo, "input", work.nbytes // lanes - 1024, 1)
    if geo.images == 1 and geo.groups == 1:
        plan = ColumnTiles(1, plan.box, even(geo.cin, min(plan.channels, -(-geo.cin // lanes))), 1)
    tiles, parts = boxes(geo, plan), blocks(geo, plan)
    firsts = sorted({t[0] for t in tiles})
    of_images = {n: [t for t in tiles if t[0] == n] for n in firsts}
    tasks = len(firsts) * len(parts)

    def run(number: int, task: int) -> None:
        n, block = firsts[task // len(parts)], parts[task % len(parts)]
        _input_block(geo, gy, w, shift, Lane(work, number, lanes), gx, of_images[n], block)

    with blas.single():
        threads.lanes(tasks, lanes, run)


def _input_block(geo, gy, w, shift, lane, gx, tiles, block):
    """The gradient of some channels of some images, summed over their output boxes."""
    g0, g1, c0, c1 = block
    target = gx[tiles[0][0] : tiles[0][1], g0:g1, c0:c1]
    total = lane.take(target.shape, geo.wide) if gx.dtype != geo.wide else target
    if shift is None:
        total.fill(0)
    else:
        np.copyto(total, shift[g0:g1, c0:c1])
    weights = _weights(geo, w, block, lane).transpose(0, 2, 1)
    mark = lane.next
    for where in tiles:
        lane.next = mark
        gradient = _incoming(geo, gy, where, g0, g1, lane)
        matrix = lane.take((g1 - g0, (c1 - c0) * geo.taps, gradient.shape[2]), geo.wide)
        _products(weights, gradient, matrix, False)
        scatter(geo, matrix, where, total)
    if total is not target:
        np.copyto(target, total, casting="unsafe")
