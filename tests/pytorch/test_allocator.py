"""The model of PyTorch's CUDA caching allocator: what always holds, and each rule of its settings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.profiles import examples
from tinygrad_mem.errors import OutOfMemoryError
from tinygrad_mem.pytorch import CachingAllocator
from tinygrad_mem.pytorch.blocks import State
from tinygrad_mem.pytorch.driver import Driver, ShuffledDriver

from .recorded import LoggingDriver, chains

MIB = 1 << 20
SIZES = st.sampled_from([1, 512, 4096, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 25 * MIB, 64 * MIB]) | st.integers(1, 80 * MIB)


class Machine(RuleBasedStateMachine):
    """Any calls in any order, under any settings: what must hold between any two of them."""

    settings = ""
    capacity: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.allocator = CachingAllocator(self.settings, self.capacity)
        self.alive: dict[int, int] = {}

    @rule(size=SIZES, stream=st.integers(0, 1))
    def malloc(self, size, stream):
        before = self.allocator.memory_stats()
        try:
            address = self.allocator.malloc(size, stream)
        except OutOfMemoryError as refused:
            error = refused
        else:
            assert address % 512 == 0
            assert address not in self.alive
            block = self.allocator.blocks[address]
            assert not block.home.small or block.size == self.allocator.settings.rounded(size), "the ledger counts on it"
            self.alive[address] = size
            return
        after = self.allocator.memory_stats()
        assert after["num_ooms"] == before["num_ooms"] + 1
        assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"] == error.used

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), elsewhere=st.booleans())
    def free(self, data, elsewhere):
        address = data.draw(st.sampled_from(sorted(self.alive)))
        if elsewhere:
            self.allocator.record_stream(address, 7)
        self.allocator.free(address)
        del self.alive[address]

    @rule()
    def synchronize(self):
        self.allocator.synchronize()

    @rule()
    def empty_cache(self):
        self.allocator.empty_cache()
        for chain in chains(self.allocator):  # address space whose first page the driver refused stays, as in PyTorch
            assert len(chain) > 1 or chain[0].state in (State.USED, State.UNMAPPED)

    @rule(size=SIZES)
    def what_is_allocated_and_freed_leaves_nothing(self, size):
        """Where a free block served the request, the free blocks are as before.

        Otherwise a segment was asked for, or a retry came first, which waits for the streams: what waited joins its neighbours.
        """
        before, stats = dict(self.allocator.free_blocks), self.allocator.stats
        before = {home: list(free) for home, free in before.items()}
        asked = stats.num_device_alloc, stats.num_alloc_retries
        try:
            self.allocator.free(self.allocator.malloc(size))
        except OutOfMemoryError:
            return
        if (stats.num_device_alloc, stats.num_alloc_retries) == asked:
            assert {home: free for home, free in self.allocator.free_blocks.items() if free} == {
                home: free for home, free in before.items() if free
            }

    @invariant()
    def blocks_fill_their_segments(self):
        for chain in chains(self.allocator):
            for first, second in pairwise(chain):
                assert first.address + first.size == second.address
                assert second.before is first
                assert not (first.state is second.state is State.FREE)
                assert not (first.state is second.state is State.UNMAPPED)
            assert all(block.size > 0 and self.allocator.blocks[block.address] is block for block in chain)
        assert sum(map(len, chains(self.allocator))) == len(self.allocator.blocks)

    @invariant()
    def the_free_blocks_are_the_free_ones(self):
        listed = [entry for free in self.allocator.free_blocks.values() for entry in free]
        found = [(b.size, b.address) for b in self.allocator.blocks.values() if b.state is State.FREE]
        assert sorted(listed) == sorted(found)
        assert all(free == sorted(free) for free in self.allocator.free_blocks.values())

    @invariant()
    def counters_add_up(self):
        blocks, stats = list(self.allocator.blocks.values()), self.allocator.memory_stats()
        for kind, chosen in (
            ("all", blocks),
            ("small_pool", [b for b in blocks if b.home.small]),
            ("large_pool", [b for b in blocks if not b.home.small]),
        ):
            used = [b for b in chosen if b.state is State.USED]
            active = [b for b in chosen if b.state in (State.USED, State.WAITING)]
            cut = [b for b in chosen if b.state is State.FREE and b.split and not b.expandable]
            assert stats[f"allocation.{kind}.current"] == len(used)
            assert stats[f"allocated_bytes.{kind}.current"] == sum(b.size for b in used)
            assert stats[f"active_bytes.{kind}.current"] == sum(b.size for b in active)
            assert stats[f"requested_bytes.{kind}.current"] == sum(b.requested for b in active)
            assert stats[f"inactive_split.{kind}.current"] == len(cut)
            assert stats[f"inactive_split_bytes.{kind}.current"] == sum(b.size for b in cut)
            reserved = sum(b.size for b in chosen if b.state is not State.UNMAPPED)
            assert stats[f"reserved_bytes.{kind}.current"] == reserved
        for name in {key.rpartition(".")[0] for key in stats if key.endswith(".peak")}:
            assert stats[f"{name}.peak"] >= stats[f"{name}.current"] >= 0
            assert stats[f"{name}.allocated"] >= stats[f"{name}.peak"]
        assert self.allocator.driver.taken == stats["reserved_bytes.all.current"]
        assert {b.address: b.requested for b in blocks if b.state is State.USED} == self.alive


for _name, _settings, _capacity in (
    ("Plain", "", None),
    ("Small", "", 120 * MIB),
    ("MaxSplit", "max_split_size_mb:24", 200 * MIB),
    ("Rounding", "roundup_power2_divisions:[1:2,8:4,>:8]", None),
    ("Expandable", "expandable_segments:True", 160 * MIB),
    ("Collecting", "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", 200 * MIB),
    ("LargeSegments", "large_segment_size_mb:40,max_non_split_rounding_mb:40", None),
):
    _machine = type(f"{_name}Machine", (Machine,), {"settings": _settings, "capacity": _capacity})
    globals()[f"Test{_name}"] = _machine.TestCase
    _machine.TestCase.settings = settings(max_examples=examples(15))


# --- the rules, one by one ------------------------------------------------------------------------------------------------


def driver_events(settings: str, *sizes: int, capacity: int | None = None) -> list[int]:
    """The sizes of the segments that are asked for these requests, none of which is freed."""
    log: list[dict] = []
    allocator = CachingAllocator(settings, driver=LoggingDriver(log, capacity))
    for size in sizes:
        allocator.malloc(size)
    return [event["size"] for event in log]


def test_a_segment_has_2_mib_20_mib_or_the_request():
    """kSmallBuffer, kLargeBuffer, kMinLargeAlloc, kRoundLarge of c10/core/AllocatorConfig.h."""
    assert driver_events("", 1) == [2 * MIB]
    assert driver_events("", MIB) == [2 * MIB]
    assert driver_events("", MIB + 1) == [20 * MIB]
    assert driver_events("", 10 * MIB - 512) == [20 * MIB]
    assert driver_events("", 10 * MIB) == [10 * MIB]
    assert driver_events("", 11 * MIB) == [12 * MIB]
    assert driver_events("large_segment_size_mb:64,max_non_split_rounding_mb:64", 2 * MIB) == [64 * MIB]


def test_a_block_is_split_where_enough_is_left():
    """A small one from 512 bytes on; a large one above 1 MiB (``should_split``)."""
    allocator = CachingAllocator()
    allocator.malloc(2 * MIB - 512 - MIB)
    assert allocator.memory_stats()["inactive_split_bytes.small_pool.current"] == MIB + 512
    allocator.malloc(19 * MIB)
    assert allocator.memory_stats()["inactive_split_bytes.large_pool.current"] == 0  # 20 MiB asked, 1 MiB stays with it
    assert allocator.memory_stats()["allocated_bytes.large_pool.current"] == 20 * MIB
    allocator.malloc(9 * MIB)
    assert allocator.memory_stats()["inactive_split_bytes.large_pool.current"] == 11 * MIB
    allocator.malloc(10 * MIB - 512)
    assert allocator.memory_stats()["inactive_split_bytes.large_pool.current"] == MIB + 512


def test_the_smallest_block_that_fits_is_taken_and_of_equal_ones_the_lowest():
    """``BlockComparatorSize`` of PyTorch's CUDACachingAllocator.cpp, as the functions named below: stream, size, address."""
    allocator = CachingAllocator(driver=Driver(rising=True))
    large, middle, also, _ = [allocator.malloc(size * MIB) for size in (60, 30, 30, 40)]
    for address in (also, large, middle):
        allocator.free(address)
    assert allocator.malloc(30 * MIB) == middle
    assert allocator.malloc(29 * MIB) == also
    assert allocator.malloc(28 * MIB) == large


