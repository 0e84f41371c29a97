"""The bytes that CuPy's pool would have reserved for the events of a track.

Used bytes do not depend on placement: each block uses its size rounded up to 512, in CuPy as here. Reserved bytes do depend on
it. Among free chunks of equal size our pool takes the lowest address; CuPy takes the chunk whose Python object has the
lowest address, which cannot be predicted. Nothing else differs: with CuPy's choices our pool reserves the same bytes. So
the events are replayed with several random choices, and the result is the least and the most that they reserved.

Source: CuPy 14.2, ``cupy/cuda/memory.pyx`` (``SingleDeviceMemoryPool``).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..devices.pool import Chunk, Pool
from .log import RECORD, Kind, Log
from .record import Record


class Replay(NamedTuple):
    """The most bytes that a pool would have reserved.

    This is a sample, not a bound. A GPU may choose differently: it reserves at least ``used`` bytes, and may reserve less than
    ``low`` or more than ``high``. If the two are equal, the choices hardly matter. More seeds try more choices.

    Attributes:
        low, high: the least and the most over the replayed choices.
        used: the most bytes in use, the same for every choice.
        fragmentation: the share of ``high`` that was unused when most bytes were in use.
    """

    low: int
    high: int
    used: int

    @property
    def fragmentation(self) -> float:
        return 1 - self.used / self.high if self.high else 0.0


class _CuPyPool(Pool):
    """CuPy's pool without memory. Among free chunks of equal size it chooses one at random."""

    def __init__(self, seed: int) -> None:
        super().__init__("replay", reserve=False)
        self._lot = random.Random(seed)

    def _best_fit(self, size: int) -> Chunk | None:
        index = self._index
        at = bisect_left(index, (size,))
        if at < len(index):
            equal = range(at, bisect_left(index, (index[at][0] + 1,)))
            if len(equal) > 1:
                index.insert(at, index.pop(self._lot.choice(equal)))  # the first of them is taken
        return super()._best_fit(size)

    def take(self, size: int) -> Chunk:
        """A chunk of ``size`` bytes."""
        return self._best_fit(size) or self._grow(size, size)


def replay(self: Record, seeds: int = 8) -> Replay:
    """The bytes that CuPy's pool would have reserved for the same events, with ``seeds`` random choices of free chunks.

    This is a sample, not a bound: see :class:`Replay`. Blocks older than the track are allocated first, in the order of their
    addresses.

    Raises:
        ValueError: ``seeds`` is less than 1.
    """
    if seeds < 1:
        raise ValueError(f"replay: expected seeds of at least 1, found {seeds}")
    pools = [_run(self.log, seed) for seed in range(seeds)]
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
    """The events for a pool: first the blocks that are older than the log, then all others in order."""
    older = [chunk[(chunk["kind"] == Kind.OLDER) & (chunk["address"] > 0)] for chunk in log.chunks()]
    yield np.sort(np.concatenate([np.empty(0, RECORD), *older]), order="address")
    for chunk in log.chunks():
        yield chunk[np.isin(chunk["kind"], (Kind.MALLOC, Kind.FREE, Kind.RELEASE))]
