"""Networks and techniques on a GPU have the bytes of their prediction event by event; reserved bytes are near its interval."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tinygrad_mem as tm
from tests.foretold import difference_on_gpu
from tests.memory.test_predict import SIZES, two_steps
from tests.techniques.test_combinations import BUILT, MANY, train
from tinygrad_mem import memory

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("gpu_pool", "only_memory")]


@pytest.mark.parametrize("name", SIZES)
def test_networks(name: str, gpu_pool: Any):
    size = SIZES[name][0]
    assert difference_on_gpu(lambda: two_steps(name, *size)) == ""
    gc.collect()
    gpu_pool.free_all_blocks()
    with tm.device("cuda"):
        two_steps(name, *size)  # a pool that nobody empties has in the end the most that it had
        said = memory.predict(two_steps, name, *size, like="cuda").replay()
    assert 0.99 * said.low <= gpu_pool.total_bytes() <= 1.01 * said.high  # of eight choices; CuPy makes one more


@pytest.mark.parametrize("use", [*(frozenset({name}) for name in BUILT), *MANY], ids=lambda use: "+".join(sorted(use)))
def test_techniques(use: frozenset[str]):
    assert difference_on_gpu(lambda: train(use)) == ""