def test_max_split_size_keeps_large_blocks_whole():
    """Documentation of PyTorch: it "prevents the native allocator from splitting blocks larger than this size"."""
    allocator = CachingAllocator("max_split_size_mb:32")
    large = allocator.malloc(64 * MIB)
    allocator.free(large)
    assert allocator.malloc(20 * MIB) != large  # a smaller request does not spoil it
    near = allocator.malloc(45 * MIB)
    assert near == large  # one that wastes less than 20 MiB takes it whole
    assert allocator.memory_stats()["allocated_bytes.all.current"] == (64 + 20) * MIB
    allocator.free(near)
    assert allocator.malloc(44 * MIB) != large


def test_a_driver_may_give_addresses_in_no_order():
    drivers = [ShuffledDriver(seed) for seed in (0, 0, 1)]
    given = [[driver.malloc(20 * MIB, 0) for _ in range(8)] for driver in drivers]
    assert given[0] == given[1] != given[2]
    assert len(set(given[0])) == 8
    assert given[0] not in (sorted(given[0]), sorted(given[0], reverse=True))


def test_a_driver_may_give_rising_addresses():
    driver = Driver(rising=True)
    first, second, third = (driver.malloc(size, 0) for size in (3 << 20, 2 << 20, 2 << 20))
    assert (second - first, third - second) == (4 << 20, 2 << 20)


