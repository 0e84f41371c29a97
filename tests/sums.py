"""The bytes of a track beside the pool's own count, at every malloc and free, and whether its categories add up to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from tinygrad_mem import memory, scope
from tinygrad_mem.devices import Pool
from tinygrad_mem.memory import Category
from tinygrad_mem.memory.log import Kind


def check_sums(track: memory.Track, used: list[int]) -> None:
    """``used`` is the pool's own count at each malloc and free of the track."""
    timeline = track.timeline()
    kinds = track.log.column("kind")[timeline.event]
    changes = timeline.used[(kinds == Kind.MALLOC) | (kinds == Kind.FREE)]
    assert changes.tolist() == used, "used bytes at every malloc and free"
    bytes_of = [timeline.bytes(category) for category in Category]
    assert (np.sum(bytes_of, axis=0) == timeline.used).all(), "the categories add up at every event"
    assert all((each >= 0).all() for each in bytes_of), "no category is ever negative"


@contextmanager
def counted(pool: Any) -> Iterator[list[int]]:
    """What ``pool`` says of its used bytes at each malloc and free inside: read from the pool, and not from events."""
    witness = _Witness(pool)
    scope.listen(witness)
    try:
        yield witness.used
    finally:
        scope.unlisten(witness)


class _Witness(scope.Listener):
    def __init__(self, pool: Any) -> None:
        self.pool = self.only = pool
        self.used: list[int] = []
        self._seen = self._waiting = 0  # of what is pending: how many, and their bytes

    def _now(self) -> int:
        """As ``used_bytes()``, which would take the lock of a pool of ours."""
        if not isinstance(self.pool, Pool):
            return self.pool.used_bytes()
        pending = self.pool._pending
        if len(pending) < self._seen:
            self._seen = self._waiting = 0
        self._waiting += sum(chunk.size for chunk in islice(pending, self._seen, None))
        self._seen = len(pending)
        return self.pool._used - self._waiting

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.used.append(self._now())

    def free(self, device: str, address: int, rounded: int) -> None:
        self.used.append(self._now() - rounded)
