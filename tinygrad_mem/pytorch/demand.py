"""The requests of a predicted program, served again: by the allocator with other settings, or on another card.

What a program asks for does not depend on the allocator, unless it looks at the memory itself (:attr:`.Prediction.looks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from ..errors import OutOfMemoryError
from ..memory.log import Kind, Log
from .allocator import CachingAllocator


@dataclass
class Served:
    """Requests that were served."""

    peak: int  # bytes, as of a prediction
    peak_reserved: int
    fits: bool  # none was refused; after the first that was, none is served


class Demand:
    """The requests of a program, in order.

    Attributes:
        blocks: the number of the block that begins or ends, for each event.
        sizes: bytes that are asked for; 0: the block ends.
        streams: of each request, the number of its stream; ``None``: all are in one.
    """

    def __init__(
        self, blocks: np.ndarray, sizes: np.ndarray, on_cpu: bool = False, streams: Sequence[int] | None = None
    ) -> None:
        self.blocks, self.sizes, self._on_cpu, self.streams = blocks, sizes, on_cpu, streams

    @classmethod
    def of(cls, log: Log, streams: Sequence[int] | None = None) -> Demand:
        """The requests in a log."""
        kinds = log.column("kind")
        which = (kinds == Kind.MALLOC) | (kinds == Kind.FREE)
        begins = kinds[which] == Kind.MALLOC
        addresses = log.column("address")[which].tolist()
        number = np.cumsum(begins)
        live: dict[int, int] = {}
        blocks = np.empty(len(begins), np.int64)
        for place, (address, new) in enumerate(zip(addresses, begins.tolist(), strict=True)):
            if new:
                live[address] = number[place]
            blocks[place] = live[address]
        return cls(blocks, log.column("requested")[which].astype(np.int64) * begins, log.device == "cpu", streams)

    def alike(self, other: Demand) -> bool:
        """True if the others are as many, and end in the same order."""
        return np.array_equal(self.blocks, other.blocks)

    def at(self, batch: int, other: Demand, here: int, there: int) -> Demand:
        """The requests of another batch, on the lines through those of ``here`` (these) and of ``there``, all alike."""
        grown = (other.sizes - self.sizes) * (batch - here) // (there - here)
        return Demand(self.blocks, np.where(self.sizes > 0, np.maximum(self.sizes + grown, 1), 0), self._on_cpu, self.streams)

    def served(self, settings: str, capacity: int | None) -> Served:
        """Serve them on a card with ``capacity`` bytes; ``None``: it never refuses."""
        if self._on_cpu:
            peak = self._most_asked()
            return Served(peak, 0, capacity is None or peak <= capacity)
        allocator = CachingAllocator(settings, capacity)
        addresses: dict[int, int] = {}
        streams = repeat(0) if self.streams is None else iter(self.streams)
        used = peak = 0
        fits = True
        try:
            for block, size in zip(self.blocks.tolist(), self.sizes.tolist(), strict=True):
                if size:
                    address = addresses[block] = allocator.malloc(size, next(streams))
                    used += allocator.blocks[address].size
                    peak = max(peak, used)
                else:
                    address = addresses.pop(block)
                    used -= allocator.blocks[address].size
                    allocator.free(address)
        except OutOfMemoryError:
            fits = False
        return Served(peak, allocator.driver.peak, fits)

    def _most_asked(self) -> int:
        """The most bytes that are asked for and not ended, at once."""
        size_of = np.zeros(self.blocks.max(initial=0) + 1, np.int64)
        begins = self.sizes > 0
        size_of[self.blocks[begins]] = self.sizes[begins]
        return int(np.cumsum(np.where(begins, self.sizes, -size_of[self.blocks])).max(initial=0))
