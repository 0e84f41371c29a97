"""Bytes that CUB's algorithms ask for: a kernel asks for them once, before it starts.

The formulas are those of CUB 3.0.1 (CUDA 13.0), files ``cub/device/dispatch/dispatch_*.cuh`` and ``.../tuning``.
"""

from __future__ import annotations

from .call import Gpu, up

_ALIGNMENT = 256


def aliased(*sizes: int) -> int:
    """One request for several blocks: each on a multiple of 256 bytes, and 255 more to find the first multiple.

    Source: ``util_temporary_storage.cuh``, ``AliasTemporaries``.
    """
    return sum(up(size, _ALIGNMENT) * _ALIGNMENT for size in sizes) + _ALIGNMENT - 1


def _scaled(threads: int, items: int, width: int) -> tuple[int, int]:
    """Threads and items of each for elements of ``width`` bytes. Source: ``util_arch.cuh``, ``RegBoundScaling``."""
    items = max(1, items * 4 // max(4, width))
    return min(threads, up(48 * 1024, width * items) + 31 & -32), items


def radix_sort(gpu: Gpu, count: int, key: int, value: int, bits: int, offset: int = 8) -> int:
    """Bytes that a sort of ``count`` pairs takes beside its inputs and outputs.

    Args:
        key, value: bytes of each; ``value=0``: keys only.
        bits: of the key that are sorted by.
        offset: bytes of the type that counts elements: PyTorch counts in 64 bits.

    Source: ``dispatch_radix_sort.cuh``, ``Invoke``, ``InvokeOnesweep``.
    """
    wide = max(key, value)
    threads, items = _scaled(256, 19, wide)
    if count == 0 or bits == 0 or count <= threads * items:
        return 1  # in one tile, or nothing to do
    if key < 4 and gpu.capability < (9, 0):
        return aliased((2 * gpu.processors * 128 + 512 * 23) * offset, count * key, count * value)  # spine of an upsweep
    threads, items = _scaled(*_onesweep(gpu, key, value, offset), wide)
    tile, passes = threads * items, up(bits, 8)
    portion = ((1 << 28) - 1) // tile * tile
    portions, blocks = up(count, portion), up(min(count, portion), tile)
    extra = passes > 1
    return aliased(
        portions * passes * 256 * offset, blocks * 256 * 4, extra * count * key, extra * count * value, portions * passes * 4
    )


def _onesweep(gpu: Gpu, key: int, value: int, offset: int) -> tuple[int, int]:
    """Threads and items of one sweep for keys of four bytes. Source: ``tuning_radix_sort.cuh``."""
    long = offset == 8
    if gpu.capability >= (9, 0):
        if key >= 8:
            return 384, 30 if value < 8 else 24
        if key == 4:
            if not value:
                return 384, 20 - long
            return 384, (17 if long else 23) if value < 8 else (29 if long else 30)
        return 384, 23
    if gpu.capability >= (8, 0):
        return 384, 17 if long and key == 4 and value else 21
    return 256, 46 if key == value == 4 else 23


def scan(count: int, width: int) -> int:
    """Bytes of a scan of ``count`` elements that accumulates in ``width`` bytes: one state for each tile, and 32 more.

    The tile is that of untuned GPUs; others take larger tiles, and so fewer bytes.

    Source: ``dispatch_scan.cuh``, ``single_pass_scan_operators.cuh``, ``ScanTileState``.
    """
    items = max(1, min(15 * 4 // width, 15 * 2))
    return aliased((up(count, 128 * items) + 32) * max(8, 2 * width))


def reduce(gpu: Gpu, count: int, width: int) -> int:
    """Bytes of a reduction of all elements: a partial result for each block of threads, five times as many as run at once.

    Source: ``dispatch_reduce.cuh``, ``InvokePasses``.
    """
    threads, items = _scaled(256, 16, width)
    if count <= threads * items:
        return 1
    return aliased(gpu.processors * (gpu.threads // threads) * 5 * width)


def select(count: int) -> int:
    """Bytes of a selection of elements: one state for each tile, and 32 more. Source: ``dispatch_select_if.cuh``."""
    return aliased((up(count, 128 * 10) + 32) * 8)
