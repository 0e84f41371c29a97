"""A model of the CUDA driver as PyTorch's allocator uses it: it gives segments, or pages for a range of addresses."""

from __future__ import annotations

from ..memory.sizes import parse_bytes

_FIRST = 0x7F0000000000  # addresses on a GPU look like this
_STEP = 2 << 20
SPACE = 1 << 40  # bytes of addresses for an expandable segment on a card of unknown size


class Driver:
    """A driver that gives addresses in rising order. A real one may choose others: an H100's gave two thirds of 3,300 segments
    a lower address than the one before.

    Args:
        capacity: bytes that it has, or ``"24 GiB"``; ``None`` for no limit.
        falling: it gives addresses in falling order.

    Attributes:
        taken: bytes that are in use now; ``peak``: the most at once.
    """

    def __init__(self, capacity: int | str | None = None, falling: bool = False) -> None:
        self.capacity = parse_bytes(capacity) if isinstance(capacity, str) else capacity
        self.taken, self.peak, self._falling = 0, 0, falling
        self._next = _FIRST

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

    def reserve(self, page: int, stream: int) -> tuple[int, int]:
        """Reserve addresses for an expandable segment (``cuMemAddressReserve``), without memory: 1 1/8 of the card, as PyTorch
        asks."""
        size = SPACE if self.capacity is None else self.capacity + self.capacity // 8
        size = -(-size // page) * page
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
        whole = -(-size // _STEP) * _STEP
        self._next += -whole if self._falling else whole
        return self._next if self._falling else self._next - whole
