"""PyTorch's memory statistics, what is given back, what CuPy's pool would have reserved."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_mem as tm
from tests.devices.test_pool import Model
from tests.interleave import interleavings
from tests.networks import WORKLOADS
from tests.profiles import examples, pairs
from tinygrad_mem import memory, scope
from tinygrad_mem.devices import Pool, device
from tinygrad_mem.memory import Kind, Log, stats


@pytest.fixture
def clean() -> None:
    gc.collect()
    for name in ("cpu", "meta"):
        device(name).pool.free_all_blocks()
        memory.reset_peak_memory_stats(name)


@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.usefixtures("clean")
def test_the_pytorch_names(where: str):
    base, reserved = memory.memory_allocated(where), memory.memory_reserved(where)
    assert memory.max_memory_allocated(where) == base
    x = tm.empty(1000, device=where)
    y = tm.empty(1 << 20, device=where)
    del y
    assert memory.memory_allocated(where) == base + 4096
    assert memory.max_memory_allocated(where) == base + 4096 + (4 << 20)
    assert memory.memory_reserved(where) == memory.max_memory_reserved(where) >= reserved + (4 << 20)
    memory.reset_peak_memory_stats(where)
    assert memory.max_memory_allocated(where) == base + 4096
    memory.empty_cache(where)
    assert memory.memory_reserved(where) < memory.max_memory_reserved(where)
    stats = memory.memory_stats(where)
    assert stats["allocated_bytes.all.current"] == base + 4096
    assert 4000 <= stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert (
        stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"] == stats["inactive_split_bytes.all.current"]
    )
    with tm.device(where):
        assert memory.memory_allocated() == base + 4096, "the default device is meant"
        text = memory.memory_summary()
    assert text.startswith(f"memory of {where}\n")
    assert f"{base + 4096:,}" in text
    assert "lost to rounding" in text
    assert "limit" not in text
    with memory.limit("64 MiB", where):
        assert re.search(r"^limit +67,108,864 +64\.00 MiB$", memory.memory_summary(where), re.MULTILINE)
    del x


@pytest.mark.parametrize(("where", "grows"), pairs(["cpu", "meta"], [True, False]))
def test_no_number_is_negative_beside_another_thread(
    where: str, grows: bool, reliability: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
):
    """It takes memory, or gives it back to the machine, between any two bytecodes of the statistics."""
    monkeypatch.setattr(device(where), "pool", Pool(where, reserve=where == "cpu"))  # of which there are few blocks to count
    points, kept = 0, []

    def ask() -> tuple:
        return memory.memory_stats(where), memory.memory_summary(where)

    def take() -> None:
        kept.extend(tm.empty(n, device=where) for n in (100, 5000, 70_000))

    def give_back() -> None:
        kept.clear()
        memory.empty_cache(where)

    for both in interleavings(stats.__file__):
        give_back() if grows else take()
        (numbers, text), _ = both(ask, take if grows else give_back)
        assert min(numbers.values()) >= 0, numbers
        assert numbers["reserved_bytes.all.current"] <= numbers["reserved_bytes.all.peak"]
        assert " -" not in text, text
        points += 1
    give_back()
    assert points > 100
    reliability("runs of a second thread between two bytecodes", points)


@pytest.mark.cuda
def test_no_peak_is_below_what_cupy_alone_has_taken(gpu_pool: Any):
    """CuPy keeps no peak. Ours was the last that an allocation of this library had seen."""
    import cupy

    kept = cupy.empty(1_000_000, "float32")
    used = gpu_pool.used_bytes()
    assert memory.max_memory_allocated("cuda") == used
    assert memory.max_memory_reserved("cuda") == gpu_pool.total_bytes()
    kept = cupy.concatenate([kept, kept])
    numbers = memory.memory_stats("cuda")
    for kind in ("allocated", "reserved"):
        assert numbers[f"{kind}_bytes.all.current"] <= numbers[f"{kind}_bytes.all.peak"]
    assert numbers["allocated_bytes.all.current"] == 8_000_000


@pytest.mark.usefixtures("clean")
def test_the_peak_is_the_tracks():
    with memory.track() as track:
        memory.reset_peak_memory_stats()
        step = WORKLOADS[1].build(tm)
        step()
    assert memory.max_memory_allocated() == track.peak


@pytest.mark.usefixtures("clean")
def test_what_gc_and_the_cache_give_back():
    pool = device("meta").pool
    kept = tm.empty(100, device="meta")
    cycle: list = [tm.empty(1 << 20, device="meta")]
    cycle.append(cycle)
    del cycle
    used, reserved = pool.used_bytes(), pool.total_bytes()
    given_back = memory.reclaim("meta")
    assert given_back.collected == 4 << 20 == used - pool.used_bytes()
    assert given_back.released == reserved - pool.total_bytes() > 0
    assert memory.reclaim("meta") == (0, 0)
    del kept


@pytest.mark.usefixtures("clean")
def test_a_small_block_keeps_its_segment():
    """The advice to empty the cache gives nothing back while one small tensor lies in the large segment."""
    large = tm.empty(1 << 20, device="meta")
    del large
    small = tm.empty(1, device="meta")
    assert memory.reclaim("meta").released == 0
    del small
    assert memory.reclaim("meta").released == 4 << 20


# --- CuPy's pool ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clean")
def test_replay_of_a_training_step():
    pool = device("meta").pool
    with memory.track("meta") as track:
        step = WORKLOADS[1].build(tm, "meta")
        step()
        step()
    found = track.replay()
    assert found.used == track.peak, "used bytes do not depend on placement"
    assert track.peak <= found.low <= found.high
    assert abs(pool.peak_total - found.high) < 0.2 * found.high
    assert found.fragmentation == 1 - found.used / found.high
    assert found._replace(used=0, high=0).fragmentation == 0.0
    assert track.replay(3) == track.replay(3), "the same choices, the same answer"
    with pytest.raises(ValueError, match="expected seeds of at least 1"):
        track.replay(0)


class _Writer(scope.Listener):
    """Writes what happens to one pool of the test's own."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def write(self, kind: Kind, device: str, address: int, size: int) -> None:
        if device == self.log.device:
            self.log.write((int(kind), 0, address, size, size, *[""] * 6, 0))

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.write(Kind.MALLOC, device, address, rounded)

    def free(self, device: str, address: int, rounded: int) -> None:
        self.write(Kind.FREE, device, address, rounded)

    def segment(self, device: str, address: int, size: int) -> None:
        self.write(Kind.RESERVE if size > 0 else Kind.RELEASE, device, address, abs(size))


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from("mmmfe"), st.integers(0, 99)), max_size=60))
def test_without_ties_a_replay_is_the_model(program: list):
    """Sizes that are all different leave nothing to choose: the replay reserves what the literal model of CuPy's rules does."""
    pool, model, live, most = Pool("mine", reserve=False), Model(), [], 0
    writer = _Writer(Log("mine"))
    scope.listen(writer)
    try:
        for number, (what, n) in enumerate(program):
            if what == "m":
                size = 512 * (number * 101 + n + 1)
                live.append((pool.malloc(size), model.malloc(size)))
            elif what == "f" and live:
                block, start = live.pop(n % len(live))
                model.free(start)
                del block
            elif what == "e":
                pool.free_all_blocks()
                model.release()
            most = max(most, model.total())
    finally:
        scope.unlisten(writer)
    assert memory.Track.of(writer.log).replay(2)[:2] == (most, most)


