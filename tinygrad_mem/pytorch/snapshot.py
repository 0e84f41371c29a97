"""A reader of PyTorch's memory snapshots, the files of ``torch.cuda.memory._dump_snapshot``: one recording for each device.

The format has changed with PyTorch's versions: blocks with and without addresses, requested sizes and stacks; memory pools;
settings. What a file does not say is left out, never made up.

Source: PyTorch 2.0 to 2.13, ``torch/cuda/memory.py`` and ``torch/csrc/cuda/Module.cpp``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..errors import ArgumentError, FileFormatError
from ..files import unpacked
from ..memory.export.snapshot import OURS
from .recording import EVENT, Action, RecordedBlock, RecordedSegment, Recording
from .unpickle import Reader, StackList, Stacks

_ACTIONS = {action.name.lower(): action for action in Action}
_STATES = ("active_allocated", "active_awaiting_free", "active_pending_free", "inactive")
_EVENTS = 1 << 14  # of one device: the room at first
_TOP = (1 << 64) - 1


class Snapshot:
    """A snapshot, read.

    Attributes:
        recordings: one for each device that has segments or events, by its number.
        stacks: what the events' and blocks' stack numbers mean.
        track: of a file that a track of ours wrote, the track's own file, as texts.
    """

    def __init__(self, recordings: dict[int, Recording], stacks: Stacks, track: list[Any] | None = None) -> None:
        self.recordings, self.stacks, self.track = recordings, stacks, track

    def of(self, device: int | None = None) -> Recording:
        """The recording of a device; ``None``: of the only one that has events, or the only one.

        Raises:
            ValueError: there is no such device, or several that have events.
        """
        if device is None:
            used = [recording for recording in self.recordings.values() if len(recording.events)]
            used = used or ([*self.recordings.values()] if len(self.recordings) == 1 else [])
            if len(used) == 1:
                return used[0]
            found = f"{len(used)} have events: {', '.join(str(each.device) for each in used)}" if used else "none has events"
            raise ArgumentError(f"snapshot: choose a device: of {len(self.recordings)} devices {found}")
        if device not in self.recordings:
            raise ArgumentError(f"snapshot: it has no device {device}; it has {', '.join(map(str, self.recordings)) or 'none'}")
        return self.recordings[device]


class _Events:
    """Collects the events of one device."""

    def __init__(self, what: str) -> None:
        self.what, self.count, self.rows = what, 0, np.zeros(_EVENTS, EVENT)
        self.pools: dict[tuple[int, int], int] = {(0, 0): 0}

    def take(self, events: list[Any]) -> None:
        """Append events, dicts of the snapshot."""
        try:
            rows = [self._row(event) for event in events]
            new = np.array(rows, EVENT)
        except (TypeError, KeyError, AttributeError, OverflowError, ValueError) as error:
            raise FileFormatError(f"{self.what}: an event after number {self.count:,} is damaged: {error!r:.80}") from None
        if self.count + len(new) > len(self.rows):  # grows by an eighth at a time
            self.rows.resize(max(len(self.rows) * 5 // 4, self.count + len(new)), refcheck=False)
        self.rows[self.count : self.count + len(new)] = new
        self.count += len(new)

    def of_interest(self, ours: bool) -> np.ndarray:
        """The events; of a file of ours without those of segments."""
        rows = self.rows[: self.count]
        return rows[rows["action"] <= Action.FREE_COMPLETED] if ours else rows

    def _row(self, event: dict[str, Any]) -> tuple:
        action = _ACTIONS.get(event["action"], Action.OTHER)
        address = event.get("device_free" if action is Action.OOM else "addr", 0)
        pool = self.pools.setdefault(tuple(event.get("pool_id", (0, 0))), len(self.pools))
        frames, stream = event.get("frames"), event.get("stream", 0) & _TOP
        stack = frames.stack if type(frames) is StackList else 0
        return int(action), address, event.get("size", 0), stream, pool, stack, event.get("time_us", 0)


def read(path: str | os.PathLike, progress: Callable[[int], object] = lambda count: None) -> Snapshot:
    """Read a snapshot, with or without gzip.

    Args:
        progress: called with the number of bytes that were read since the last call.

    Raises:
        FileFormatError: the file is something else, damaged, incomplete, or would run code.
    """
    name = Path(path).name
    with open(path, "rb") as file:
        return unpacked(file, name, lambda plain: _read_file(plain, name, progress))


def _read_file(file: IO[bytes], what: str, progress: Callable[[int], object]) -> Snapshot:
    events: dict[int, _Events] = {}

    def take(device: int, items: list[Any]) -> None:
        if device not in events:
            events[device] = _Events(what)
        events[device].take(items)

    reader = Reader(file, what, take, progress)
    whole = reader.read()
    if isinstance(whole, list):  # torch.cuda.memory_snapshot(): the segments alone
        whole = {"segments": whole}
    if not isinstance(whole, dict) or not isinstance(whole.get("segments"), list):
        reader.refuse("it is a pickle, but not a memory snapshot: it has no segments")
    segments: dict[int, list[RecordedSegment]] = {}
    try:
        for segment in whole["segments"]:
            segments.setdefault(int(segment.get("device", 0)), []).append(_segment(segment))
    except (TypeError, KeyError, AttributeError, ValueError, FileFormatError) as error:
        reader.refuse(f"a segment is damaged: {error!r:.80}")
    settings = _settings(whole.get("allocator_settings"))
    ours = isinstance(whole.get("tinygrad_mem"), (list, tuple))  # its segments are another allocator's
    recordings = {}
    for device in sorted({*events, *segments}):
        found = events.get(device) or _Events(what)
        own = [] if ours else sorted(segments.get(device, []))
        recordings[device] = Recording(device, found.of_interest(ours), own, settings, list(found.pools))
    track = whole.get(OURS)
    return Snapshot(recordings, reader.stacks, track if isinstance(track, list) else None)


def _segment(segment: dict[str, Any]) -> RecordedSegment:
    return RecordedSegment(
        segment["address"],
        segment["total_size"],
        segment.get("stream", 0) & _TOP,
        segment["segment_type"] == "small",
        bool(segment.get("is_expandable", False)),
        list(_blocks(segment["blocks"], segment["address"])),
        tuple(segment.get("segment_pool_id", (0, 0))),  # type: ignore[arg-type]
    )


def _blocks(blocks: list[dict[str, Any]], address: int) -> Iterator[RecordedBlock]:
    """The blocks of a segment that begins at ``address``; older versions name neither addresses nor requests."""
    for block in blocks:
        history = block.get("history") or [{}]  # PyTorch 2.0: the last block that was allocated there
        frames = block.get("frames", history[0].get("frames"))
        stack = frames.stack if type(frames) is StackList else 0
        size = block["size"]
        requested = block.get("requested_size", history[0].get("real_size", size))
        if block["state"] not in _STATES:
            raise ValueError(f"expected one of {', '.join(_STATES)} as the state of a block, found {block['state']!r:.40}")
        state = "active_awaiting_free" if block["state"] == "active_pending_free" else block["state"]
        yield RecordedBlock(block.get("address", address), size, requested, state, stack)
        address = block.get("address", address) + size


def _settings(said: Any) -> str:
    """The settings string, if the snapshot has one. It is parsed only when it is needed."""
    text = (said.get("PYTORCH_ALLOC_CONF") or said.get("PYTORCH_CUDA_ALLOC_CONF")) if isinstance(said, dict) else ""
    return text if isinstance(text, str) else ""
