"""Chains of ufuncs over tiles that fit the cache, on several cores, with scratch instead of temporaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from ....dtypes import is_floating, is_half
from .halves import cast
from .threads import GRAIN, SCRATCH, TILE, lanes, scratch, threads

SMALL = 1 << 13  # elements up to which there is only one tile
_BLOCK = 1 << 16  # elements of a tile of arrays that are broadcast, or not contiguous
_PASSES = (1, 2, 6)  # over memory, of which a core has GRAIN elements at least: for no, one, or more temporaries


def tiled(
    run: Callable[..., Any], out: np.ndarray, *arrays: Any, temps: int = 0, dtype: Any = None, passes: int | None = None
) -> None:
    """``run(out_tile, *array_tiles, *scratch_tiles)`` over all of ``out``.

    Args:
        run: computes one tile; all its arguments have the tile's shape.
        out: the result; ``arrays`` are broadcast to its shape (numbers and other objects are passed on).
        temps: the number of scratch tiles that ``run`` needs.
        dtype: the dtype of the scratch tiles; by default ``out``'s.
        passes: how long it takes, in passes over memory; by default, as ``temps`` says.
    """
    dtype = out.dtype if dtype is None else dtype
    if out.size <= SMALL:
        run(out, *arrays, *[scratch(out.shape, dtype, k, temps) for k in range(temps)])
        return
    spans = [i for i, a in enumerate(arrays) if isinstance(a, np.ndarray)]
    given, size = _spread(arrays, spans, out.shape), np.dtype(dtype).itemsize
    passes = _PASSES[min(temps, 2)] if passes is None else passes
    most = max(min(out.size * passes // GRAIN, threads()), 1)  # threads that are worth using
    if out.flags.c_contiguous and all(given[i].flags.c_contiguous for i in spans):
        out = out.reshape(-1)
        for i in spans:
            given[i] = given[i].reshape(-1)
        keys = cuts(0, out.size, min(TILE, SCRATCH // (max(temps, 1) * size) & -64, (out.size // most + 64) & -64))
    else:
        keys = list(blocks(out.shape, min(_BLOCK, (SCRATCH // max(temps, 1) & -64) // size)))

    def one(_: int, number: int) -> None:
        index = keys[number]
        target, cut = out[index], given.copy()
        for i in spans:
            cut[i] = given[i][index]
        run(target, *cut, *[scratch(target.shape, dtype, k, temps) for k in range(temps)])

    lanes(len(keys), most, one)


def _spread(arrays: Sequence[Any], spans: list[int], shape: tuple[int, ...]) -> list:
    """The arguments, of which the arrays at the places ``spans`` are broadcast."""
    given = list(arrays)
    for i in spans:
        if given[i].shape != shape:
            given[i] = np.broadcast_to(given[i], shape)
    return given


def tiled_wide(
    run: Callable[..., Any], out: np.ndarray, *arrays: Any, temps: int = 0, dtype: Any = None, passes: int | None = None
) -> None:
    """As :func:`tiled`, but half precision is computed in float32: ``run`` gets float32 tiles, and the result is rounded once.

    So no intermediate result overflows float16 (the square of 300 does), and none is rounded.
    """
    if not is_half(out.dtype) or (dtype is not None and not is_floating(np.dtype(dtype))):
        tiled(run, out, *arrays, temps=temps, dtype=dtype, passes=passes)
        return
    every = [out, *arrays]
    spans = [i for i, a in enumerate(every) if isinstance(a, np.ndarray)]
    every = _spread(every, spans, out.shape)
    halves = [i for i in spans if is_half(every[i].dtype)]

    def widened(*tiles: Any) -> None:
        given, work = list(tiles[: len(every)]), tiles[len(every) :]
        for i, tile in zip(halves, work[temps:], strict=True):
            if i:
                cast(given[i], tile)
            given[i] = tile
        run(*given, *work[:temps])
        cast(given[0], tiles[0])

    tiled(widened, *every, temps=temps + len(halves), dtype=np.float32)


def keep(x: np.ndarray, flag: np.ndarray, work: np.ndarray, out: np.ndarray) -> None:
    """out = x where flag, else 0 (also for nan), by bit masks: twelve times faster than a copy with ``where``.

    work has out's shape and dtype; x and out may be one array. flag is overwritten.
    """
    signs = flag.view(np.int8)
    np.negative(signs, out=signs)
    _masked(x, signs, work, out)


def drop(x: np.ndarray, flag: np.ndarray, work: np.ndarray, out: np.ndarray) -> None:
    """out = 0 where flag, else x: the opposite of :func:`keep`, with the same number of passes."""
    signs = flag.view(np.int8)
    np.subtract(signs, 1, out=signs)
    _masked(x, signs, work, out)


def _masked(x: np.ndarray, signs: np.ndarray, work: np.ndarray, out: np.ndarray) -> None:
    """out = x where signs are -1, in all bits of a wider number too; 0 where they are 0."""
    whole = _INTEGERS[out.dtype.itemsize]
    mask = work.view(whole)
    np.copyto(mask, signs)
    np.bitwise_and(x.view(whole), mask, out=out.view(whole))


def select(x: np.ndarray, y: np.ndarray, flag: np.ndarray, work: np.ndarray, out: np.ndarray) -> None:
    """out = x where flag, else y, by bit masks as in :func:`keep`; out may be x, but not y."""
    whole, signs = _INTEGERS[out.dtype.itemsize], flag.view(np.int8)
    mask, other, result = work.view(whole), y.view(whole), out.view(whole)
    np.negative(signs, out=signs)
    np.copyto(mask, signs)
    np.bitwise_xor(x.view(whole), other, out=result)
    np.bitwise_and(result, mask, out=result)
    np.bitwise_xor(result, other, out=result)


def sign(x: np.ndarray, work: np.ndarray, out: np.ndarray) -> None:
    """out = 1 where x > 0, -1 where x < 0, else 0 (of nan too, as PyTorch's): ``np.sign`` branches, element by element.

    work is a scratch tile of two bytes an element at least; out may be x.
    """
    both = work.reshape(-1).view(np.int8)[: 2 * x.size].reshape(2, *x.shape)
    above, below = both[0, ...], both[1, ...]  # arrays, even of one number
    np.greater(x, 0, out=above.view(np.bool_))
    np.less(x, 0, out=below.view(np.bool_))
    np.subtract(above, below, out=above)
    np.copyto(out, above)


_INTEGERS = {1: np.dtype(np.int8), 2: np.dtype(np.int16), 4: np.dtype(np.int32), 8: np.dtype(np.int64)}


def flags(work: np.ndarray) -> np.ndarray:
    """The first bytes of a scratch tile as bools of its shape."""
    return work.reshape(-1).view(np.bool_)[: work.size].reshape(work.shape)


def cuts(start: int, stop: int, step: int) -> list[slice]:
    """``range(start, stop)`` in slices of ``step``."""
    return [slice(i, min(i + step, stop)) for i in range(start, stop, step)]


def blocks(shape: tuple[int, ...], most: int = 1 << 14) -> Iterator[tuple]:
    """Indices that cut an array of ``shape`` into blocks of at most ``most`` elements (or one step of the last axis cut)."""
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= most:
        axis -= 1
        inner *= shape[axis]
    if axis == 0:
        yield (...,)
        return
    step = max(most // max(inner, 1), 1)
    yield from product(*map(range, shape[: axis - 1]), cuts(0, shape[axis - 1], step))


def boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """The blocks of :func:`blocks` as one slice an axis, each with its shape."""
    for block in blocks(shape, most):
        box = [slice(0, n) for n in shape]
        for axis, i in enumerate(() if block == (...,) else block):
            box[axis] = slice(i, i + 1) if isinstance(i, int) else i
        yield tuple(box), tuple([cut.stop - cut.start for cut in box])
