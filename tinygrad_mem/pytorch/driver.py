"""A model of the CUDA driver as PyTorch's allocator uses it: it gives segments, or pages for a range of addresses."""

from __future__ import annotations

import random
from bisect import bisect

from ..memory.sizes import parse_bytes

_FIRST = 0x7F0000000000  # addresses on a GPU look like this
_STEP, _WHOLE = 2 << 20, 32 << 20
SPACE = 1 << 40  # bytes of addresses for an expandable segment on a card of unknown size


class Driver:
    """A driver that gives addresses as an H100's did: in the lowest gap that is large enough, else below all others, from a
    multiple of 32 MiB on. What a segment leaves of these 32 MiB is a gap, and so is a freed segment. So in a new process the
    addresses of large segments fall, and small segments lie between them.

    Args:
        capacity: bytes that it has, or ``"24 GiB"``; ``None`` for no limit.
        rising: it gives addresses in rising order.

    Attributes:
        taken: bytes that are in use now; ``peak``: the most at once.
    """

    def __init__(self, capacity: int | str | None = None, rising: bool = False) -> None:
        self.capacity = parse_bytes(capacity) if isinstance(capacity, str) else capacity
        self.taken, self.peak, self._rising = 0, 0, rising
        self._next = _FIRST
        self._gaps: list[tuple[int, int]] = []  # begin and end, in order

    @property
    def available(self) -> int:
        """Bytes that are free; 0 if there is no limit."""
        return 0 if self.capacity is None else self.capacity - self.taken

    def malloc(self, size: int, stream: int) -> int | None:
        """The address of a new segment (``cudaMalloc``); ``None`` if there is no memory for it."""
        if not self.map(self._next, size, stream):
            return None
        return self._addresses(size)

    def free(self, address: int, size: int, stream: int) -> None:
        """Free a segment (``cudaFree``)."""
        self.unmap(address, size, stream)
        if not self._rising:
            self._leave(address, address + _up(size, _STEP))

    def reserve(self, page: int, stream: int) -> tuple[int, int]:
        """Reserve addresses for an expandable segment (``cuMemAddressReserve``), without memory: 1 1/8 of the card, as PyTorch
        asks."""
        size = SPACE if self.capacity is None else self.capacity + self.capacity // 8
        size = _up(size, page)
        return self._addresses(size), size

    def map(self, address: int, size: int, stream: int) -> bool:
        """Map memory to an address (``cuMemMap``). False if there is none."""
        if self.capacity is not None and self.taken + size > self.capacity:
            return False
        self.taken += size
        self.peak = max(self.peak, self.taken)
        return True

    def unmap(self, address: int, size: int, stream: int) -> None:
        """Unmap the memory at an address (``cuMemUnmap``)."""
        self.taken -= size

    def _addresses(self, size: int) -> int:
        size = _up(size, _STEP)
        if self._rising:
            self._next += size
            return self._next - size
        for place, (begin, end) in enumerate(self._gaps):
            if end - begin >= size:
                self._gaps[place : place + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        whole = _up(size, _WHOLE)
        self._next -= whole
        if whole > size:
            self._leave(self._next + size, self._next + whole)
        return self._next

    def _leave(self, begin: int, end: int) -> None:
        """A gap, which is one with those beside it."""
        gaps, place = self._gaps, bisect(self._gaps, (begin, end))
        if place < len(gaps) and gaps[place][0] == end:
            end = gaps.pop(place)[1]
        if place and gaps[place - 1][1] == begin:
            begin, place = gaps.pop(place - 1)[0], place - 1
        gaps.insert(place, (begin, end))


class ShuffledDriver(Driver):
    """A driver whose addresses are in no order, as after other programs: ``seed`` decides it. It gives no address twice."""

    def __init__(self, seed: int) -> None:
        super().__init__(rising=True)
        self._pick = random.Random(seed)

    def _addresses(self, size: int) -> int:
        return (self._pick.getrandbits(32) << 64) + super()._addresses(size)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
