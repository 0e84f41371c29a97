"""Reserved bytes that are not allocated: what could be had again, what is stuck, and behind which blocks."""

from __future__ import annotations

import copy
import random

import pytest

from tests.profiles import every
from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.allocator import CachingAllocator
from tinygrad_mem.pytorch.blocks import State

from .built import MIB
from .recorded import NAMES, recording

SIZES = [1, 513, MIB, MIB + 1, 3 * MIB, 11 * MIB, 21 * MIB]
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:21",
    "expandable_segments:True,large_segment_size_mb:32,max_non_split_rounding_mb:32",
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_what_could_be_had_again_is_what_empty_cache_gives_back(settings):
    """At each of many moments of random programs, on several streams and in a private pool."""
    for seed in range(0, 4, every(4)):
        rng = random.Random(seed)
        allocator, alive = CachingAllocator(settings), []
        for _ in range(250):
            if alive and rng.random() < 0.5:
                allocator.free(alive.pop(rng.randrange(len(alive))))
            else:
                alive.append(allocator.malloc(rng.choice(SIZES), rng.choice([0, 0, 3]), rng.choice([(0, 0), (0, 0), (0, 1)])))
            if rng.random() < 0.02:
                allocator.empty_cache()
            said, emptied = allocator.releasable, copy.deepcopy(allocator)
            emptied.empty_cache()
            before, after = (each.stats.current("reserved_bytes") for each in (allocator, emptied))
            assert said == before - after
            assert emptied.releasable == 0


@pytest.mark.parametrize("name", NAMES)
def test_over_time_it_adds_up(name):
    found = pytorch.replay(recording(name))
    event, used, reserved = found.timeline.T
    said, again, stuck, waiting = found.fragmentation.T
    assert (said == event).all()
    assert (used + again + stuck + waiting == reserved).all()
    assert min(again.min(), stuck.min(), waiting.min()) >= 0


def test_a_block_that_another_stream_uses_waits():
    allocator = CachingAllocator()
    address = allocator.malloc(30 * MIB)
    allocator.record_stream(address, 5)
    allocator.free(address)
    assert allocator.blocks[address].state is State.WAITING
    assert allocator.releasable == 0
    allocator.synchronize()
    assert allocator.releasable == 30 * MIB
