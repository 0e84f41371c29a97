"""A training step on a GPU that has no more memory, at any moment: the driver refuses, or a limit is reached."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.sturdy.test_failing_steps import Run, same
from tinygrad_mem import memory

STEP = 1024  # bytes
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("gpu_pool")]


def attempts(short: Callable[[int], AbstractContextManager], pool: Any) -> Iterator[int]:
    """Steps with more and more room, until one goes through; each one that fails leaves everything as it was.

    Yields:
        the number of each failed step.
    """
    undisturbed = Run("Adam", "cuda")
    undisturbed.step()
    expected = undisturbed.parameters(), undisturbed.buffers(), undisturbed.state()
    del undisturbed
    run, number = Run("Adam", "cuda"), 0
    buffers, ticket = run.buffers(), run.where.generator.state
    while True:
        gc.collect()
        photo, used = (run.parameters(), run.state()), run.where.pool.used_bytes()
        pool.free_all_blocks()
        try:
            with short(number):
                run.step()
            break
        except tm.OutOfMemoryError as caught:
            error = caught  # it is held on purpose: its traceback must pin nothing
        run.optimizer.zero_grad()
        assert run.where.pool.used_bytes() == used, f"{run.where.pool.used_bytes() - used} bytes are kept"
        assert "out of memory on cuda:0" in str(error)
        assert same(run.parameters(), photo[0])
        assert same(run.state(), photo[1])
        run.restore(buffers, ticket)
        yield number
        number += 1
    assert all(map(same, (run.parameters(), run.buffers(), run.state()), expected))


def test_the_driver_refuses(emulated: Any, gpu_pool: Any, reliability: Callable[[str, int], None]):
    """At any request of CuPy's pool for another chunk: blocks of a step are cut from few."""
    import cupy

    class Requests(cupy.cuda.MemoryHook):
        name, count = "requests", 0

        def alloc_preprocess(self, device_id: int, mem_size: int) -> None:
            self.count += 1

    run = Run("Adam", "cuda")
    gpu_pool.free_all_blocks()
    with Requests() as requests:
        run.step()
    del run
    failed = list(attempts(emulated.refusing, gpu_pool))
    assert len(failed) == requests.count > 1
    reliability("training steps on a GPU whose driver refuses memory", len(failed))


def test_a_limit_is_reached(gpu_pool: Any, reliability: Callable[[str, int], None]):
    """With 1,024 bytes more room each time."""
    used = []

    def room(number: int) -> AbstractContextManager:
        used.append(tm.device("cuda").pool.used_bytes())
        return memory.limit(used[0] + STEP * number, "cuda")

    failed = list(attempts(room, gpu_pool))
    assert len(failed) > 20
    reliability("training steps on a GPU within too low a limit", len(failed))
