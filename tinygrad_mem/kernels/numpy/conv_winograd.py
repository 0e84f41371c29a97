"""Winograd's F(4x4, 3x3): 3x3 convolutions of stride 1 in float32 with a quarter of the multiplications.

Output is made in tiles of 4x4 from input tiles of 6x6: both input tile and weight are transformed to 36 numbers, multiplied
there (36 matrix products over channels), and the sums are transformed back. Every transform is a small matrix product over
long rows of (tile, channel), so nearly all work is done by BLAS. Errors are near 1e-5 of the largest output.

The gradient of x is the convolution of gy with the turned weight; the gradient of w multiplies both transforms over tiles.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016 (the matrices).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_columns import LANES, Lane

_INPUT = np.array(  # B^T: 6 numbers of a row to 6 transformed ones
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
_WEIGHT = np.array(  # G: 3 taps to 6
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
_OUTPUT = np.array(  # A^T: 6 sums to 4 outputs
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32
)
_SPREAD = np.ascontiguousarray(_OUTPUT.T)  # the transpose spreads a gradient
_WEIGHT_2D = np.kron(_WEIGHT, _WEIGHT).astype(np.float32)  # 9 taps to 36
_TURNED_2D = np.ascontiguousarray(_WEIGHT_2D[:, ::-1])  # the same of a weight turned by 180 degrees
_WEIGHT_BACK = np.ascontiguousarray(_WEIGHT_2D.T)
_FLOAT = 4
_MOST = 8 << 20  # bytes of workspace, at most


class Tiles(NamedTuple):
    """A map of ``rows`` x ``columns`` tiles on each of ``images`` images of ``height`` x ``width`` outputs."""

    images: int
    height: int
    width: int
    rows: int
    columns: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Tiles:
        return cls(shape[0], shape[2], shape[3], -(-shape[2] // 4), -(-shape[3] // 4))


class Piece(NamedTuple):
    """Whole images n0:n1, or tile rows r0:r1 of one image; ``first`` is the number of its first tile in its chunk."""

    n0: int
    n1: int
    r0: int
    r1: int
    first: int
    tiles: int


def _pieces(tiles: Tiles, most: int) -> list[Piece]:
    """The map cut into equal pieces of at most ``most`` tiles (at least one row)."""
    size = tiles.rows * tiles.columns
    found = []
    if size <= most:
        step = -(-tiles.images // -(-tiles.images // min(most // size, tiles.images)))
        for n in range(0, tiles.images, step):
            stop = min(n + step, tiles.images)
            found.append(Piece(n, stop, 0, tiles.rows, 0, (stop - n) * size))
        return found
    height = max(most // tiles.columns, 1)
    height = -(-tiles.rows // -(-tiles.rows // height))
    for n in range(tiles.images):
        for r in range(0, tiles.rows, height):
            stop = min(r + height, tiles.rows)
            found.append(Piece(n, n + 1, r, stop, 0, (stop - r) * tiles.columns))
    return found


def workspace(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> int:
    """Bytes: 1.75 MiB, more only where weights or maps are much larger, never above 8 MiB."""
    channels = x_shape[1] * y_shape[1]
    maps = _FLOAT * (math.prod(x_shape) + math.prod(y_shape))
    wanted = _FLOAT * 36 * channels + (7 << 18)
    return max(7 << 18, min(_MOST, wanted, max(2 * 36 * channels, maps // 2)))


class Plan(NamedTuple):
    """``resident``: the whole transformed weight is kept and lanes take tiles; else chunks of tiles are kept and lanes take
    ``block`` output channels at a time. ``tiles`` is the most tiles of a piece, ``chunk`` of a chunk."""

    resident: bool
    tiles: int
    chunk: int
    block: int


_LINES = 72  # numbers a tile and channel while an input is transformed
_BACK = 76  # the same while sums are transformed back, the sums included
_TAPS = 36 + 9  # numbers a weight while it is transformed


def plan(tiles: Tiles, cin: int, cout: int, nbytes: int, lanes: int) -> Plan | None:
    """How to walk within ``nbytes``; ``None`` where not even the smallest tiles fit."""
    room = nbytes // _FLOAT - 1024 * (lanes + 1)
    every = tiles.images * tiles.rows * tiles.columns
    weight = _TAPS * cin * cout
    if weight * 3 <= room:
        most = (room - weight) // lanes // (36 * cin + max(_LINES * cin, _BACK * cout))
        if most >= tiles.columns:
            return Plan(True, min(most, max(-(-every // lanes), tiles.columns)), 0, cout)
    return _cheapest(
        tiles,
        max(cin, cout),
        -(-cout // lanes),
        lambda most, block: min(
            (room - lanes * most * _LINES * cin) // (36 * cin),
            (room - lanes * _TAPS * cin * block) // (36 * cin + lanes * _BACK * block),
        ),
    )


def _cheapest(tiles: Tiles, channels: int, widest: int, fit: Callable[[int, int], int]) -> Plan | None:
    """The plan of least estimated time: each chunk transforms all weights again (15 ns a weight: 13 to 24 were measured), each
    block of output channels reads all transformed tiles again (10 ns a tile and channel: an estimate, from 15 GB/s).
    ``fit`` says how large a chunk may be."""
    every = tiles.images * tiles.rows * tiles.columns
    best, least = None, math.inf
    for block in sorted({min(b, widest) for b in (8, 16, 32, 64)}):
        for most in _piece_sizes(tiles, channels):
            chunk = fit(most, block)
            if chunk >= max(most, min(every, 16)):
                cost = -(-every // chunk) * 15 + every * 10 / block
                if cost < least:
                    best, least = Plan(False, most, _balanced(every, chunk, most), block), cost
                break
    return best


def _piece_sizes(tiles: Tiles, channels: int) -> list[int]:
    """How many tiles a piece may have, best first: enough numbers for one call of NumPy, then fewer."""
    best = max(4096 // channels, 1)
    return [max(best // cut, tiles.columns) for cut in (1, 2, 3, 4, 8)] + [tiles.columns]


def _balanced(every: int, chunk: int, most: int) -> int:
    """Chunks of about equal size, whole pieces each."""
    equal = -(-every // -(-every // chunk))
    return min(chunk, -(-equal // most) * most)


def _chunks(pieces: list[Piece], most: int) -> list[list[Piece]]:
    """Pieces in groups of at most ``most`` tiles, numbered within their group."""
    found: list[list[Piece]] = []
    count = 0
    for piece in pieces:
        if not found or count + piece.tiles > most:
            found.append([])
            count = 0
        found[-1].append(piece._replace(first=count))
        count += piece.tiles
    return found


def _gather(x: np.ndarray, tiles: Tiles, piece: Piece, low: tuple[int, int], size: int, lane: Lane) -> np.ndarray:
    """A padded, channels-last copy (images, 4 * rows + size - 4, 4 * columns + size - 4, channels) of a piece's inputs."""
    height, width = 4 * (piece.r1 - piece.r0) + size - 4, 4 * tiles.columns + size - 4
    padded = lane.take((piece.n1 - piece.n0, height, width, x.shape[1]), np.dtype(np.float32))
    top = 4 * piece.r0 - low[0]
    a, b = max(top, 0), max(min(top + height, x.shape[2]), 0)
    left, right = low[1], min(x.shape[3] + low[1], width)
    if b <= a or right <= left:
        padded.fill(0)
        return padded
    padded[:, : a - top].fill(0)
    padded[:, b - top :].fill(0)
    padded[:, :, :left].fill(0)
    padded[:, :, right:].fill(0)
    source = x[piece.n0 : piece.n1, :, a:b, : right - left].transpose(0, 2, 3, 1)
    np.copyto(padded[:, a - top : b - top, left:right], source)
    return padded