def test_addresses_are_those_of_gaps_or_below_all_others():
    """As an H100 gave them to a GPT-2 (148 and 100 MiB, then 2 and 20 MiB in the gaps), and what is freed is a gap, too."""
    driver, sizes = Driver(), [148, 20, 20, 100, 100, 2, 20, 20, 20]
    given = [driver.malloc(size * MIB, 0) for size in sizes]
    lowest = min(given)
    assert [(address - lowest) // MIB for address in given] == [352, 320, 288, 160, 32, 132, 134, 260, 0]
    for place in (5, 1, 6, 4):  # two gaps, of 140 and of 44 MiB, with those beside what is freed
        driver.free(given[place], sizes[place] * MIB, 0)
    assert [(driver.malloc(size * MIB, 0) - lowest) // MIB for size in (128, 33, 30, 2)] == [20, 308, -32, -2]


@pytest.mark.parametrize(
    ("settings", "size", "rounded"),
    [
        ("", 1200, 1536),
        ("roundup_power2_divisions:4", 1200, 1536),  # not above 512 * 4
        ("roundup_power2_divisions:4", 5000, 5120),  # 4,096 and a quarter of it
        ("roundup_power2_divisions:4", 4096, 4096),
        ("roundup_power2_divisions:8", 70 * MIB, 72 * MIB),
        ("roundup_power2_divisions:1", 5000, 5120),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 700 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 100 * MIB + 1, 100 * MIB + 512),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 1100 * MIB, 1152 * MIB),  # ">" holds from 1,024 on, it included
    ],
)
def test_requests_are_rounded(settings, size, rounded):
    """512 bytes, or divisions of a power of two ("1200 and 4 divisions" is the documentation's example, in bytes of 1024)."""
    assert CachingAllocator(settings).settings.rounded(size) == rounded


