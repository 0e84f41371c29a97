"""Streams and events, as late as CUDA allows: what a program forgot to wait for shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .device import Device
from .test_kernels import zeros

pytestmark = pytest.mark.cuda


def pinned(size: int) -> Any:
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(size * 4)
    array = np.frombuffer(memory, "float32", size)
    array[...] = np.nan  # CuPy's pool of pinned memory may have given it before
    return array


@pytest.mark.parametrize("late", ["eager", "late", "late_main"])  # when idle no work runs: memory has what was there before
def test_a_stream_runs_in_order_and_waits_for_events(emulated: Device, late: str):
    import cupy

    with emulated.mode(late=late):
        x, side = zeros(8), cupy.cuda.Stream(non_blocking=True)
        x += 1
        side.wait_event(cupy.cuda.get_current_stream().record())
        with side:
            x *= 3
            done = side.record()
        cupy.cuda.get_current_stream().wait_event(done)
        x += 1
        assert x.get().tolist() == [4.0] * 8


@pytest.mark.parametrize(
    ("late", "first", "second"),
    [("eager", True, True), ("late", True, False), ("late_main", False, True)],
)
def test_a_forgotten_wait_shows_in_one_of_the_modes(emulated: Device, late: str, first: bool, second: bool):
    """``first``: the side stream does not wait for the main one. ``second``: the main one does not wait for the side stream."""
    import cupy

    right = []
    with emulated.mode(late=late):
        for forget in range(2):
            x, side = zeros(8), cupy.cuda.Stream(non_blocking=True)
            cupy.cuda.Device().synchronize()
            x += 1
            if forget != 0:
                side.wait_event(cupy.cuda.get_current_stream().record())
            with side:
                x *= 3
                done = side.record()
            if forget != 1:
                cupy.cuda.get_current_stream().wait_event(done)
            x += 1
            right.append(x.get().tolist() == [4.0] * 8)
            cupy.cuda.Device().synchronize()
    assert right == [first, second]


def test_a_blocking_stream_waits_for_the_default_one(emulated: Device):
    import cupy

    with emulated.mode(late="late"):
        x, side = zeros(8), cupy.cuda.Stream()
        x += 1
        with side:
            x *= 3
        x += 1
        assert x.get().tolist() == [4.0] * 8


def test_a_copy_to_pinned_memory_is_not_there_until_it_is_waited_for(emulated: Device):
    here = pinned(8)
    with emulated.mode(late="late"):
        x = zeros(8)
        x += 2
        x.get(out=here, blocking=False)
        assert np.isnan(here).all()
        emulated.driver.cudaDeviceSynchronize()
        assert (here == 2).all()


def test_a_copy_to_ordinary_memory_waits(emulated: Device):
    here = np.zeros(8, "float32")
    with emulated.mode(late="late"):
        x = zeros(8)
        x += 2
        x.get(out=here, blocking=False)
        assert (here == 2).all()


def test_ordinary_memory_is_read_before_the_call_returns_and_pinned_memory_later(emulated: Device):
    import cupy

    ordinary, locked = np.ones(8, "float32"), pinned(8)
    locked[...] = 1
    with emulated.mode(late="late"):
        x, y = zeros(8), zeros(8)
        stream = cupy.cuda.get_current_stream()
        x.set(ordinary, stream=stream)
        y.set(locked, stream=stream)
        ordinary[...] = locked[...] = 5
        assert (x.get()[0], y.get()[0]) == (1, 5)


def test_pinned_memory_that_is_freed_under_a_pending_copy_is_reported(emulated: Device):
    import cupy

    with emulated.mode(late="late"):
        x = zeros(8)
        memory = cupy.cuda.PinnedMemory(32)
        cupy.cuda.runtime.memcpyAsync(memory.ptr, x.data.ptr, 32, cupy.cuda.runtime.memcpyDeviceToHost, 0)
        del memory
        assert emulated.problems() == ["pinned memory is freed while a copy of it is pending"]


def test_freed_memory_belongs_to_the_work_that_was_given_before(emulated: Device):
    """The pool gives a block again at once: on one stream that is right, since work runs in order."""
    import cupy

    with emulated.mode(late="late"):
        x = cupy.ones(8, "float32")
        y = x * 2
        del x
        z = cupy.ones(8, "float32")
        assert (y + z).get().tolist() == [3.0] * 8
    assert emulated.problems() == []


def test_memory_that_goes_back_while_a_side_stream_uses_it_is_reported(emulated: Device):
    import cupy

    with emulated.mode(late="late"):
        x, y, side = cupy.ones(8, "float32"), cupy.empty(8, "float32"), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with side:
            cupy.multiply(x, 2, out=y)
        del x
        cupy.cuda.get_current_stream().synchronize()  # but not the side stream
        side.synchronize()
    assert any("device memory that was freed" in problem for problem in emulated.problems())
