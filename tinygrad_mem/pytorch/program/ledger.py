"""The blocks that a program asks for: each gets an address from the model of the allocator, and its events go into a log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from time import perf_counter_ns
from typing import NamedTuple

from ...errors import OutOfMemoryError
from ...memory.log import Kind, Log
from ...memory.sizes import bytes_text
from ..allocator import CachingAllocator
from ..driver import Driver, ShuffledDriver
from ..settings import SMALL, of_environment

_ROLE = 9  # the column of an event
_ORDERS = 3  # of addresses at random


class Place(NamedTuple):
    """A place in the program; :class:`~tinygrad_mem.memory.log.Event` explains the fields."""

    phase: str = "user"
    module: str = ""
    op: str = ""
    line: str = ""


class HeldBlock:
    """A block in use.

    Attributes:
        address, size: in bytes; ``size`` is what was asked for.
        malloc: the event of its allocation, a list whose role can still be changed.
        roles: what it is held as.
    """

    __slots__ = ("__weakref__", "address", "malloc", "roles", "size")

    def __init__(self, address: int, size: int, malloc: list) -> None:
        self.address, self.size, self.malloc = address, size, malloc
        self.roles: set[str] = set()

    @property
    def role(self) -> str:
        """The category that it was allocated with, or that was found later."""
        return self.malloc[_ROLE]


class Ledger:
    """The events of one device while a program runs.

    Args:
        device: ``"cuda:0"`` or ``"cpu"``.
        settings: of PyTorch's CUDA allocator; ``""``: those of the environment when it is asked for the first time, as PyTorch
            reads them.
        capacity: bytes of the card; ``None``: it never refuses.

    Attributes:
        live: the blocks in use, by address.
        stream: the number of the current stream; 0 is the default one.
        streams: of each request, the number of the stream that is current then.
        graph_streams: those in which the graph was made that no backward has run yet.
        mixed: a graph was made in several.
        looks: the program has looked at the memory of the card, or changed what the allocator has.
    """

    def __init__(self, device: str, settings: str = "", capacity: int | None = None) -> None:
        self.device, self.settings, self._capacity = device, settings, capacity
        self._given = settings
        self._allocator = self._made() if settings and device != "cpu" else None
        self.live: dict[int, HeldBlock] = {}
        self.looks, self.stream = False, 0
        self.streams: list[int] = []
        self.graph_streams: set[int] = set()
        self.mixed = False
        self._events: list[list] = []
        self._names: dict[int, str] = {}  # by the id of a block's first event: whose gradient or state it has been since
        self._began, self._next = perf_counter_ns(), 1 << 12

    @property
    def allocator(self) -> CachingAllocator | None:
        """The model of PyTorch's CUDA allocator; ``None`` on the CPU, where each request goes to the machine."""
        if self._allocator is None and self.device != "cpu":
            self.settings = of_environment()
            self._allocator = self._made()
        return self._allocator

    def _made(self) -> CachingAllocator:
        return CachingAllocator(self.settings, self._capacity, _Driver(self._capacity, self._segment))

    def malloc(self, size: int, place: Place, role: str = "TEMPORARY", note: str = "") -> HeldBlock:
        """A block of ``size`` bytes."""
        if self.allocator is None:
            address, rounded = self._next, size
            self._next += -(-size // 64) * 64
        else:
            try:
                address = self.allocator.malloc(size, self.stream)
            except OutOfMemoryError as error:
                left = bytes_text(self.allocator.driver.available)
                self._write(Kind.MARK, place, note=f"out of memory: {bytes_text(size)} asked, the driver had {left} left")
                raise error
            rounded = self.allocator.blocks[address].size
            self.streams.append(self.stream)
        held = HeldBlock(address, size, self._write(Kind.MALLOC, place, address, size, rounded, role, note))
        self.live[address] = held
        return held

    def free(self, held: HeldBlock, place: Place) -> None:
        """The end of a block."""
        rounded = held.malloc[4]
        if self.live.pop(held.address, None) is None:
            return
        self._write(Kind.FREE, place, held.address, 0, rounded)
        if self.allocator is not None:
            self.allocator.free(held.address)

    def become(self, held: HeldBlock, role: str, name: str = "") -> None:
        """Record that the block was ``role`` from its allocation on, which is found out only now. ``name``: its path."""
        if role in held.roles:
            return
        first = held.malloc[_ROLE] in ("TEMPORARY", "INPUT")
        if first:
            held.malloc[_ROLE] = role
        else:
            self._write(Kind.ENTER, Place(), held.address, role=role)
        held.roles.add(role)
        if name and role in ("PARAMETER", "BUFFER"):
            self._write(Kind.NAME, Place(), held.address, note=name)
        elif name and first:
            self._names[id(held.malloc)] = name
        elif name:
            self._write(Kind.ENTER, Place(), held.address, role=role, note=name)

    def was(self, held: HeldBlock, role: str) -> None:
        """Record that the block was ``role`` from its allocation on, whatever category it was allocated with."""
        held.malloc[_ROLE] = role

    def enter(self, held: HeldBlock, place: Place, role: str, note: str) -> None:
        """Record a new holder of the block."""
        self._write(Kind.ENTER, place, held.address, role=role, note=note)

    def leave(self, held: HeldBlock, place: Place, role: str, note: str) -> None:
        """Record that a holder of the block has ended."""
        if held.address in self.live and self.live[held.address] is held:
            self._write(Kind.LEAVE, place, held.address, role=role, note=note)

    def restart(self) -> None:
        """Drop all events so far: they were not the program's."""
        self.__init__(self.device, self._given, self._capacity)

    @property
    def peak_reserved(self) -> int:
        """The most bytes that the allocator had from the driver."""
        return 0 if self._allocator is None else self._allocator.driver.peak

    def changed_by_addresses(self) -> int:
        """Bytes by which the peak would differ at most in some other orders of the driver's addresses.

        Of equal free blocks the one with the lowest address is used.
        """
        if self._allocator is None or all(event[3] <= SMALL for event in self._events):
            return 0  # a small block is as large as its request, wherever it lies
        signs = {Kind.MALLOC: 1, Kind.FREE: -1}
        peak = max(accumulate(signs.get(Kind(event[0]), 0) * event[4] for event in self._events))
        drivers = [Driver(rising=True), *map(ShuffledDriver, range(_ORDERS))]
        return max(abs(self._peak_with(driver) - peak) for driver in drivers)

    def _peak_with(self, driver: Driver) -> int:
        allocator, blocks, streams = CachingAllocator(self.settings, driver=driver), {}, iter(self.streams)
        for kind, _, address, requested, *_ in self._events:
            if kind == Kind.MALLOC:
                blocks[address] = allocator.malloc(requested, next(streams))
            elif kind == Kind.FREE:
                allocator.free(blocks.pop(address))
            elif kind == Kind.RELEASE:
                allocator.empty_cache()
        return allocator.memory_stats()["allocated_bytes.all.peak"]

    def above_first(self, count: int) -> int:
        """Bytes by which the peak is above that of the first ``count`` events."""
        signs = {Kind.MALLOC: 1, Kind.FREE: -1}
        used = list(accumulate((signs.get(Kind(event[0]), 0) * event[4] for event in self._events), initial=0))
        return max(used) - max(used[: count + 1])

    @property
    def count(self) -> int:
        """The number of events so far."""
        return len(self._events)

    def log(self) -> Log:
        """All events so far. The ledger keeps none of them: each is an object that Python's garbage collector visits."""
        log, events, self._events = Log(self.device), self._events, []
        for event in events:
            log.write(tuple(event))
            name = self._names.get(id(event))
            if name:
                log.write((int(Kind.ENTER), *event[1:3], 0, 0, *Place(), event[_ROLE], name, 0))
            log.settle()
        return log

    def _segment(self, size: int, address: int) -> None:
        self._write(Kind.RESERVE if size > 0 else Kind.RELEASE, Place(), address, 0, abs(size))

    def _write(
        self, kind: Kind, place: Place, address: int = 0, requested: int = 0, rounded: int = 0, role: str = "", note: str = ""
    ) -> list:
        event = [int(kind), perf_counter_ns() - self._began, address, requested, rounded, *place, role, note, 0]
        self._events.append(event)
        return event


class _Driver(Driver):
    """A driver that reports what it gives and takes back."""

    def __init__(self, capacity: int | None, tell: Callable[[int, int], None]) -> None:
        super().__init__(capacity)
        self._report = tell

    def map(self, address: int, size: int, stream: int) -> bool:
        given = super().map(address, size, stream)
        if given:
            self._report(size, address)
        return given

    def unmap(self, address: int, size: int, stream: int) -> None:
        super().unmap(address, size, stream)
        self._report(-size, address)
