"""Recordings for tests: three of real GPUs, and the snapshot of any run of the model."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from tinygrad_mem.pytorch.allocator import CachingAllocator
from tinygrad_mem.pytorch.blocks import SegmentBlock, State
from tinygrad_mem.pytorch.driver import Driver
from tinygrad_mem.pytorch.recording import EVENT, Action, RecordedBlock, RecordedSegment, Recording

HERE = Path(__file__).parent / "recordings"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in HERE.glob("*.json.gz"))
STATES = {State.USED: "active_allocated", State.WAITING: "active_awaiting_free", State.FREE: "inactive"}


def frees_as_before_3_14(events: Iterable[Any], is_free: Callable[[Any], bool]) -> list[Any]:
    """The events as they are. On Python 3.14, those of frees in a row are sorted.

    There a function drops its names, and a call of C its arguments, from the last to the first. The recordings are older.
    """
    if sys.version_info < (3, 14):
        return list(events)
    return [each for frees, row in groupby(events, is_free) for each in (sorted(row) if frees else row)]


def recording(name: str) -> Recording:
    """A recording that others made on a real GPU: facts of a snapshot, without stacks."""
    with gzip.open(HERE / f"{name}.json.gz") as file:
        return _recording(json.load(file), "")


def _recording(said: dict[str, Any], settings: str) -> Recording:
    events = np.zeros(len(said["traces"]), EVENT)
    for row, (action, address, size, stream, *_) in zip(events, said["traces"], strict=True):
        row["action"], row["address"], row["size"], row["stream"] = Action[action.upper()], address, size, stream
    segments = [
        RecordedSegment(address, size, stream, kind == "small", expandable, [RecordedBlock(*block) for block in blocks])
        for address, size, stream, kind, expandable, blocks in said["segments"]
    ]
    return Recording(0, events, segments, settings)


@cache
def _of_settings() -> dict[str, dict[str, Any]]:
    with lzma.open(HERE / "h200-settings.json.xz") as file:
        return json.load(file)


def settings_recorded() -> list[str]:
    """The settings of the allocator under which one program ran on an H200 (PyTorch 2.11): 4,000 steps on three streams."""
    return list(_of_settings())


def under_settings(settings: str) -> tuple[Recording, int, int]:
    """What it did under them, from its first request on; the most bytes that were allocated, and reserved."""
    said = _of_settings()[settings]
    return _recording(said, settings), said["allocated"], said["reserved"]


def traces(name: str) -> list[tuple[str, int, int, int, str]]:
    """The events of a recording: action, address, bytes, stream and the op that asked."""
    with gzip.open(HERE / f"{name}.json.gz") as file:
        return [tuple(event) for event in json.load(file)["traces"]]


class LoggingDriver(Driver):
    """A driver that writes down what it gives and takes, as a snapshot has it."""

    def __init__(self, log: list[dict[str, Any]], capacity: int | None = None) -> None:
        super().__init__(capacity, rising=True)
        self.log = log

    def _note(self, action: str, address: int, size: int, stream: int) -> None:
        self.log.append({"action": action, "addr": address, "size": size, "stream": stream, "time_us": len(self.log)})

    def malloc(self, size: int, stream: int) -> int | None:
        if self.capacity is not None and self.taken + size > self.capacity:
            return None
        self.taken += size
        address = self._addresses(size)
        self._note("segment_alloc", address, size, stream)
        return address

    def free(self, address: int, size: int, stream: int) -> None:
        self.taken -= size
        self._note("segment_free", address, size, stream)

    def map(self, address: int, size: int, stream: int) -> bool:
        mapped = super().map(address, size, stream)
        if mapped:
            self._note("segment_map", address, size, stream)
        return mapped

    def unmap(self, address: int, size: int, stream: int) -> None:
        super().unmap(address, size, stream)
        self._note("segment_unmap", address, size, stream)


def chains(allocator: CachingAllocator) -> list[list[SegmentBlock]]:
    """The blocks of each segment, in order."""
    found = []
    for block in allocator.blocks.values():
        if block.before is None:
            chain = [block]
            while (after := chain[-1].after) is not None:
                chain.append(after)
            found.append(chain)
    return sorted(found, key=lambda chain: chain[0].address)


def segments(allocator: CachingAllocator) -> list[dict[str, Any]]:
    """The segments of the model, as a snapshot of PyTorch 2.13 has them: a mapped piece of an expandable one is one too."""
    found: list[dict[str, Any]] = []
    for chain in chains(allocator):
        fresh = True
        for block in chain:
            if block.state is State.UNMAPPED:
                fresh = True
                continue
            if fresh:
                found.append(
                    {
                        "device": 0,
                        "address": block.address,
                        "total_size": 0,
                        "stream": block.home.stream,
                        "segment_type": "small" if block.home.small else "large",
                        "segment_pool_id": block.home.pool,
                        "is_expandable": block.expandable,
                        "frames": [],
                        "blocks": [],
                    }
                )
                fresh = False
            segment = found[-1]
            segment["total_size"] += block.size
            segment["blocks"].append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": STATES[block.state],
                    "frames": [],
                }
            )
    return sorted(found, key=lambda segment: segment["address"])
