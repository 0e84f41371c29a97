"""Winograd's F(4, 3) along the rows: 3x3 convolutions of stride 1 in float32 with half of the multiplications.

Four output rows are made from six input rows: six sums of rows (``INPUT``) are convolved with six sums of the kernel's rows
(``_WEIGHT``), and four sums of the results (``_OUTPUT``) are the output. A row here is a slab of all channels of a few images
(row, channel, image, column): every sum of rows is one product of a tiny matrix with long rows, and a kernel column is a slab
read from one number further on, so nothing is copied. At an edge that reads a column of the next image, which must not count.
The gradient of x is the same walk over gy with the turned weight; the gradient of w is the transpose of each step.

Errors are near 1e-6 of the largest output, a few times those of plain sums.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016 (the matrices, used along one axis here:
the second axis would halve the products again, and costs more in copies than that saves at the widths of most networks).
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from . import blas, threads
from .conv_geometry import LANES, Geometry, Lane, even, lane_count, whole_rows
from .conv_tiles import Tile
from .winograd_slab import SLACK, Line, SixRows, SlabReader, sums_of_rows

_WEIGHT = np.array(  # G: three kernel rows to six sums
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)
_OUTPUT = np.array(  # A^T: six results to four output rows
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32
)
_COLUMNS = np.kron(_WEIGHT, np.eye(3)).astype(np.float32)  # nine taps to six sums of rows, each of three columns
_COLUMNS_BACK = np.ascontiguousarray(_COLUMNS.reshape(6, 3, 9).swapaxes(0, 1).reshape(18, 9).T)  # of (column, sum) pairs
_OUTPUT_3 = np.concatenate([_OUTPUT] * 3, axis=1)  # the results of three kernel columns, where they are added on the way
_SPREAD = np.ascontiguousarray(_OUTPUT.T)  # the transpose spreads a gradient
_FLOAT = np.dtype(np.float32)
MANY = 48  # channels from which it is always faster; from _FEWEST on where all images have _PIXELS
_FEWEST, _PIXELS = 32, 1 << 13
_LANE = 1 << 20  # numbers that a lane holds, at most: wide products are fast ones
_WEIGHTS = 5 << 19  # numbers of a transformed weight that are kept in any case
_LEAST = 2e7  # multiplications that are worth a core: waking one takes as long as 6 million
_GRAIN = threads.GRAIN // 8  # numbers of a weight that are worth a core: several passes, about 1 ns each
_BACK = 1 << 12  # pairs of channels whose kernel rows are made at once, or those of eight channels
_STACK = 1 << 17  # sums of a weight gradient up to which a tile's are computed at once and added afterwards


def _numbers(cin: int, cout: int, columns: int, kind: str) -> int:
    """Numbers of a lane's tile of ``columns`` columns: slabs that are not needed at the same time share memory."""
    if kind == "weight":
        sums = 18 * cin * (cout if _whole(cin, cout) else -(-cout // 2))
        return (max(6 * cin, 4 * cout) + 6 * cin + 6 * cout) * columns + sums * (2 if sums <= _STACK else 1) + 4 * SLACK
    return _per_column(cin, cout, 18) * columns + 4 * SLACK


def _per_column(cin: int, cout: int, products: int) -> int:
    """Numbers of a column of input rows, then of ``products`` products of each output channel, and of their sums."""
    return max(6 * cin, products * cout) + max(6 * cin, 4 * cout)


def _added(cin: int, cout: int) -> bool:
    """True if BLAS copies a product's operands in any case: then those of the three kernel columns are added at once."""
    return blas.SMALL // (cin * cout) < blas.LEAST


def _images(shape: tuple[int, ...], cin: int, cout: int, kind: str) -> int:
    """Images of a tile: as many as a lane may hold, at least one, and two tiles where that is possible.

    Small maps get small lanes: they come last in a network, when the memory of all others is in use.
    """
    pixels = shape[0] * shape[2] * shape[3]
    fixed = _numbers(cin, cout, 0, kind)
    few = kind == "weight" and min(cin, cout) < MANY  # then no more than rows take: see the rule that chooses
    room = min(_LANE, (cin + cout) * pixels // 4 + (-fixed if few else 4 * cin * cout))
    most = max(room // (_numbers(cin, cout, shape[3] + 2, kind) - fixed), 1)
    if kind == "weight" and 18 * cin * cout <= _STACK:
        most = max(min(most, blas.SMALL // (cin * cout) // (shape[3] + 2)), 1)
    parts, rows = -(-shape[0] // most), -(-shape[2] // 4)
    if parts * rows % 2 and parts * rows < 8 and shape[0] > parts:
        parts += 1  # else one of two cores would wait
    return -(-shape[0] // parts)


def _extent(shape: tuple[int, ...], cin: int, cout: int) -> tuple[int, int]:
    """(images, fours of output rows) of a tile of the output.

    Products that are added at once need less room. BLAS copies the weights for each: the same lane holds wider ones.
    """
    images, fours = _images(shape, cin, cout, "forward"), -(-shape[2] // 4)
    if not _added(cin, cout):
        return images, 1
    most = images * _per_column(cin, cout, 18) // _per_column(cin, cout, 6)
    return even(shape[0], most), even(fours, min(most // shape[0], fours // 2))


def _worth(shape: tuple[int, ...], cin: int, cout: int) -> int:
    """Threads that have enough to do, at five multiplications for each pixel and pair of channels."""
    return int(5 * cin * cout * shape[0] * shape[2] * shape[3] / _LEAST)


@lru_cache(maxsize=256)
def _tiles(shape: tuple[int, ...], images: int, fours: int) -> list[Tile]:
    firsts = product(range(0, shape[0], images), range(0, shape[2], 4 * fours))
    return [Tile(n, min(n + images, shape[0]), r, min(r + 4 * fours, shape[2])) for n, r in firsts]


def _block(shape: tuple[int, ...], cin: int, cout: int) -> int:
    """Output channels whose transformed weights are kept at a time: they are twice as large as the weights."""
    most = max(_WEIGHTS, 2 * (cin + cout) * shape[0] * shape[2] * shape[3])
    return even(cout, most // (18 * cin))


def fits(geo: Geometry, kind: str) -> bool:
    """True if this is a 3x3 convolution of stride 1 with enough channels and pixels to be faster in spite of the extra sums."""
    plain = geo.kernel == (1, 3, 3) and geo.groups == 1 and geo.stride == geo.dilation == (1, 1, 1) and geo.dtype == _FLOAT
    height, width = (geo.inside if kind == "input" else geo.outside)[1:]
    pixels = geo.images * height * width
    if (
        not plain
        or min(geo.cin, geo.cout) < (_FEWEST if pixels >= _PIXELS else MANY)
        or min(height, width) < 3
        or not geo.images
    ):
        return False
    if kind == "weight" and 9 * geo.cin * geo.cout > pixels * (geo.cin + geo.cout):
        return False  # more work on the weight than on the maps
    return not geo.is_mostly_weight(pixels)


def workspace(geo: Geometry, kind: str) -> int:
    """Bytes: a block of the transformed weight, and two lanes' slabs, of at most 4 MiB each where one image is not more."""
    read, written, outside = (geo.cout, geo.cin, geo.inside) if kind == "input" else (geo.cin, geo.cout, geo.outside)
    shape = (geo.images, written, *outside[1:])
    block = _block(shape, read, written)
    lane = _numbers(read, block, _images(shape, read, block, kind) * (shape[3] + 2), kind)
    weight = 0 if kind == "weight" else 18 * read * block
    return _FLOAT.itemsize * (2 * lane + weight) + 64 * LANES


def forward(geo, x, w, bias, work, out):
    """out = conv(x, w) + bias."""
    _convolve(x, w.reshape(*w.shape[:2], 9), bias, geo.low[1:], work, out)


def backward_input(geo, gy, w, bias, work, out):
    """The gradient of x: the same walk over gy with the turned weight; a bias is added to it."""
    turned = w.reshape(*w.shape[:2], 9)[:, :, ::-1].transpose(1, 0, 2)
    _convolve(gy, turned, bias, (2 - geo.low[1], 2 - geo.low[2]), work, out)


def _weights(w: np.ndarray, out: np.ndarray) -> None:
    """out (6, 3, cout, cin) = the sums of the kernel rows of a view w (cout, cin, 9)."""
    flat = out.reshape(18, *out.shape[2:])
    most = max(threads.SCRATCH // (9 * _FLOAT.itemsize * w.shape[1]), 1)

    def part(start: int, stop: int) -> None:
        for i in range(start, stop, most):
            j = min(i + most, stop)
            taps = threads.scratch((j - i, 9, w.shape[1]))
            np.copyto(taps, w[i:j].transpose(0, 2, 1))
            np.matmul(_COLUMNS, taps, out=flat[:, i:j].transpose(1, 0, 2))

    threads.split(len(w), part, grain=max(_GRAIN * len(w) // w.size, 1))


def _convolve(source: np.ndarray, w: np.ndarray, bias: Any, low: tuple[int, int], work: np.ndarray, out: np.ndarray) -> None:
    """out = conv(source, w) + bias (or None), where w is a view (cout, cin, 9); ``low`` is the padding before."""
    cout, cin = w.shape[:2]
    block = _block(out.shape, cin, cout)
    images, fours = _extent(out.shape, cin, block)
    whole = Lane(work, 0, 1)
    transformed = whole.take((6, 3, block, cin), _FLOAT)
    image = _per_column(cin, block, 6 if _added(cin, block) else 18) * (out.shape[3] + 2)  # numbers
    room = (whole.stop - whole.next) // _FLOAT.itemsize
    lanes = min(lane_count(work), room // (image + 4 * SLACK))
    while lanes * (images * fours * image + 4 * SLACK) > room:  # it was made for two cores
        images, fours = (images, fours - 1) if fours > 1 else (images - 1, 1)
    tasks = _tiles(out.shape, images, fours)

    def run(number: int, task: int) -> None:
        tile = tasks[task]
        size = number, tile.n1 - tile.n0, -(-(tile.r1 - tile.r0) // 4)
        if size not in made:
            made[size] = _Products(source, weights, shift, low, part_of_out, size[1:], whole.part(number, lanes))
        made[size].run(tile)

    with blas.single():
        for first in range(0, cout, block):
            part, part_of_out = w[first : first + block], out[:, first : first + block]
            weights = transformed.reshape(-1)[: 18 * cin * len(part)].reshape(6, 3, len(part), cin)
            shift = None if bias is None else bias[first : first + block, None]
            made: dict[tuple[int, int, int], _Products] = {}
            _weights(part, weights)
            threads.lanes(len(tasks), min(lanes, _worth(out.shape, cin, block)), run)


class _Products:
    """Tiles of one size in one lane: fours of output rows of a few images. Each four of an image is as another image.

    All views of the lane are made once.
    """

    def __init__(self, source, transformed, shift, low, out, size, lane):
        (cout, cin), (images, fours) = transformed.shape[2:], size
        line = Line.of(images * fours, source.shape[3], out.shape[3], low[1])
        columns = line.columns
        apart = 1 if _added(cin, cout) else 3  # kernel columns with products of their own
        first = lane.take((max(6 * cin, apart * 6 * cout) * columns,), _FLOAT)  # input rows, then the products
        second = lane.take((max(6 * cin * columns + 2 * SLACK, 4 * cout * columns),), _FLOAT)  # sums of rows, then output rows
        self.input, self.shift, self.before, self.low = SixRows(line, cin, first, second), shift, line.before, low[0]
        self.products = products = first[: apart * 6 * cout * columns].reshape(apart, 6, cout, columns)
        self.weights = transformed.transpose(1, 0, 2, 3)
        self.columns = blas.by_columns(self.weights[:apart], self.input.windows[:apart], self.products)
        self.edges = line.edges(products)
        result = second[: 4 * cout * columns].reshape(4, cout, columns)
        self.sums = sums_of_rows(_OUTPUT_3[:, : 6 * apart], products.reshape(6 * apart, -1), result.reshape(4, -1))
        parts, slab = [slice(i * images, (i + 1) * images) for i in range(fours)], self.input.slab
        self.readers = [SlabReader(source, low[1] - line.before, slab[:, :, part]) for part in parts]
        result, rows = line.in_images(result)[..., : line.out], out.transpose(2, 1, 0, 3)
        self.results = [whole_rows(result[:, :, part], rows) for part in parts]

    def run(self, tile: Tile) -> None:
        firsts = range(tile.r0, tile.r1, 4)
        for row, reader in zip(firsts, self.readers, strict=True):
            reader.read(row - self.low, tile.n0, tile.n1)
        self.input.add_up()
        blas.multiply(self.columns)
        self.edges.fill(0)
        if len(self.products) == 1:
            blas.add_products(self.weights[1], self.input.windows[1], self.products[0])
            if self.before:
                self.input.edge.fill(0)
            blas.add_products(self.weights[2], self.input.windows[2], self.products[0])
        if self.shift is not None:
            self.products[0, 1] += self.shift  # the second of six results is a part of each of four rows, once
        blas.multiply(self.sums)
        for row, (result, out) in zip(firsts, self.results, strict=True):
            stop = min(row + 4, tile.r1)
            np.copyto(out[row:stop, :, tile.n0 : tile.n1], result[: stop - row])


class Share(NamedTuple):
    """One lane's share of a weight's gradient: some tiles, some output channels."""

    tiles: list[Tile]
    o0: int
    o1: int


def _shares(tiles: list[Tile], cin: int, cout: int) -> list[Share]:
    """Two shares: half of the tiles each, or, where two sums of a whole weight would be large, half of the channels each."""
    if _whole(cin, cout):
        half = len(tiles) // 2
        return [Share(tiles[:half], 0, cout), Share(tiles[half:], 0, cout)]
    return [Share(tiles, 0, cout // 2), Share(tiles, cout // 2, cout)]


def _whole(cin: int, cout: int) -> bool:
    return cin * cout <= 1 << 14


def backward_weight(geo, gy, x, work, out):
    """The gradient of the weight, from x and gy; always by two shares, whatever the number of cores."""
    cout, cin, low = geo.cout, geo.cin, geo.low[1:]
    shares = _shares(_tiles(gy.shape, _images(gy.shape, cin, cout, "weight"), 1), cin, cout)
    whole = Lane(work, 0, 1)
    spaces = [whole.part(number, len(shares)) for number in range(len(shares))]
    sums = [a.take((3, 6, cin, s.o1 - s.o0), _FLOAT) for a, s in zip(spaces, shares, strict=True)]

    def run(_: int, i: int) -> None:
        sums[i].fill(0)
        _weight_tiles(gy[:, shares[i].o0 : shares[i].o1], x, low, shares[i].tiles, spaces[i], sums[i])

    with blas.single():
        threads.lanes(len(shares), min(lane_count(work), _worth(gy.shape, cin, cout)), run)
        if _whole(cin, cout):
            sums[0] += sums.pop()
            shares.pop()
        most = max(_BACK // cin, 8)
        few = [
            (a[..., o - s.o0 : o - s.o0 + most], out[o : min(o + most, s.o1)])
            for a, s in zip(sums, shares, strict=True)
            for o in range(s.o0, s.o1, most)
        ]
        threads.lanes(len(few), out.size // _GRAIN, lambda _, number: _weight_back(*few[number]))


def _weight_tiles(
    gy: np.ndarray, x: np.ndarray, low: tuple[int, int], tiles: list[Tile], lane: Lane, total: np.ndarray
) -> None:
    """total (3, 6, cin, cout) += what tiles of four rows of a few images give."""
    made: dict[int, _WeightProducts] = {}
    for tile in tiles:
        images = tile.n1 - tile.n0
        if images not in made:
            made[images] = _WeightProducts(gy, x, low, images, lane.part(0, 1), total)
        made[images].run(tile)


class _WeightProducts:
    """Tiles of one size in one lane: four rows of the gradient of a few images. All views of the lane are made once.

    Channels come last in the gradient's rows: BLAS is fastest so. Small products are added to the total of all tiles at once.
    """

    def __init__(self, gy, x, low, images, lane, total):
        line, cin, cout = Line.of(images, x.shape[3], gy.shape[3], low[1]), x.shape[1], gy.shape[1]
        columns, size = line.columns, 6 * cin * line.columns
        first = lane.take((max(size, 4 * columns * cout),), _FLOAT)  # input rows, then the gradient's rows
        second = lane.take((size + 2 * SLACK,), _FLOAT)
        self.spread = lane.take((6, columns, cout), _FLOAT)
        self.input, self.before, self.low = SixRows(line, cin, first, second), line.before, low[0]
        rows = first[: 4 * columns * cout].reshape(4, columns, cout)
        self.x = SlabReader(x, low[1] - line.before, self.input.slab)
        self.gradient = SlabReader(
            gy, 0, line.in_images(rows.swapaxes(1, 2))
        )  # zeros at the ends: what is read there does not count
        self.sums = sums_of_rows(_SPREAD, rows.reshape(4, -1), self.spread.reshape(6, -1))
        self.edge = self.spread.reshape(6, images, -1, cout)[:, :, 0]
        self.kept = first[: self.edge.size].reshape(self.edge.shape)
        self.total, self.products = total, lane.take(total.shape, _FLOAT) if total.size <= _STACK else None
        multiply, outs = (blas.add_products, total) if self.products is None else (np.matmul, self.products)
        self.columns = [partial(multiply, a, self.spread, out) for a, out in zip(self.input.windows, outs, strict=True)]

    def run(self, tile: Tile) -> None:
        self.x.read(tile.r0 - self.low, tile.n0, tile.n1)
        self.input.add_up()
        self.gradient.read(tile.r0, tile.n0, tile.n1)
        blas.multiply(self.sums)
        left, middle, right = self.columns
        middle()
        if self.before:
            np.copyto(self.kept, self.edge)
            self.edge.fill(0)
        left()
        if self.before:
            np.copyto(self.edge, self.kept)
            self.input.edge.fill(0)
        right()
        if self.products is not None:
            np.add(self.total, self.products, out=self.total)


def _weight_back(total: np.ndarray, out: np.ndarray) -> None:
    """out (a few channels, cin, 3, 3) = the kernel rows' share in the sums (3, 6, cin, a few channels)."""
    channels, cin = out.shape[:2]
    most = max(threads.SCRATCH // (27 * _FLOAT.itemsize * channels), 1)
    for i in range(0, cin, most):
        j = min(i + most, cin)
        tile = threads.scratch((27, channels, j - i))
        np.copyto(tile[:18].reshape(3, 6, channels, j - i), total[:, :, i:j].swapaxes(2, 3))
        np.matmul(_COLUMNS_BACK, tile[:18].reshape(18, -1), out=tile[18:].reshape(9, -1))
        np.copyto(out[:, i:j].reshape(channels, j - i, 9), tile[18:].transpose(1, 2, 0))
