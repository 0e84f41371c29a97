"""Random programs for an allocator, with the answers that PyTorch's own gave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.pytorch import CachingAllocator
from tinygrad_mem.pytorch.driver import Driver
from tinygrad_mem.pytorch.settings import parse

RECORDING = Path(__file__).parent / "answers-2.6.0.json.gz"
MIB = 1 << 20
_COUNTED = (
    "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes requested_bytes"
)
_PARTS = ("current", "peak", "allocated", "freed")
COUNTERS = [
    *[f"{name}.{kind}.{part}" for kind in ("all", "small_pool", "large_pool") for name in _COUNTED.split() for part in _PARTS],
    *[f"oversize_segments.{part}" for part in _PARTS],
    *["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"],
]
"""The counters in the order in which ``calls.cpp`` prints them."""

Call = tuple[Any, ...]  # as calls.cpp takes it
Answer = tuple[Any, list[int]]

_SETTINGS = (
    "",
    "max_split_size_mb:24",
    "max_split_size_mb:64,max_non_split_rounding_mb:24",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,8:4,>:8]",
    "garbage_collection_threshold:0.3",
    "garbage_collection_threshold:0.8,max_split_size_mb:24",
    "expandable_segments:True",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,garbage_collection_threshold:0.5",
)


@dataclass
class Program:
    """Calls of an allocator under some settings.

    Attributes:
        capacity: bytes of the driver; 0: as many as are asked for.
        share: what the process may have of them; 0: nothing is said.
        calls: see ``calls.cpp``.
        results: an address, "oom", or 0 for calls that return nothing.
        counters: the numbers of :data:`COUNTERS` after the last call.
    """

    settings: str
    capacity: int
    share: float
    calls: list[Call] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    counters: list[int] = field(default_factory=list)
    chance: Random | None = None

    @classmethod
    def random(cls, chance: Random) -> Program:
        """A program without calls: they depend on the addresses."""
        settings = chance.choice(_SETTINGS)
        capacity = chance.choice([0, 120, 200, 400, 1000]) * MIB
        if "garbage" in settings or "expandable" in settings:
            capacity = capacity or 300 * MIB
        share = chance.choice([0.7, 1.0]) if "garbage" in settings else 0.0
        return cls(settings, capacity, share, chance=chance)

    def fill(self, answer: Callable[[Call], Answer], length: int = 150) -> None:
        """Choose calls at random, and note the answers."""
        assert self.chance is not None
        chance, alive = self.chance, []
        often = [chance.choice([chance.randint(1, 2 * MIB), chance.randint(1, 80 * MIB)]) for _ in range(6)]
        edges = [1, 512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 24 * MIB]
        for _ in range(length):
            kind = chance.choices("mpfrse", [10, 2, 9, 2, 1, 0.5])[0]
            if kind in "fr" and not alive:
                kind = "m"
            call: Call = (kind,)
            if kind in "mp":
                size = chance.choice(
                    [chance.randint(1, 3000), chance.randint(1, 40 * MIB), chance.choice(often), chance.choice(edges)]
                )
                call = (kind, size, chance.choice([0, 0, 1]), *([chance.choice([1, 2])] if kind == "p" else []))
            elif kind in "fr":
                place = chance.randrange(len(alive))
                call = (kind, alive[place], *([2] if kind == "r" else []))
                if kind == "f":
                    del alive[place]
            result, self.counters = answer(call)
            self.calls.append(call)
            self.results.append(result)
            if kind in "mp" and result != "oom":
                alive.append(result)

    def as_json(self) -> list[Any]:
        return [self.settings, self.capacity, self.share, self.calls, self.results, self.counters]

    @classmethod
    def from_json(cls, said: list[Any]) -> Program:
        return cls(*said)


class Ours:
    """Our model, called like ``calls.cpp``."""

    def __init__(self, program: Program) -> None:
        settings = dataclasses.replace(parse(program.settings), per_process_memory_fraction=program.share or None)
        capacity = program.capacity or None
        self.allocator = CachingAllocator(settings, capacity, Driver(capacity, rising=True))  # as the driver below its C++
        self._done: list[int] = []  # blocks whose streams are done: PyTorch finds out when it allocates next

    def __call__(self, call: Call) -> Any:
        kind, *numbers = call
        if kind == "m":
            for address in self._done:
                self.allocator.completed(address)
            self._done = []
        if kind in "mp":
            size, stream, *pool = numbers
            try:
                return self.allocator.malloc(size, stream, (0, *pool) if pool else (0, 0))
            except OutOfMemoryError:
                return "oom"
        if kind == "f":
            self.allocator.free(*numbers)
        elif kind == "r":
            self.allocator.record_stream(*numbers)
        elif kind == "s":
            self._done = [block.address for block in self.allocator._waiting]
        else:
            self.allocator.empty_cache()
            self._done = []
        return 0


def differs(program: Program) -> str:
    """The first call that our model answers otherwise, or the counters that differ at the end; "" where all is equal."""
    ours = Ours(program)
    for number, (call, theirs) in enumerate(zip(program.calls, program.results, strict=True)):
        mine = ours(tuple(call))
        if mine != theirs:
            return f"call {number}, {call}: {mine}, and PyTorch's {theirs}"
    stats = ours.allocator.memory_stats()
    wrong = [
        f"{name}: {stats[name]}, and PyTorch's {n}"
        for name, n in zip(COUNTERS, program.counters, strict=True)
        if stats[name] != n
    ]
    return "; ".join(wrong)
