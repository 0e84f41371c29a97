"""Bytes that CUB's algorithms ask for: a kernel asks for them once, before it starts.

The formulas are those of CUB 3.0.1 (CUDA 13.0), files ``cub/device/dispatch/dispatch_*.cuh`` and ``.../tuning``.
"""

from __future__ import annotations

from collections.abc import Mapping

from .call import Gpu, up

_ALIGNMENT = 256
_OFFSET = 8  # bytes of the type that counts elements: PyTorch counts in 64 bits


def aliased(*sizes: int) -> int:
    """One request for several blocks: each on a multiple of 256 bytes, and 255 more to find the first multiple.

    Source: ``util_temporary_storage.cuh``, ``AliasTemporaries``.
    """
    return sum(up(size, _ALIGNMENT) * _ALIGNMENT for size in sizes) + _ALIGNMENT - 1


def _scaled(threads: int, items: int, width: int) -> tuple[int, int]:
    """Threads and items of each for elements of ``width`` bytes. Source: ``util_arch.cuh``, ``RegBoundScaling``."""
    items = max(1, items * 4 // max(4, width))
    return min(threads, up(48 * 1024, width * items) + 31 & -32), items


def radix_sort(gpu: Gpu, count: int, key: int, value: int, bits: int, doubled: bool = False) -> int:
    """Bytes that a sort of ``count`` pairs takes beside its inputs and outputs.

    Args:
        key, value: bytes of each; ``value=0``: keys only.
        bits: of the key that are sorted by.
        doubled: the caller has a second array of keys, and of values.

    Source: ``dispatch_radix_sort.cuh``, ``Invoke``, ``InvokeOnesweep``.
    """
    wide = max(key, value)
    threads, items = _scaled(256, 19, wide)
    if count == 0 or bits == 0 or count <= threads * items:
        return 1  # in one tile, or nothing to do
    if key < 4 and gpu.capability < (9, 0):
        return aliased((2 * gpu.processors * 128 + 512 * 23) * _OFFSET, count * key, count * value)  # spine of an upsweep
    threads, items = _scaled(*_onesweep(gpu, key, value), wide)
    tile, passes = threads * items, up(bits, 8)
    portion = ((1 << 28) - 1) // tile * tile
    portions, blocks = up(count, portion), up(min(count, portion), tile)
    extra = passes > 1 and not doubled
    return aliased(
        portions * passes * 256 * _OFFSET, blocks * 256 * 4, extra * count * key, extra * count * value, portions * passes * 4
    )


def _onesweep(gpu: Gpu, key: int, value: int) -> tuple[int, int]:
    """Threads and items of one sweep for keys of four bytes. Source: ``tuning_radix_sort.cuh``."""
    if gpu.capability >= (9, 0):
        if key >= 8:
            return 384, 30 if value < 8 else 24
        if key == 4:
            return 384, 19 if not value else 17 if value < 8 else 29
        return 384, 23
    if gpu.capability >= (8, 0):
        return 384, 17 if key == 4 and value else 21
    return 256, 46 if key == value == 4 else 23


def _states(tiles: int, word: int, value: int = 0) -> int:
    """Bytes of the states of tiles, and of 32 before them; ``value``: the result of each tile is in two arrays of its own.

    They are a request within another request, which adds 256 bytes.

    Source: ``single_pass_scan_operators.cuh``, ``tile_state_allocation_size``.
    """
    return aliased((tiles + 32) * word, *[(tiles + 32) * value] * (2 if value else 0))


def scan(count: int, width: int, plain: bool = True) -> int:
    """Bytes of a scan of ``count`` elements that accumulates in ``width`` bytes: a state for each tile.

    The tile is that of operators that CUB does not know, as PyTorch's are.

    Args:
        plain: C++ has the type; else it is a class, such as those of complex numbers and of 16 bits.

    Source: ``dispatch_scan.cuh``, ``Invoke``; ``tuning_scan.cuh``, ``DefaultPolicy``.
    """
    tiles = up(count, 128 * max(1, min(15 * 4 // width, 15 * 2)))
    return aliased(_states(tiles, 2 * width) if plain else _states(tiles, 4, width))


def scan_by_key(gpu: Gpu, count: int, width: int) -> int:
    """Bytes of a scan of integers of 4 or 8 bytes for each of the keys, which are as wide: states, and a key for each tile.

    Source: ``dispatch_scan_by_key.cuh``, ``Invoke``; ``tuning_scan_by_key.cuh``.
    """
    tiles = up(count, _tile(gpu, width, {10: (224 * 20, 256 * 23), 9: (288 * 14, 224 * 11), 8: (256 * 15, 224 * 10)}, 256 * 9))
    return aliased((tiles + 32) * 16, (tiles + 1) * width)


def unique_by_key(gpu: Gpu, count: int, width: int) -> int:
    """Bytes of a selection of the first of each of equal keys of 4 or 8 bytes, with its place as an ``int``.

    Source: ``dispatch_unique_by_key.cuh``, ``Invoke``; ``tuning_unique_by_key.cuh``.
    """
    measured = {10: (512 * 14, 384 * 10), 9: (512 * 14, 640 * 7), 8: (256 * 11, 256 * 7)}
    return aliased(_states(up(count, _tile(gpu, width, measured, 64 * max(1, 11 * 4 // width))), 16))


def unique(gpu: Gpu, count: int, width: int, plain: bool = True) -> int:
    """Bytes of a selection of the first of each of equal keys; ``plain``: C++ has their type.

    Source: ``dispatch_select_if.cuh``, ``Invoke``; ``tuning_select_if.cuh``.
    """
    hopper, ampere = (256 * 22, 256 * 22, 384 * 17, 384 * 11), (992 * 20, 576 * 14, 256 * 18, 192 * 10)
    measured = {10: (384 * 22, 256 * 22, 384 * 15, 384 * 11), 9: hopper, 8: ampere}
    return aliased(_states(up(count, _tile(gpu, width, measured if plain else {}, 128 * min(10, 40 // width))), 8))


def running_sum(gpu: Gpu, count: int) -> int:
    """Bytes of a sum of integers of 4 bytes and all before them. Source: ``dispatch_scan.cuh``; ``tuning_scan.cuh``."""
    hopper = (128 * 24, 0)
    return aliased(_states(up(count, _tile(gpu, 4, {10: hopper, 9: hopper, 8: (320 * 12, 0)}, 128 * 15)), 8))


def run_lengths(count: int) -> int:
    """Bytes of counting equal keys of up to 8 bytes, in 8 bytes: a state for each tile, and 32 before them.

    Source: ``dispatch_reduce_by_key.cuh``, ``Invoke``; ``tuning_run_length_encode.cuh``, ``DefaultPolicy``.
    """
    return aliased((up(count, 128 * 6) + 32) * 16)


def _tile(gpu: Gpu, width: int, measured: Mapping[int, tuple[int, ...]], other: int) -> int:
    """Elements of a tile, by generation of GPUs; of its numbers the last is for keys of 8 bytes, that before it for 4, and so
    on. CUB has measured none after the A100 and before Hopper."""
    generation = 0 if (8, 0) < gpu.capability < (9, 0) else min(gpu.capability[0], 10)
    return measured[generation][width.bit_length() - 5] if generation in measured else other


def reduce(gpu: Gpu, count: int, width: int) -> int:
    """Bytes of a reduction of all elements: a partial result for each block of threads, five times as many as run at once.

    Source: ``dispatch_reduce.cuh``, ``InvokePasses``.
    """
    threads, items = _scaled(256, 16, width)
    if count <= threads * items:
        return 1
    return aliased(_blocks(gpu, threads) * width)


def _blocks(gpu: Gpu, threads: int) -> int:
    """Blocks of threads of a reduction of many elements: five times as many as run at once."""
    return gpu.processors * (gpu.threads // threads) * 5


def thrust_sort(gpu: Gpu, count: int, key: int, value: int) -> int:
    """Bytes that Thrust takes to sort pairs in place: a second array of each on multiples of 128 bytes, and CUB's own.

    Source: ``thrust/system/cuda/detail/sort.h``, ``radix_sort``.
    """
    arrays = sum(up(count * width, 128) * 128 for width in (key, value))
    return arrays + radix_sort(gpu, count, key, value, 8 * key, doubled=True)


def thrust_reduce_by_key(count: int) -> int:
    """Bytes that Thrust takes to count equal keys of up to 8 bytes: how many there are, and states of tiles within that.

    Source: ``thrust/system/cuda/detail/reduce_by_key.h``, ``doit_step``.
    """
    return aliased(8, aliased((up(count, 256 * 9) + 32) * 16))


def thrust_extreme(gpu: Gpu) -> int:
    """Bytes that Thrust takes to find the largest of many numbers of 8 bytes, with its place.

    Source: ``thrust/system/cuda/detail/extrema.h``, ``extrema``.
    """
    return aliased(16, aliased(_blocks(gpu, 256) * 16, 8))


def select(gpu: Gpu, count: int) -> int:
    """Bytes of a selection of places of 8 bytes by flags: a state for each tile.

    Source: ``dispatch_select_if.cuh``; ``tuning_select_if.cuh``.
    """
    known = {10: (320 * 11,), 9: (384 * 11,), 8: (384 * 6,)}
    return aliased(_states(up(count, _tile(gpu, 8, known, 128 * 5)), 8))
