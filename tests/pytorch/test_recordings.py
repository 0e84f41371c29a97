"""The model of PyTorch's allocator against recordings of real GPUs, and against recordings of its own that begin anywhere."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.pytorch.allocator import CachingAllocator
from tinygrad_mem.pytorch.recording import EVENT, Action, Recording
from tinygrad_mem.pytorch.replay import _Replayer, replay
from tinygrad_mem.pytorch.snapshot import read

from .recorded import NAMES, LoggingDriver, recording, segments, settings_recorded, under_settings

MIB = 1 << 20


def at_end(allocator: CachingAllocator) -> list[tuple]:
    return [(block["address"], block["size"], block["state"]) for segment in segments(allocator) for block in segment["blocks"]]


@pytest.mark.parametrize("name", NAMES)
def test_every_allocation_of_a_gpu_lands_where_it_landed(name):
    """At the recorded address; segments at the recorded moments; and in the end every block is as in the snapshot."""
    real = recording(name)
    run = _Replayer(real, None, None)
    result = run.run()
    assert result.allocations == (real.events["action"] == 0).sum() > 1000
    assert result.as_recorded == result.allocations
    assert result.segments == result.segments_as_recorded == (real.events["action"] == 3).sum()
    assert at_end(run.allocator) == [(b.address, b.size, b.state) for s in real.segments for b in s.blocks]
    assert result.assumed == 0


@pytest.mark.parametrize("settings", settings_recorded())
def test_under_each_of_its_settings_every_allocation_lands_where_it_landed(settings: str):
    """Three streams, blocks that another stream uses, ``empty_cache``, and requests that were refused."""
    real, allocated, reserved = under_settings(settings)
    run = _Replayer(real, None, None)
    result = run.run()
    assert result.as_recorded == result.allocations > 2000
    assert result.segments == result.segments_as_recorded > 90
    assert (run.allocator.stats.peak("allocated_bytes"), run.allocator.stats.peak("reserved_bytes")) == (allocated, reserved)
    assert len(result.out_of_memory) == (real.events["action"] == Action.OOM).sum()


def test_there_are_recordings():
    assert len(NAMES) == 3


def test_the_peak_of_a_training_step_is_the_recorded_one():
    """1,918,013,444 bytes were asked for above what was there when the step began: counted from the events by hand."""
    real = recording("lm-medium-128-train")
    alive = highest = 0
    for event in real.events:
        alive += int(event["size"]) * {0: 1, 2: -1}.get(int(event["action"]), 0)
        highest = max(highest, alive)
    assert highest == 1_918_013_444
    run = _Replayer(real, None, None)
    before = run.allocator.stats.current("requested_bytes")
    run.run()
    assert run.allocator.stats.peak("requested_bytes") - before == highest


SIZES = [1, 512, 513, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB, 9 * MIB + 7, 10 * MIB, 10 * MIB + 1, 33 * MIB, 70 * MIB]


def made(seed: int, settings: str, begins: int, tmp_path, streams: int = 1, capacity: int | None = None):
    """A random program that ran on the model, and its snapshot as a file: recorded from the event ``begins`` on."""
    chance = random.Random(seed)
    log: list[dict] = []
    allocator = CachingAllocator(settings, capacity, LoggingDriver(log, capacity))
    alive: dict[int, int] = {}
    waiting: dict[int, dict] = {}
    start = 0
    for step in range(300):
        if step == begins:
            start = len(log)
        what = chance.random()
        if alive and what < 0.42:
            address = chance.choice(list(alive))
            size = alive.pop(address)
            late = streams > 1 and chance.random() < 0.3
            if late:
                allocator.record_stream(address, 99)
            entry = {"addr": address, "size": size, "stream": allocator.blocks[address].home.stream, "time_us": step}
            log.append({"action": "free_requested", **entry})
            if late:
                waiting[address] = {"action": "free_completed", **entry}
            else:
                log.append({"action": "free_completed", **entry})
            allocator.free(address)
        elif waiting and what < 0.5:
            address = next(iter(waiting))
            log.append(waiting.pop(address))
            allocator.completed(address)
        elif what < 0.51:
            log.extend(waiting.values())
            waiting.clear()
            allocator.empty_cache()
        else:
            size, stream = chance.choice(SIZES) + chance.randrange(3) * 512, chance.randrange(streams)
            try:
                address = allocator.malloc(size, stream)
            except OutOfMemoryError:
                free = allocator.driver.available
                log.append({"action": "oom", "device_free": free, "size": size, "stream": stream, "time_us": step})
                continue
            alive[address] = size
            log.append({"action": "alloc", "addr": address, "size": size, "stream": stream, "time_us": step})
    whole = {
        "segments": segments(allocator),
        "device_traces": [log[start:]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": settings},
    }
    path = tmp_path / "made.pickle"
    path.write_bytes(pickle.dumps(whole))
    return allocator, path


SETTINGS = ["", "max_split_size_mb:30", "roundup_power2_divisions:4", "expandable_segments:True"]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("streams", [1, 2])
@given(seed=st.integers(0, 1 << 30))
def test_a_recording_from_the_beginning_is_replayed_exactly(seed, settings, streams, tmp_path_factory):
    allocator, path = made(seed, settings, 0, tmp_path_factory.mktemp("made"), streams)
    recorded = read(path).of(0)
    run = _Replayer(recorded, None, None)
    result = run.run()
    assert result.as_recorded == result.allocations > 50
    assert result.segments_as_recorded == result.segments
    assert at_end(run.allocator) == at_end(allocator)
    assert result.peak_reserved == allocator.stats.peak("reserved_bytes")
    assert result.peak_allocated == allocator.stats.peak("allocated_bytes")


@pytest.mark.parametrize("settings", SETTINGS)
@given(seed=st.integers(0, 1 << 30), begins=st.integers(1, 299))
def test_a_recording_that_begins_anywhere_is_replayed_exactly(seed, begins, settings, tmp_path_factory):
    """Or the result says how many blocks may have been longer than the recording tells."""
    allocator, path = made(seed, settings, begins, tmp_path_factory.mktemp("made"), 2)
    run = _Replayer(read(path).of(0), None, None) if len(read(path).recordings[0].events) else None
    if run is None:
        return
    result = run.run()
    if not result.assumed:
        assert result.as_recorded == result.allocations
        assert at_end(run.allocator) == at_end(allocator)


@pytest.mark.parametrize(("step", "shown", "reserved"), [(64, True, 60), (-64, True, 36), (64, False, 36)])
def test_other_settings_are_tried_with_a_driver_like_the_recorded_one(step: int, shown: bool, reserved: int):
    """Of two free blocks of 12 MiB the lower one is taken: with rising addresses, from the older and larger segment.

    Without a segment in the recording they fall, as in a prediction.
    """
    first, second = 4096 * MIB, (4096 + step) * MIB
    rows = [
        *[("SEGMENT_ALLOC", first, 24), ("ALLOC", first, 24), ("FREE_REQUESTED", first, 24), ("FREE_COMPLETED", first, 24)],
        *[("ALLOC", first, 12), ("ALLOC", first + 12 * MIB, 12), ("SEGMENT_ALLOC", second, 12), ("ALLOC", second, 12)],
        *[("FREE_REQUESTED", first + 12 * MIB, 12), ("FREE_COMPLETED", first + 12 * MIB, 12)],
        *[("FREE_REQUESTED", second, 12), ("FREE_COMPLETED", second, 12)],
        *[("ALLOC", min(first + 12 * MIB, second), 12)],
        *[("FREE_REQUESTED", first, 12), ("FREE_COMPLETED", first, 12), ("ALLOC", first if step < 0 else 2 * first, 24)],
    ]
    rows = [row for row in rows if shown or row[0] != "SEGMENT_ALLOC"]
    events = np.zeros(len(rows), EVENT)
    for event, (action, address, size) in zip(events, rows, strict=True):
        event["action"], event["address"], event["size"] = Action[action], address, size * MIB
    assert replay(Recording(0, events, []), "", anew=True).peak_reserved == reserved * MIB
