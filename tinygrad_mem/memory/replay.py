"""The bytes that CuPy's pool would have reserved for the events of a track.

Used bytes do not depend on placement: each block takes its size rounded up to 512, in CuPy as here. Reserved bytes do. Our
pool chooses among free chunks of equal size the one with the lowest address; CuPy the one whose Python object lies lowest
in the process, which cannot be predicted. Nothing else differs: with CuPy's choices our pool reserves what CuPy's does, to the
byte. So the events are replayed with several choices, and the answer is the least and the most that came of them.

Source: CuPy 14.2, ``cupy/cuda/memory.pyx`` (``SingleDeviceMemoryPool``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heapify
from typing import NamedTuple

import numpy as np

from ..devices.pool import Chunk, Pool
from .log import RECORD, Kind, Log


class Replay(NamedTuple):
    """Most bytes that a pool would have taken from the machine.

    This is a sample and no bound. A GPU may choose otherwise: it reserves at least ``used`` bytes, and may reserve less than
    ``low`` or more than ``high``. Where the two are equal, choices hardly matter. More seeds try more choices.

    Attributes:
        low, high: the least and the most over the choices that were replayed.
        used: most bytes in use, the same for every choice.
        fragmentation: share of ``high`` that was not in use at the moment when most was.
    """

    low: int
    high: int
    used: int

    @property
    def fragmentation(self) -> float:
        return 1 - self.used / self.high if self.high else 0.0


class _CuPyPool(Pool):
    """The pool, over no memory at all, with a free chunk chosen by lot among those of equal size."""

    def __init__(self, seed: int) -> None:
        super().__init__("replay", reserve=False)
        self._lot = random.Random(seed)

    def _pop(self, size: int) -> Chunk | None:
        heap = self._heaps.get(size)
        if heap:
            fits = sorted({a for a in heap if (c := self._free_chunks.get(a)) is not None and c.size == size})
            if len(fits) > 1:
                chosen = self._lot.choice(fits)
                heap.remove(chosen)
                heapify(heap)
                chunk = self._free_chunks.pop(chosen)
                chunk.free = False
                return chunk
        return super()._pop(size)

    def take(self, size: int) -> Chunk:
        """A chunk of ``size`` bytes."""
        return self._best_fit(size) or self._grow(size, size)


def replay(log: Log, seeds: int = 8) -> Replay:
    """Replay the mallocs and frees of ``log``, and where it gave its cache back, with ``seeds`` different choices.

    Blocks that are older than the log are taken first, in the order of their addresses.

    Raises:
        ValueError: ``seeds`` is less than 1.
    """
    if seeds < 1:
        raise ValueError(f"replay: at least one choice is needed, found seeds={seeds}")
    pools = [_run(log, seed) for seed in range(seeds)]
    reserved = [pool.peak_total for pool in pools]
    return Replay(min(reserved), max(reserved), pools[0].peak_used)


def _run(log: Log, seed: int) -> _CuPyPool:
    pool, live = _CuPyPool(seed), {}
    for part in _parts(log):
        for kind, address, size in zip(*(part[name].tolist() for name in ("kind", "address", "rounded")), strict=True):
            if kind == Kind.RELEASE:
                pool.free_all_blocks()
            elif kind != Kind.FREE:
                live[address] = pool.take(size)
            elif address in live:
                pool._release(live.pop(address))
    return pool


def _parts(log: Log) -> Iterator[np.ndarray]:
    """The events that a pool hears: first the blocks that are older than the log, whenever the log met them."""
    older = [chunk[(chunk["kind"] == Kind.OLDER) & (chunk["address"] > 0)] for chunk in log.chunks()]
    yield np.sort(np.concatenate([np.empty(0, RECORD), *older]), order="address")
    for chunk in log.chunks():
        yield chunk[np.isin(chunk["kind"], (Kind.MALLOC, Kind.FREE, Kind.RELEASE))]
