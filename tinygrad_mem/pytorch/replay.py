"""Runs the requests of a recording again through the model of PyTorch's allocator: as recorded, with other settings, or on
another card."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

from ..errors import ArgumentError, OutOfMemoryError
from ..memory.log import Kind
from ..memory.sizes import parse_bytes
from ..memory.track import Track
from .allocator import CachingAllocator
from .blocks import Home, SegmentBlock, State, insert
from .driver import SPACE, Driver
from .recording import EVENT, Action, RecordedBlock, RecordedSegment, Recording, with_gaps
from .settings import SMALL_SEGMENT, Settings, parse
from .snapshot import read

_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass
class Replay:
    """The result of running the requests of a recording through the allocator.

    Attributes:
        settings: the allocator's settings.
        allocations: the number of requests.
        as_recorded: the number of requests that got the recorded address.
        segments: the number of segments that the driver gave (for expandable segments: of mappings of pages).
        segments_as_recorded: the number of segments at the recorded moment with the recorded size.
        peak_allocated, peak_reserved: the most bytes in use, and reserved.
        peak_fragmentation: the most bytes that were reserved but unused when the reserved bytes were at their peak.
        retries: the number of times that the cache was released to ask the driver again.
        out_of_memory: numbers of the events whose request failed; -1 for the blocks of the beginning.
        assumed: the number of blocks of the beginning whose length the recording does not show for sure.
        timeline: (event, allocated, reserved) after each event that changed them; int64, shape (n, 3).
        fragmentation: (event, releasable, stuck, waiting) after the same events: bytes that are reserved but not allocated;
            int64, shape (n, 4). ``torch.cuda.empty_cache`` releases the first. The second are free, but a part of their
            segment or page is in use, or it belongs to a private pool. The third are freed, and another stream uses them.
    """

    settings: str
    allocations: int = 0
    as_recorded: int = 0
    segments: int = 0
    segments_as_recorded: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    peak_fragmentation: int = 0
    out_of_memory: list[int] = field(default_factory=list)
    assumed: int = 0
    retries: int = 0
    timeline: np.ndarray = field(default_factory=lambda: np.empty((0, 3), np.int64), repr=False)
    fragmentation: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int64), repr=False)


class _RecordedDriver(Driver):
    """A driver that gives the recorded addresses, if it is asked for the recorded segments."""

    def __init__(self, replay: Replay, rising: bool) -> None:
        super().__init__(rising=rising)
        self.due: list[tuple[Action, int, int]] = []  # what the driver gave before the next request, according to the recording
        self.refuses = False
        self._replay = replay

    def malloc(self, size: int, stream: int) -> int | None:
        if self.refuses:
            return None
        recorded = self._recorded(Action.SEGMENT_ALLOC, size)
        return super().malloc(size, stream) if recorded is None else recorded

    def map(self, address: int, size: int, stream: int) -> bool:
        if self.refuses:
            return False
        self._recorded(Action.SEGMENT_MAP, size)
        return super().map(address, size, stream)

    def reserve(self, page: int, stream: int) -> tuple[int, int]:
        address, size = super().reserve(page, stream)
        return next((start for action, start, _ in self.due if action == Action.SEGMENT_MAP), address), size

    def _recorded(self, action: Action, size: int) -> int | None:
        """The recorded address, if this was given at this moment of the recording."""
        self._replay.segments += 1
        found = next((due for due in self.due if due[0] == action and due[2] == size), None)
        if found is None:
            return None
        self.due.remove(found)
        self._replay.segments_as_recorded += 1
        return found[1]


class _Replayer:
    """A running replay.

    Attributes:
        address: recorded address of a block -> its address here.
    """

    def __init__(
        self, recording: Recording, settings: str | None, capacity: int | None, anew: bool = False, rising: bool = True
    ) -> None:
        self.recording = recording
        same = settings in (None, recording.settings) and not anew
        self.as_recorded = same and capacity is None
        self.result = Replay(recording.settings if settings is None else settings)
        recorded = _recorded(recording.settings)
        rising = rising if same else _rises(recording)
        self.driver = _RecordedDriver(self.result, rising) if self.as_recorded else Driver(capacity, rising)
        self.allocator = CachingAllocator(recorded if settings is None else settings, capacity, self.driver)
        older, self.result.assumed = recording.at_beginning(recorded)
        self.address: dict[int, int] = {}
        if same:
            self._restore(older)
        else:
            self._ask_again(older)
        self._moments: list[tuple[int, int, int, int, int]] = []

    def _restore(self, segments: list[RecordedSegment]) -> None:
        """Give the allocator the recorded state of the beginning."""
        spaces: dict[Home, list[RecordedSegment]] = {}
        for segment in segments:
            home = Home(segment.pool, segment.small, segment.stream)
            self.driver.taken += segment.size
            if segment.expandable:
                spaces.setdefault(home, []).append(segment)
                self.allocator.stats.mapped(segment.small, segment.size)
            else:
                self.allocator.stats.segment(segment.small, segment.size)
                self._restore_chain(home, segment.blocks, False)
        if self.driver.capacity is not None and self.driver.taken > self.driver.capacity:
            self.result.out_of_memory.append(-1)
        for home, pieces in spaces.items():  # each has one range of addresses, which may begin below the mapped pages
            start = self.recording.space_begins(pieces, self.allocator.settings)
            held = [block for piece in pieces for block in piece.blocks]
            self._restore_chain(home, with_gaps(held, start, start + SPACE, "unmapped"), True)

    def _restore_chain(self, home: Home, blocks: list[RecordedBlock], expandable: bool) -> None:
        before: SegmentBlock | None = None
        chain = []
        for held in blocks:
            block = SegmentBlock(held.address, held.size, home, State.FREE, expandable, blocks[0].address)
            insert(block, before, None)
            before = self.allocator.blocks[held.address] = block
            chain.append(block)
        for block, held in zip(chain, blocks, strict=True):
            self._settle(block, held.requested, held.state)

    def _settle(self, block: SegmentBlock, requested: int, state: str) -> None:
        if state == "inactive":
            self.allocator.make_free(block)
            if block.split and not block.expandable:
                self.allocator.stats.split_freed(block.home.small, 0, 0, block.size)
            return
        if state == "unmapped":
            self.allocator.make_unmapped(block)
            return
        block.state, block.requested = State.USED, requested
        self.allocator.stats.allocated(block.home.small, block.size, requested)
        self.address[block.address] = block.address
        if state == "active_awaiting_free":
            block.streams.add(-1)
            self.allocator.free(block.address)

    def _ask_again(self, segments: list[RecordedSegment]) -> None:
        """Allocate the blocks of the beginning, as if the program had started with these settings."""
        for segment in segments:
            for held in segment.blocks:
                if held.state != "inactive":
                    try:
                        self.address[held.address] = self.allocator.malloc(held.requested, segment.stream, segment.pool)
                    except OutOfMemoryError:
                        self.result.out_of_memory.append(-1)
                        continue
                    if held.state == "active_awaiting_free":
                        self.allocator.record_stream(self.address[held.address], -1)
                        self.allocator.free(self.address[held.address])

    def run(self) -> Replay:
        """Run all events, in order."""
        events = self.recording.events
        waits = self._waits()
        columns = (events[name].tolist() for name in ("action", "address", "size", "stream", "pool"))
        allocator, stats, note = self.allocator, self.allocator.stats, self._moments.append
        for number, (action, address, size, stream, pool) in enumerate(zip(*columns, strict=True)):
            if action == Action.ALLOC:
                self._malloc(number, address, size, stream, pool)
            elif action == Action.FREE_REQUESTED:
                self._free(address, number in waits)
            elif action == Action.FREE_COMPLETED:
                if not self._completed(address):
                    continue
            elif action == Action.OOM:
                self._refused(number, size, stream, pool)
            elif action <= Action.SEGMENT_UNMAP and self.as_recorded:
                self._follow_driver(Action(action), address, size)
            used, reserved, active = map(stats.current, ("allocated_bytes", "reserved_bytes", "active_bytes"))
            note((number, used, reserved, allocator.releasable, active - used))
        return self._finish()

    def _waits(self) -> set[int]:
        """Numbers of the events that free a block that another stream still uses: it becomes free at a later event."""
        events = self.recording.events
        freed = np.flatnonzero(events["action"] == Action.FREE_REQUESTED)
        after = np.append(events, np.zeros(1, events.dtype))[freed + 1]
        at_once = (after["action"] == Action.FREE_COMPLETED) & (after["address"] == events["address"][freed])
        return set(freed[~at_once].tolist())

    # --- one event --------------------------------------------------------------------------------------------------------

    def _malloc(self, number: int, recorded: int, size: int, stream: int, pool: int) -> None:
        self.result.allocations += 1
        try:
            address = self.allocator.malloc(size, stream, self.recording.pools[pool])
        except OutOfMemoryError:
            self.result.out_of_memory.append(number)
            return
        self.address[recorded] = address
        self.result.as_recorded += address == recorded

    def _free(self, recorded: int, waits: bool) -> None:
        address = self.address.get(recorded)
        if address is None:
            return  # its request failed here
        if waits:
            self.allocator.record_stream(address, -1)
        self.allocator.free(address)

    def _completed(self, recorded: int) -> bool:
        """End the wait of a freed block. True if it waited."""
        address = self.address.pop(recorded, None)
        block = self.allocator.blocks.get(address) if address is not None else None
        if block is None or block.state is not State.WAITING:
            return False
        self.allocator.completed(block.address)
        return True

    def _refused(self, number: int, size: int, stream: int, pool: int) -> None:
        """Repeat a request that failed in the recording."""
        if isinstance(self.driver, _RecordedDriver):
            self.driver.refuses = True
        try:
            # if it succeeds here, the program would have gone on; the recording never frees it
            self.allocator.free(self.allocator.malloc(size, stream, self.recording.pools[pool]))
        except OutOfMemoryError:
            self.result.out_of_memory.append(number)
        finally:
            if isinstance(self.driver, _RecordedDriver):
                self.driver.refuses = False

    def _follow_driver(self, action: Action, address: int, size: int) -> None:
        """Release the segments that the recording releases; note those that the next request gets."""
        assert isinstance(self.driver, _RecordedDriver)
        if action not in _GIVES:
            self.driver.due.append((action, address, size))
            return
        blocks = (b for b in self.allocator.blocks.values() if b.state is State.FREE)  # unmapped space may reach into others'
        block = next((b for b in blocks if b.address <= address < b.address + b.size), None)
        if block is None:
            return  # it has another address here
        if action == Action.SEGMENT_UNMAP:
            self.allocator.unmap(block)
        elif not block.split:
            self.allocator.give_back(block)

    # --- the result -------------------------------------------------------------------------------------------------------

    def _finish(self) -> Replay:
        result, stats = self.result, self.allocator.stats
        result.peak_allocated, result.peak_reserved = stats.peak("allocated_bytes"), stats.peak("reserved_bytes")
        result.retries = stats.num_alloc_retries
        moments = np.array(self._moments, np.int64).reshape(-1, 5)
        result.timeline = timeline = moments[:, :3]
        event, used, reserved, again, waiting = moments.T
        result.fragmentation = np.stack([event, again, reserved - used - waiting - again, waiting], 1)
        if len(timeline):
            result.peak_fragmentation = int((timeline[:, 2] - timeline[:, 1])[timeline[:, 2] == timeline[:, 2].max()].max())
        if not self.as_recorded:
            result.segments = stats.num_device_alloc
        return result


def _rises(recording: Recording) -> bool:
    """True if the driver gave large segments rising addresses in the recording. If none is there, they fall, as an H100's."""
    events = recording.events
    given = events["address"][(events["action"] == Action.SEGMENT_ALLOC) & (events["size"] > SMALL_SEGMENT)]
    steps = np.diff(given.astype(np.int64))
    return bool((steps > 0).sum() > (steps < 0).sum())


