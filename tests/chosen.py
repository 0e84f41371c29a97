"""Whether CuPy's pool did what ours does, where it chose otherwise among equal free chunks."""

from __future__ import annotations

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

    def _pop(self, size: int) -> Chunk | None:
        chunk = self._free_chunks.get(self._next_address)
        if chunk is None or chunk.size != size:
            return super()._pop(size)
        self._remove(chunk)
        return chunk


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
