"""Recordings of a real GPU: the model of the allocator repeats them, and predictions are as near to them as their page says."""

from __future__ import annotations

from collections.abc import Iterator

from tests.pytorch import gpu_recordings
from tests.pytorch.gpu_recordings import names, recording
from tinygrad_mem.pytorch.allocator import CachingAllocator
from tinygrad_mem.pytorch.driver import Driver


class RecordedDriver(Driver):
    """A driver that gives the recorded segments."""

    def __init__(self, segments: list[tuple[int, int]]) -> None:
        super().__init__()
        self.segments: Iterator[tuple[int, int]] = iter(segments)

    def malloc(self, size: int, stream: int) -> int | None:
        address, recorded = next(self.segments)
        assert size == recorded
        return address


def test_every_request_of_the_gpu_lands_where_it_landed():
    """In the recorded segment, at the recorded byte; and each segment is asked of the driver by the request that asked then."""
    requests = 0
    for name in names():
        real = recording(name)
        driver = RecordedDriver(real.segments)
        allocator, found = CachingAllocator(driver=driver), []
        for step in real.steps:
            if step > 0:
                found.append(allocator.malloc(step))
            else:
                allocator.free(found[-step - 1])
        begins = [address for address, _ in real.segments]
        assert found == [begins[segment] + offset for segment, offset in real.places], name
        assert next(driver.segments, None) is None, name
        assert allocator.stats.peak("allocated_bytes") == real.peak, name
        assert allocator.stats.peak("reserved_bytes") == real.reserved, name
        requests += len(found)
    assert requests > 200_000


def test_ends_are_by_number_of_their_requests():
    assert gpu_recordings.steps([(True, 7, 1), (True, 9, 600), (False, 7, 0), (False, 8, 0)]) == [512, 1024, -1]