def _view(a: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(a, shape, strides)


def _transform(x, matrix, tiles, piece, low, lane, out):
    """out (6, 6, tiles * channels) = the 2-d transform by ``matrix`` (6, size) of the tiles of a piece."""
    images, rows, columns, channels = piece.n1 - piece.n0, piece.r1 - piece.r0, tiles.columns, x.shape[1]
    size = matrix.shape[1]
    line = (4 * columns + size - 4) * channels
    down = lane.take((6, images, rows, line), x.dtype)
    mark = lane.next
    padded = _gather(x, tiles, piece, low, size, lane)
    s = padded.strides
    tall = _view(padded, (images, rows, size, line), (s[0], 4 * s[1], s[1], _FLOAT))
    np.matmul(matrix, tall, out=down.transpose(1, 2, 0, 3))  # along columns of pixels
    lane.next = mark  # the padded copy is not needed any more
    wide = lane.take((6, size, images, rows, columns, channels), x.dtype)
    d = (*down.strides[:3], channels * _FLOAT)
    np.copyto(wide, _view(down, wide.shape, (d[0], d[3], d[1], d[2], 4 * d[3], _FLOAT)))
    np.matmul(matrix, wide.reshape(6, size, -1), out=out)


def _weight(w: np.ndarray, turned: bool, first: int, last: int, lane: Lane) -> np.ndarray:
    """(36, cin, last - first): the transformed weight of some output channels; ``turned`` for the gradient of x.

    Output channels come last, the order in which BLAS multiplies fastest; each run of nine taps is copied as one.
    """
    part = w[:, first:last] if turned else w[first:last].transpose(1, 0, 2, 3)
    out = lane.take((36, *part.shape[:2]), w.dtype)
    mark = lane.next
    taps = lane.take(part.shape, w.dtype)
    np.copyto(taps, part)
    np.matmul(_TURNED_2D if turned else _WEIGHT_2D, taps.reshape(-1, 9).T, out=out.reshape(36, -1))
    lane.next = mark
    return out


def _output(sums: np.ndarray, y: np.ndarray, tiles: Tiles, pieces: list[Piece], bias: Any, lane: Lane) -> None:
    """y (N, some channels, H, W) = A^T m A of the sums (36, tiles, channels), plus the bias."""
    _, count, channels = sums.shape
    if bias is not None:
        sums[7] += bias  # the transform of a tile of ones is 1 at (1, 1)
    mark = lane.next
    half = lane.take((6, 4, count * channels), sums.dtype)
    np.matmul(_OUTPUT, sums.reshape(6, 6, -1), out=half)
    full = lane.take((4, 4, count, channels), sums.dtype)
    np.matmul(_OUTPUT, half.reshape(6, -1), out=full.reshape(4, -1))
    lane.next = mark  # the first half's place is free again
    for piece in pieces:
        images, rows = piece.n1 - piece.n0, piece.r1 - piece.r0
        part = full[:, :, piece.first : piece.first + piece.tiles]
        part = part.reshape(4, 4, images, rows, tiles.columns, channels)
        top = 4 * piece.r0
        height = min(4 * rows, tiles.height - top)
        pixels = lane.take((images, rows, 4, tiles.columns, 4, channels), sums.dtype)
        np.copyto(pixels, part.transpose(2, 3, 0, 4, 1, 5))
        pixels = pixels.reshape(images, 4 * rows, 4 * tiles.columns, channels)[:, :height, : tiles.width]
        blas.channels_first(pixels, y[piece.n0 : piece.n1, :, top : top + height])
        lane.next = mark


def convolve(x, w, bias, turned, low, work, out):
    """out = the 3x3 convolution of x with w; ``turned``: with w's gradient rule, (cin, cout, 3, 3) turned by 180 degrees."""
    tiles = Tiles.of(out.shape)
    cin, cout = x.shape[1], out.shape[1]
    found, lanes = _find(tiles, cin, cout, work.nbytes, "forward")
    with blas.single(lanes > 1):
        if found.resident:
            _by_tiles(x, w, bias, turned, low, work, out, tiles, found, lanes)
        else:
            _by_channels(x, w, bias, turned, low, work, out, tiles, found, lanes)


def _by_tiles(x, w, bias, turned, low, work, out, tiles, found, lanes):
    """Small weights: transformed once, then lanes take pieces of the map."""
    cin, cout = x.shape[1], out.shape[1]
    whole = Lane(work, 0, 1)
    weight = _weight(w, turned, 0, cout, whole)
    pieces = _pieces(tiles, found.tiles)

    def run(number: int, start: int, stop: int) -> None:
        lane = whole.part(number, lanes)
        mark = lane.next
        for piece in pieces[start:stop]:
            lane.next = mark
            transformed = lane.take((36, piece.tiles, cin), x.dtype)
            again = lane.next
            _transform(x, _INPUT, tiles, piece, low, lane, transformed.reshape(6, 6, -1))
            lane.next = again
            sums = lane.take((36, piece.tiles, cout), x.dtype)
            np.matmul(transformed, weight, out=sums)
            _output(sums, out, tiles, [piece], bias, lane)

    threads.lanes(len(pieces), lanes, run)


def _by_channels(x, w, bias, turned, low, work, out, tiles, found, lanes):
    """Large weights: input transforms of a chunk are shared, then lanes take blocks of output channels."""
    cin, cout = x.shape[1], out.shape[1]
    blocks = [(o, min(o + found.block, cout)) for o in range(0, cout, found.block)]
    for chunk in _chunks(_pieces(tiles, min(found.tiles, found.chunk)), found.chunk):
        count = sum(p.tiles for p in chunk)
        whole = Lane(work, 0, 1)
        transformed = whole.take((36, count, cin), x.dtype)

        def spread(number: int, start: int, stop: int, chunk=chunk, whole=whole, transformed=transformed) -> None:
            lane = whole.part(number, lanes)
            mark = lane.next
            for piece in chunk[start:stop]:
                lane.next = mark
                part = transformed[:, piece.first : piece.first + piece.tiles]
                _transform(x, _INPUT, tiles, piece, low, lane, part.reshape(6, 6, -1))

        def multiply(
            number: int, start: int, stop: int, chunk=chunk, whole=whole, transformed=transformed, count=count
        ) -> None:
            lane = whole.part(number, lanes)
            mark = lane.next
            for first, last in blocks[start:stop]:
                lane.next = mark
                weight = _weight(w, turned, first, last, lane)
                sums = lane.take((36, count, last - first), x.dtype)
                np.matmul(transformed, weight, out=sums)
                shift = None if bias is None else bias[first:last]
                _output(sums, out[:, first:last], tiles, chunk, shift, lane)

        threads.lanes(len(chunk), lanes, spread)
        threads.lanes(len(blocks), lanes, multiply)


def plan_weight(tiles: Tiles, cin: int, cout: int, nbytes: int, lanes: int) -> Plan | None:
    """How the gradient of w walks within ``nbytes``."""
    room = nbytes // _FLOAT - 1024 * (lanes + 1)
    most_channels = max(cin, cout)
    return _cheapest(
        tiles,
        most_channels,
        -(-cout // lanes),
        lambda most, block: (room - lanes * max(_TAPS * cin * block, most * _LINES * most_channels)) // (36 * (cin + cout)),
    )


def backward_weight(gy, x, low, work, out):
    """out = the gradient of the 3x3 weight, from x and gy."""
    tiles = Tiles.of(gy.shape)
    cin, cout = x.shape[1], gy.shape[1]
    found, lanes = _find(tiles, cin, cout, work.nbytes, "weight")
    blocks = [(o, min(o + found.block, cout)) for o in range(0, cout, found.block)]
    with blas.single(lanes > 1):
        for number, chunk in enumerate(_chunks(_pieces(tiles, min(found.tiles, found.chunk)), found.chunk)):
            _weight_chunk(gy, x, low, work, out, tiles, chunk, blocks, number > 0, lanes)


def _weight_chunk(gy, x, low, work, out, tiles, chunk, blocks, add, lanes):
    """Add (or put) what one chunk of tiles gives to the gradient of w."""
    cin, cout = x.shape[1], gy.shape[1]
    count = sum(p.tiles for p in chunk)
    whole = Lane(work, 0, 1)
    left = whole.take((36, count, cout), x.dtype)
    right = whole.take((36, count, cin), x.dtype)

    def spread(number: int, start: int, stop: int) -> None:
        lane = whole.part(number, lanes)
        mark = lane.next
        for piece in chunk[start:stop]:
            span = slice(piece.first, piece.first + piece.tiles)
            lane.next = mark
            _transform(x, _INPUT, tiles, piece, low, lane, right[:, span].reshape(6, 6, -1))
            lane.next = mark
            _transform(gy, _SPREAD, tiles, piece, (0, 0), lane, left[:, span].reshape(6, 6, -1))

    def multiply(number: int, start: int, stop: int) -> None:
        lane = whole.part(number, lanes)
        mark = lane.next
        for first, last in blocks[start:stop]:
            lane.next = mark
            sums = lane.take((36, last - first, cin), x.dtype)
            np.matmul(left[:, :, first:last].transpose(0, 2, 1), right, out=sums)
            taps = lane.take((9, last - first, cin), x.dtype)
            np.matmul(_WEIGHT_BACK, sums.reshape(36, -1), out=taps.reshape(9, -1))
            target = out[first:last].reshape(last - first, cin, 9)
            if add:
                target += taps.transpose(1, 2, 0)
            else:
                np.copyto(target, taps.transpose(1, 2, 0))

    threads.lanes(len(chunk), lanes, spread)
    threads.lanes(len(blocks), lanes, multiply)


def _find(tiles: Tiles, cin: int, cout: int, nbytes: int, kind: str) -> tuple[Plan, int]:
    """The plan with as many lanes as there are threads and the workspace allows."""
    find = plan_weight if kind == "weight" else plan
    for lanes in range(min(threads.threads(), LANES), 0, -1):
        found = find(tiles, cin, cout, nbytes, lanes)
        if found is not None:
            return found, lanes
    raise AssertionError("the workspace is smaller than the one asked for")


def fits(x_shape: tuple[int, ...], y_shape: tuple[int, ...], kind: str) -> bool:
    """Whether the walk fits the workspace; what one lane can do decides, not the number of cores."""
    find = plan_weight if kind == "weight" else plan
    return find(Tiles.of(y_shape), x_shape[1], y_shape[1], workspace(x_shape, y_shape), 1) is not None
