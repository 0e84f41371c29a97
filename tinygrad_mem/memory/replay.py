"""The requests of a track in another pool: whether they fit into a limit, and the bytes that CuPy's pool would have reserved.

Used bytes do not depend on placement: each block uses its size rounded up to 512, in CuPy as here. Reserved bytes do depend on
it. Among free chunks of equal size our pool takes the lowest address; CuPy takes the chunk whose Python object has the
lowest address, which cannot be predicted. Nothing else differs: with CuPy's choices our pool reserves the same bytes. So
the events are replayed with several random choices, and the result is the least and the most that they reserved.

Source: CuPy 14.2, ``cupy/cuda/memory.pyx`` (``SingleDeviceMemoryPool``).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from ..devices.pool import Chunk, Pool
from ..errors import OutOfMemoryError
from .log import RECORD, Kind, Log
from .record import Record
from .sizes import parse_bytes
from .timeline import When


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


class _Again(Pool):
    """A pool without memory, for the requests of a log. First it serves the blocks older than the log, by address."""

    def __init__(self, log: Log) -> None:
        super().__init__("replay", reserve=False)
        self.log = log
        self._live: dict[int, Chunk] = {}  # by the address in the log
        older = [chunk[(chunk["kind"] == Kind.OLDER) & (chunk["address"] > 0)] for chunk in log.chunks()]
        self._serve(np.sort(np.concatenate([np.empty(0, RECORD), *older]), order="address"))

    def serve(self, first: int, last: int) -> None:
        """Serve the log's events from ``first`` on, before ``last``."""
        start = 0
        for chunk in self.log.chunks():
            part = chunk[max(first - start, 0) : max(last - start, 0)]
            start += len(chunk)
            self._serve(part[np.isin(part["kind"], (Kind.MALLOC, Kind.FREE, Kind.RELEASE))])

    def _serve(self, records: np.ndarray) -> None:
        for kind, address, size in zip(*(records[name].tolist() for name in ("kind", "address", "rounded")), strict=True):
            if kind == Kind.RELEASE:
                self.free_all_blocks()
            elif kind != Kind.FREE:
                self._live[address] = self._best_fit(size) or self._grow(size, size)
            elif address in self._live:
                self._release(self._live.pop(address))


class _CuPyPool(_Again):
    """CuPy's pool. Among free chunks of equal size it chooses one at random."""

    def __init__(self, log: Log, seed: int) -> None:
        self._lot = random.Random(seed)
        super().__init__(log)

    def _best_fit(self, size: int) -> Chunk | None:
        index = self._index
        at = bisect_left(index, (size,))
        if at < len(index):
            equal = range(at, bisect_left(index, (index[at][0] + 1,)))
            if len(equal) > 1:
                index.insert(at, index.pop(self._lot.choice(equal)))  # the first of them is taken
        return super()._best_fit(size)


def fits(self: Record, size: int | str, since: When = 0) -> bool:
    """True if the same requests, from ``since`` on, fit into a pool that reserves at most ``size``, as under ``memory.limit``.

    ``size`` must be more than the peak in use if the free bytes are in pieces that are too small, and may be less than what the
    pool reserved: it gives unused segments back before it refuses.

    Raises:
        ValueError, TypeError: ``size`` is not a size.
    """
    room, start, pool = parse_bytes(size), self._event(since), _Again(self.log)
    pool.serve(0, start)
    pool.free_all_blocks()
    if pool.total_bytes() > room:
        return False
    pool.set_limit(room)
    try:
        pool.serve(start, len(self.log))
    except OutOfMemoryError:
        return False
    return True


def replay(self: Record, seeds: int = 8) -> Replay:
    """The bytes that CuPy's pool would have reserved for the same events, with ``seeds`` random choices of free chunks.

    This is a sample, not a bound: see :class:`Replay`. Blocks older than the track are allocated first, in the order of their
    addresses.

    Raises:
        ValueError: ``seeds`` is less than 1.
    """
    if seeds < 1:
        raise ValueError(f"replay: expected seeds of at least 1, found {seeds}")
    pools = [_CuPyPool(self.log, seed) for seed in range(seeds)]
    for pool in pools:
        pool.serve(0, len(self.log))
    reserved = [pool.peak_total for pool in pools]
    return Replay(min(reserved), max(reserved), pools[0].peak_used)