def event(kind: Kind, address: int, size: int) -> tuple:
    return (int(kind), 0, address, size, size, *[""] * 6, 0)


def test_a_replay_finds_what_either_of_two_equal_chunks_leads_to():
    """One choice leaves 1,024 bytes whole for the last request, the other does not."""
    log = Log("mine")
    for kind, address, size in (
        *((Kind.MALLOC, 8192, 1024), (Kind.FREE, 8192, 1024), (Kind.MALLOC, 8192, 512), (Kind.MALLOC, 8704, 512)),
        *((Kind.MALLOC, 16384, 512), (Kind.FREE, 8192, 512), (Kind.FREE, 16384, 512)),
        *((Kind.MALLOC, 16384, 512), (Kind.FREE, 8704, 512), (Kind.MALLOC, 8192, 1024)),
    ):
        log.write(event(kind, address, size))
    assert memory.Track.of(log).replay() == (1536, 2560, 1536)
    assert memory.Track.of(log).replay(1).low == memory.Track.of(log).replay(1).high


def test_a_replay_begins_with_what_is_older_than_the_log():
    """A block that the log met late was there all the same; on a GPU a release does not say of which segment."""
    log = Log("mine")
    for row in (
        event(Kind.OLDER, 0, 9216),
        event(Kind.MALLOC, 1 << 20, 8192),
        event(Kind.FREE, 1 << 20, 8192),
        event(Kind.OLDER, 8192, 1024),
        event(Kind.OLDER, 512, 8192),
        event(Kind.FREE, 512, 8192),
        event(Kind.RELEASE, 0, 16384),
        event(Kind.MALLOC, 2 << 20, 16384),
    ):
        log.write(row)
    assert memory.Track.of(log).replay(2)[:2] == (1024 + 8192 + 8192, 1024 + 8192 + 8192)
    assert memory.Track.of(log).replay(2).used == 1024 + 16384
