"""Whether CuPy's pool did what ours does, where it chose otherwise among equal free chunks."""

from __future__ import annotations

from bisect import bisect_left

from tinygrad_mem import memory
from tinygrad_mem.devices.chunks import Chunk
from tinygrad_mem.devices.pool import Pool
from tinygrad_mem.memory.log import Kind


class _Following(Pool):
    """Our pool, over no memory, at CuPy's addresses: of equal free chunks it takes the one that CuPy took."""

    def __init__(self) -> None:
        super().__init__("followed", reserve=False)

    def follow(self, address: int, size: int) -> Chunk:
        self._next_address = address  # where a new segment begins, if this is the first of one
        return self._best_fit(size) or self._grow(size, size)

    def _best_fit(self, size: int) -> Chunk | None:
        for at, (found, address, _) in enumerate(self._index):
            if address == self._next_address:
                self._index.insert(bisect_left(self._index, (found,)), self._index.pop(at))
                break
        return super()._best_fit(size)


def reserved_as_chosen(track: memory.Track) -> int:
    """Most bytes that the pool of a GPU had reserved, if it was empty in the beginning: by our rules, with CuPy's choices.

    Raises:
        AssertionError: CuPy took a block that our rules could not have taken, whatever the choice.
    """
    pool, live = _Following(), {}
    for number, event in enumerate(track.log):
        if event.kind == Kind.MALLOC:
            chunk = live[event.address] = pool.follow(event.address, event.rounded)
            assert chunk.address == event.address, f"event {number}: no choice puts {event.rounded} bytes there"
        elif event.kind == Kind.FREE:
            pool._release(live.pop(event.address))
        elif event.kind == Kind.RELEASE:
            pool.free_all_blocks()
    return pool.peak_total
