"""What listeners hear of CuPy's pool: the hook's part that needs no GPU."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from tinygrad_mem import scope


@pytest.fixture(autouse=True)
def needs_cupy() -> None:
    """It is imported when a test runs: before that the tests of CUDA put another driver under it."""
    pytest.importorskip("cupy")


class _Piece:
    """What CuPy's pool gives: itself and its memory in one."""

    def __init__(self, pool: object) -> None:
        self.pool, self.mem = pool, self


class _Bytes:
    total = 0

    def total_bytes(self) -> int:
        return self.total

    def malloc(self, size: int) -> _Piece:
        return _Piece(self)


class _Gpu:
    index = 0

    def __init__(self) -> None:
        from tinygrad_mem.devices.cuda_pool import CuPyPool

        self.cupys = _Bytes()
        self.pool = CuPyPool(self.cupys, nullcontext(), str(self))

    def __str__(self) -> str:
        return "cuda:0"


class _Ear(scope.Listener):
    def __init__(self) -> None:
        self.heard: list[tuple] = []

    def malloc(self, device: str, address: int, requested: int, rounded: int) -> None:
        self.heard.append(("malloc", device, address, requested, rounded))

    def free(self, device: str, address: int, rounded: int) -> None:
        self.heard.append(("free", device, address, rounded))

    def segment(self, device: str, address: int, size: int) -> None:
        self.heard.append(("segment", device, address, size))


def hooks(events) -> list:
    """The hooks of ``events`` that this thread has: an earlier test's may have stayed in it."""
    import cupy

    return [hook for hook in cupy.cuda.memory_hook.get_memory_hooks().values() if hook is events._hook]


def test_they_nest_and_overlaps_in_a_thread():
    from tinygrad_mem.devices.cuda_pool import PoolEvents

    events = PoolEvents(_Gpu())
    with events:
        with events:
            assert len(hooks(events)) == 1, "two tracks hear each event once"
        events.stay()
        assert len(hooks(events)) == 1
    assert hooks(events) == []
    events.__exit__()  # of a track that was begun in another thread
    assert hooks(events) == []


def test_every_thread_that_runs_an_op_is_heard():
    from tinygrad_mem.devices.cuda_pool import PoolEvents

    events, seen = PoolEvents(_Gpu()), []

    def work() -> None:
        seen.append(len(hooks(events)))
        events.stay()
        events.stay()
        seen.append(len(hooks(events)))

    with events:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [0, 1]


def test_what_the_hook_tells():
    from tinygrad_mem.devices.cuda_pool import PoolEvents

    ear, gpu = _Ear(), _Gpu()
    piece, another = gpu.cupys.malloc(700), _Piece(_Bytes())
    ours, anothers = id(piece), id(another)
    hook = PoolEvents(gpu)._hook
    scope.listen(ear)
    try:
        gpu.cupys.total = 1 << 20
        hook.alloc_postprocess(device_id=0, mem_size=1 << 20, mem_ptr=4096)
        hook.alloc_postprocess(device_id=0, mem_size=1 << 40, mem_ptr=0)  # the machine had no more
        hook.malloc_postprocess(device_id=0, size=700, mem_size=1024, mem_ptr=4096, pmem_id=ours)
        hook.malloc_postprocess(device_id=0, size=0, mem_size=0, mem_ptr=0, pmem_id=ours)  # nothing ever frees it
        hook.malloc_postprocess(device_id=0, size=700, mem_size=1024, mem_ptr=0, pmem_id=0)  # out of memory
        hook.alloc_postprocess(device_id=0, mem_size=1 << 20, mem_ptr=6144)
        hook.malloc_postprocess(device_id=0, size=700, mem_size=1024, mem_ptr=6144, pmem_id=anothers)
        hook.free_preprocess(device_id=0, mem_size=1024, mem_ptr=6144, pmem_id=anothers)
        hook.free_preprocess(device_id=0, mem_size=1024, mem_ptr=4096, pmem_id=ours)
        gpu.cupys.total = 1 << 21  # it has given back what it had, and tells of what it took instead
        hook.alloc_postprocess(device_id=0, mem_size=1 << 21, mem_ptr=8192)
        hook.malloc_postprocess(device_id=0, size=700, mem_size=1024, mem_ptr=8192, pmem_id=ours)
        gpu.cupys.total = 0
        gpu.pool.settle()
    finally:
        scope.unlisten(ear)
    hook.malloc_postprocess(device_id=0, size=700, mem_size=1024, mem_ptr=4096, pmem_id=ours)
    assert ear.heard == [
        ("segment", "cuda:0", 4096, 1 << 20),
        ("malloc", "cuda:0", 4096, 700, 1024),
        ("free", "cuda:0", 4096, 1024),
        ("segment", "cuda:0", 0, -(1 << 20)),
        ("segment", "cuda:0", 8192, 1 << 21),
        ("malloc", "cuda:0", 8192, 700, 1024),
        ("segment", "cuda:0", 0, -(1 << 21)),
    ]
