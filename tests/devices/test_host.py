"""The host of a device, as a device: what lies there is computed by the cpu, and counted in a pool of its own."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import tinygrad_mem as tm
from tinygrad_mem import memory
from tinygrad_mem.memory import Category


def test_tensors_on_it_are_counted_there_and_computed(dev: str):
    where = tm.device(dev)
    host = where.host()
    assert host is where.host()
    assert tm.device(host) is host
    assert (host.type, host.pool, host.host_of) == ("cpu", where.pool.host(), where)
    before = where.pool.used_bytes()
    with memory.Track(host) as track, host:
        x = tm.arange(200.0, requires_grad=True)
        memory.mark("made")
        x.square().sum().backward()
    assert track.by_category("made") == {Category.INPUT: 1024}
    assert where.pool.used_bytes() == before
    assert host.pool.used_bytes() == 2048
    assert x.grad.device is host
    np.testing.assert_array_equal(x.grad.numpy(), 2 * np.arange(200))
    np.testing.assert_array_equal(x.detach().to(where).cpu().numpy(), np.arange(200))


def test_a_prediction_counts_it_as_the_run():
    def run() -> tuple[int, int]:
        host = tm.device("cpu").host()
        assert tm.device(host) is host
        with memory.Track(host) as track, host:
            x = tm.ones(300, requires_grad=True)
            assert x.device is host
            x.square().sum().backward()
            x.detach().norm().item()
            memory.mark("end")
        return track.peak, sum(track.by_category("end").values())

    found = [run()]
    for like in ("cpu", "cuda"):
        memory.predict(lambda: found.append(run()), like=like)
    assert found[0][0] > found[0][1] == 3072
    assert len(set(found)) == 1


def test_it_is_another_device_than_the_one_beside_it():
    host = tm.device("cpu").host()
    with pytest.raises(tm.errors.DeviceError, match=r"found \[2\] on cpu \(the host of cpu\), \[2\] on cpu\. Move them"):
        tm.ones(2, device=host) * tm.ones(2)


def test_its_pool_keeps_no_device_alive():
    host = tm.device("cpu").host()
    known = weakref.ref(host)
    gc.disable()
    try:
        del host
        assert known() is None
    finally:
        gc.enable()


def test_out_of_memory_there_tells_the_owners():
    host = tm.device("cpu").host()
    with memory.limit(1 << 20, host), host:
        x = tm.zeros(1 << 17, requires_grad=True)
        y = x.exp()
        with pytest.raises(tm.errors.OutOfMemoryError, match=r"(?s)out of memory on host: .*512\.00 KiB  Exp, which keeps y"):
            y * 2
