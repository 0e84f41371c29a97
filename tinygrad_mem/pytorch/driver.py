"""A model of the CUDA driver as PyTorch's allocator uses it: it gives segments, or pages for a range of addresses."""

from __future__ import annotations

_FIRST = 0x7F0000000000  # addresses on a GPU look like this
_STEP = 2 << 20
SPACE = 1 << 40  # bytes of addresses for an expandable segment on a card of unknown size


class Driver:
    """A driver that gives addresses in rising order. A real one may choose others.

    Args:
        capacity: bytes that it has; ``None`` for no limit.

    Attributes:
        taken: bytes that are in use now; ``peak``: the most at once.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity, self.taken, self.peak = capacity, 0, 0
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
        address = self._next
        self._next += -(-size // _STEP) * _STEP
        return address