def test_what_is_cached_is_given_back_when_the_driver_has_no_more():
    """``release_cached_blocks``."""
    allocator = CachingAllocator(capacity=100 * MIB)
    first, kept = allocator.malloc(60 * MIB), allocator.malloc(30 * MIB)
    allocator.free(first)
    allocator.malloc(64 * MIB)
    stats = allocator.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["reserved_bytes.all.current"]) == (1, 0, 94 * MIB)
    allocator.free(kept)


def test_a_request_that_fits_between_blocks_may_still_fail():
    """Fragmentation: 60 MiB are free, no 40 MiB in one piece, and none of it can be given back."""
    allocator = CachingAllocator(capacity=100 * MIB)
    whole = allocator.malloc(100 * MIB)
    allocator.free(whole)
    pieces = [allocator.malloc(20 * MIB) for _ in range(5)]
    for address in pieces[::2]:
        allocator.free(address)
    with pytest.raises(
        OutOfMemoryError, match=r"asked for 41,943,040 bytes.*41,943,040 bytes are in use.*62,914,560 bytes are free"
    ):
        allocator.malloc(40 * MIB)


def test_expandable_segments_give_back_pages_between_blocks():
    """Note [Expandable Segments]: the same program fits; free pages of 20 MiB are unmapped, and mapped again at the end."""
    allocator = CachingAllocator("expandable_segments:True", capacity=100 * MIB)
    pieces = [allocator.malloc(20 * MIB) for _ in range(5)]
    for address in pieces[::2]:
        allocator.free(address)
    assert allocator.malloc(40 * MIB) > pieces[4] - 20 * MIB
    assert allocator.memory_stats()["reserved_bytes.all.current"] == 80 * MIB


def test_garbage_collection_gives_back_what_was_not_used_for_long():
    """``garbage_collect_cached_blocks``: blocks that are older than the average of those that are left go first."""
    allocator = CachingAllocator("garbage_collection_threshold:0.5,per_process_memory_fraction:1.0", capacity=200 * MIB)
    old, young = allocator.malloc(60 * MIB), allocator.malloc(50 * MIB)
    allocator.free(old)
    for _ in range(10):
        allocator.free(young)
        young = allocator.malloc(50 * MIB)
    allocator.malloc(80 * MIB)
    assert old not in allocator.blocks
    assert allocator.memory_stats()["num_alloc_retries"] == 0


def test_garbage_collection_needs_a_fraction():
    """PyTorch collects only in a process that has set its fraction of the card (``set_fraction`` in ``malloc``)."""
    allocator = CachingAllocator("garbage_collection_threshold:0.1", capacity=200 * MIB)
    old = allocator.malloc(60 * MIB)
    allocator.free(old)
    allocator.malloc(70 * MIB)
    assert old in allocator.blocks


def test_max_split_size_gives_back_only_as_much_as_is_needed():
    """``release_available_cached_blocks``."""
    allocator = CachingAllocator("max_split_size_mb:24", driver=Driver(200 * MIB, rising=True))
    blocks = [allocator.malloc(size * MIB) for size in (40, 60, 90)]
    for address in blocks:
        allocator.free(address)
    allocator.malloc(100 * MIB)
    assert [address in allocator.blocks for address in blocks] == [True, False, False]
    assert allocator.memory_stats()["num_alloc_retries"] == 0


def test_a_block_that_another_stream_uses_waits():
    """``insert_events``, and the documentation of ``Tensor.record_stream``."""
    allocator = CachingAllocator()
    address = allocator.malloc(4 * MIB)
    allocator.record_stream(address, 3)
    allocator.free(address)
    stats = allocator.memory_stats()
    assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 4 * MIB)
    assert allocator.malloc(4 * MIB) != address
    allocator.synchronize()
    assert allocator.malloc(4 * MIB) == address


@pytest.mark.parametrize("call", ["free", "record_stream", "completed"])
def test_addresses_that_are_none_are_refused(call):
    allocator = CachingAllocator()
    arguments = (0x1234, 1) if call == "record_stream" else (0x1234,)
    with pytest.raises(ValueError, match=f"{call}: no .* at 0x1234"):
        getattr(allocator, call)(*arguments)
    with pytest.raises(ValueError, match="expected a positive number of bytes, found 0"):
        allocator.malloc(0)
