"""A second GPU, and CuPy's current device and stream: the library works on its tensors' device, and on the current stream."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.emulated.device import Device
from tests.emulated.offered import ran, runs
from tests.profiles import every
from tinygrad_mem import memory, nn
from tinygrad_mem.devices import base
from tinygrad_mem.errors import DeviceError
from tinygrad_mem.techniques import save_on_cpu

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def two(emulated: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A machine with two GPUs. A kernel that is launched for one on memory or a stream of the other is a problem."""
    import cupy

    known = {key: each for key, each in base._instances.items() if key[0] != "cuda"}
    monkeypatch.setattr(base, "_instances", known)
    with emulated.devices(2):
        pool = type(cupy.get_default_memory_pool())()  # CuPy's counts the GPUs when it is made
        monkeypatch.setattr(cupy, "_default_memory_pool", pool)
        with cupy.cuda.using_allocator(pool.malloc):
            yield emulated
        gc.collect()
        for index in range(2):
            with cupy.cuda.Device(index):
                pool.free_all_blocks()


def trained(place: str, pinned: bool = False) -> list[list]:
    """Three steps."""
    rng = np.random.default_rng(0)
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 3))
    with tm.no_grad():
        for p in model.parameters():
            p.copy_(tm.tensor(rng.standard_normal(tuple(p.shape)), dtype=tm.float32))
    model.to(place)
    optimizer = tm.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x, y = tm.tensor(rng.standard_normal((5, 4)), dtype=tm.float32, device=place), tm.tensor([0, 1, 2, 0, 1], device=place)
    for _ in range(3):
        optimizer.zero_grad()
        with save_on_cpu(pin_memory=pinned):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return [p.detach().cpu().tolist() for p in model.parameters()]


@pytest.mark.parametrize("place", ["cuda:0", "cuda:1"])
@pytest.mark.parametrize("current", [0, 1])
def test_a_step_is_the_cpus_whichever_gpu_is_current(two: Device, place: str, current: int):
    import cupy

    expected = trained("cpu")
    used = [tm.cuda.memory_allocated(index) for index in range(2)]
    with cupy.cuda.Device(current), memory.track(place) as track:
        found = trained(place)
        assert cupy.cuda.Device().id == current
    assert all(np.allclose(a, b, 1e-4, 1e-5) for a, b in zip(found, expected, strict=True))
    assert track.peak > 4096
    assert [tm.cuda.memory_allocated(index) for index in range(2)] == used
    assert tm.cuda.max_memory_allocated(place) >= used[int(place[-1])] + track.peak


def test_whatever_is_offered_runs_on_the_second(two: Device):
    """As on the first, with its own kernels and memory: the device reports each launch for the wrong one."""
    offered = [*runs()]
    number = every(80)
    with two.mode(late="idle"):
        for name, run in offered[::number]:
            if said := ran(run, "cuda:1"):
                assert ran(run, "cuda:0").replace("cuda:0", "cuda:1") == said, name
            assert two.problems() == [], name
    assert len(offered) > 1000


def test_tensors_go_from_one_to_the_other_and_are_not_mixed(two: Device):
    import cupy

    x = tm.arange(6.0, device="cuda:1").view(2, 3)
    y = x.T.to("cuda:0")
    assert (y.device, y.tolist()) == ("cuda:0", [[0, 3], [1, 4], [2, 5]])
    assert y.to("cuda:1").tolist() == y.tolist()
    with pytest.raises(DeviceError, match=r"same device, found .* on cuda:0, .* on cuda:1"):
        y + x.T
    with cupy.cuda.Device(1):
        array = cupy.arange(3.0)
        assert tm.ones(2, device="cuda").device == "cuda:0"
    for mine in (tm.as_tensor(array), tm.from_dlpack(array)):
        assert (mine.device, (mine * 2).tolist()) == ("cuda:1", [0, 2, 4])
    assert tm.tensor(array, device="cuda:0").tolist() == [0, 1, 2]
    assert tm.from_dlpack(x.__dlpack__()).device == "cuda:1"
    with pytest.raises(DeviceError, match=r"has 2 GPU\(s\), cuda:0 to cuda:1"):
        tm.ones(1, device="cuda:2")


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_step_on_another_stream(gpu_pool: Any, blocking: bool, pinned: bool):
    import cupy

    expected = trained("cuda", pinned)
    with memory.track("cuda") as plain:
        trained("cuda", pinned)
    with cupy.cuda.Stream(non_blocking=not blocking), memory.track("cuda") as track:
        found = trained("cuda", pinned)
    assert found == expected
    assert track.peak == plain.peak
    gc.collect()
    assert gpu_pool.used_bytes() == 0
