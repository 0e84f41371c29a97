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
    reliability("training steps on a GPU under a limit that is too low", len(failed))


# --- loading


def layers(where: str, fill: float) -> Any:
    """Small layers before large ones: the last ones are those that do not fit."""
    net = tm.nn.Sequential(*[tm.nn.Linear(4**i, 4 ** (i + 1), device=where) for i in range(4)])
    for p in net.parameters():
        p.detach().fill_(fill)
    return net


def values(net: Any) -> set[float]:
    return {value for tensor in net.state_dict().values() for value in tensor.flatten().tolist()}


def test_loading_from_the_host_takes_no_memory_of_a_gpu():
    net, state = layers("cuda", 1.0), layers("cpu", 2.0).state_dict()
    tm.device("cuda").pool.free_all_blocks()
    with memory.limit(tm.device("cuda").pool.total_bytes(), "cuda"):
        net.load_state_dict(state)
    assert values(net) == {2.0}
    net.half().load_state_dict(layers("cpu", 3.0).state_dict())
    assert values(net) == {3.0}


def test_a_module_is_loaded_whole_or_not_at_all(gpu_pool: Any, reliability: Callable[[str, int], None]):
    """From a GPU, through copies on the host; and into the transpose of a parameter, through one on the GPU."""
    with tm.no_grad():
        turned = layers("cuda", 1.0)
        for layer in turned:
            layer.weight = tm.nn.Parameter(tm.ones(layer.in_features, layer.out_features, device="cuda").t())
    failed = sum(refused("cpu", layers("cpu", 1.0), layers("cuda", 2.0)))
    failed += sum(refused("cuda", turned, layers("cpu", 2.0)))
    assert failed > 20
    reliability("loads under a limit that is too low", failed)


def refused(limited: str, net: Any, other: Any) -> Iterator[int]:
    """Loads with more and more room, until one goes through."""
    pool, state = tm.device(limited).pool, other.state_dict()
    gc.collect()
    pool.free_all_blocks()
    used = pool.used_bytes()
    for room in range(0, 1 << 20, STEP):
        try:
            with memory.limit(used + room, limited):
                net.load_state_dict(state)
            break
        except tm.OutOfMemoryError as caught:
            error = caught  # it is held on purpose: its traceback must pin nothing
        assert values(net) == {1.0}
        assert pool.used_bytes() == used, f"{error} pins memory"
        pool.free_all_blocks()
        yield 1
    assert values(net) == {2.0}


@pytest.mark.parametrize("what", ["load", "optimizer"])
def test_a_file_and_the_state_of_an_optimizer_are_loaded_whole_or_not_at_all(what: str, tmp_path: Any, gpu_pool: Any):
    net = layers("cuda", 1.0)
    rule = tm.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    net(tm.ones(2, 1, device="cuda")).sum().backward()
    rule.step()
    tm.save(rule.state_dict(), tmp_path / "state")
    state = tm.load(tmp_path / "state", map_location="cpu")
    before, used, count = [rule.state[p]["momentum_buffer"] for p in net.parameters()], gpu_pool.used_bytes(), 0
    gpu_pool.free_all_blocks()
    for room in range(0, 1 << 20, STEP):
        try:
            with memory.limit(used + room, "cuda"):
                found = tm.load(tmp_path / "state", map_location="cuda") if what == "load" else rule.load_state_dict(state)
            break
        except tm.OutOfMemoryError as caught:
            error = caught
        assert gpu_pool.used_bytes() == used, f"{error} pins memory"
        assert all(rule.state[p]["momentum_buffer"] is old for p, old in zip(net.parameters(), before, strict=True))
        gpu_pool.free_all_blocks()
        count += 1
    assert count > 5
    del found
