"""Networks and techniques on a GPU have the bytes of their prediction event by event; CuPy's choices decide the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.chosen import reserved_as_chosen
from tests.memory.test_predict import LONG, SIZES, two_steps
from tests.predicted import compared_on_gpu
from tests.profiles import some
from tests.techniques.test_combinations import BUILT, MANY, train
from tinygrad_mem import memory

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("only_memory")]


def check(run: Callable[[], Any], gpu_pool: Any) -> None:
    """Each block of CuPy's is one that a replay may choose: so the replay of all choices has what CuPy reserves."""
    difference, found, said = compared_on_gpu(run)
    assert difference == ""
    assert reserved_as_chosen(found) == gpu_pool.total_bytes()  # of a pool that nobody emptied
    some = said.replay(2)
    assert found.peak == some.used <= some.low <= some.high


@pytest.mark.parametrize("name", some(list(SIZES), [*LONG, "lstm", "bert-tiny"]))
def test_networks(name: str, gpu_pool: Any):
    check(lambda: two_steps(name, *SIZES[name][0]), gpu_pool)


@pytest.mark.parametrize("use", [*(frozenset({name}) for name in BUILT), *MANY], ids=lambda use: "+".join(sorted(use)))
def test_techniques(use: frozenset[str], gpu_pool: Any):
    check(lambda: train(use), gpu_pool)


def test_what_cupy_gives_back_by_itself_is_reported(gpu_pool: Any):
    """At a limit, where room was made and where there was none: what the track has reserved is never more than the limit."""
    half = 1 << 19
    gpu_pool.set_limit(size=6 * half)

    def empty(halves: int) -> tm.Tensor:
        return tm.empty(halves * half, dtype=tm.uint8)

    with memory.track("cuda") as track, tm.device("cuda"):
        empty(2), empty(3)
        kept = empty(4)
        assert track.pool("end").reserved == gpu_pool.total_bytes() == 4 * half
        del kept
        gpu_pool.free_all_blocks()
        kept = empty(2)
        empty(3)
        with pytest.raises(tm.OutOfMemoryError, match="1,048,576 bytes are in use and 1,048,576 bytes are reserved"):
            empty(5)
        assert track.pool("end").reserved == gpu_pool.total_bytes() == 2 * half
    assert max(track.pool(event).reserved for event in range(len(track.log))) == 5 * half
    assert reserved_as_chosen(track) == 5 * half
    del kept