def _recorded(settings: str) -> Settings:
    try:
        return parse(settings)
    except ArgumentError as error:
        raise ArgumentError(
            f"replay: the program ran with settings {settings!r}, which are not modelled ({error}). So the blocks that were "
            "in use when the recording began cannot be placed"
        ) from None


def replay(
    source: Track | Recording | str | os.PathLike,
    settings: str | None = None,
    capacity: int | str | None = None,
    device: int | None = None,
    *,
    anew: bool = False,
) -> Replay:
    """Run the requests of a recording through the model of PyTorch's allocator: as recorded, with other settings, or on
    another card.

    Args:
        source: a snapshot's file, a recording of one, or a track of this library, whose requests PyTorch's allocator then
            serves.
        settings: as in ``PYTORCH_CUDA_ALLOC_CONF``; ``None`` for the recorded ones. With other settings, the blocks that
            existed when the recording began are allocated first, in the order of their addresses.
        capacity: what the driver has, in bytes or as text such as ``"24 GiB"``; ``None`` for what it gave in the recording, or
            else no limit.
        device: the number of the device, if the snapshot has several.
        anew: allocate the blocks of the beginning also with the recorded settings, to compare with other settings.

    Raises:
        FileFormatError: the file is not a snapshot.
        ValueError: PyTorch would refuse the settings; the recorded ones are not known; or there are several devices and none
            is named.
    """
    rising = not isinstance(source, Track)  # addresses beside recorded ones
    if isinstance(source, Track):
        source = of_track(source)
    elif not isinstance(source, Recording):
        source = read(source).of(device)
    room = None if capacity is None else parse_bytes(capacity)
    return _Replayer(source, settings, room, anew, rising).run()


def of_track(track: Track) -> Recording:
    """The requests of a track of this library, in the form of a recording. Older blocks come first."""
    log = track.log
    kind, address, requested = (log.column(name) for name in ("kind", "address", "requested"))
    older, asked, freed = kind == Kind.OLDER, kind == Kind.MALLOC, kind == Kind.FREE
    known = (address > 0) & (older | asked | freed)
    order = np.concatenate([np.flatnonzero(known & older), np.flatnonzero(known & ~older)])
    twice = np.repeat(order, 1 + freed[order])  # a free is requested, and then completed
    events = np.zeros(len(twice), EVENT)
    events["action"] = np.where(freed[twice], Action.FREE_REQUESTED, Action.ALLOC)
    events["action"][1:][twice[1:] == twice[:-1]] = Action.FREE_COMPLETED
    events["address"], events["size"] = address[twice], np.maximum(requested[twice], 1)
    if (streams := getattr(track, "streams", None)) is not None:  # of a prediction
        events["stream"][events["action"] == Action.ALLOC] = streams
    return Recording(0, events, [])
