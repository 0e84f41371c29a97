"""Programs that use CuPy beside this library: arrays of both kinds, other pools, streams."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinygrad_mem as tm
from tests.interleave import interleavings
from tinygrad_mem import memory
from tinygrad_mem.errors import ArgumentError, ArgumentTypeError, DeviceError, DTypeError

pytestmark = pytest.mark.cuda

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


class Foreign:
    """Another library's array: nothing but the interface."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("foreign", [False, True], ids=["cupy", "interface"])
def test_as_tensor_shares_an_array_on_the_gpu_and_tensor_copies_it(gpu_pool: Any, dtype: str, foreign: bool):
    import cupy

    array = cupy.asarray(np.array([[0, 1, 1], [1, 0, 1]], dtype))[:, 1:]
    given = Foreign(array) if foreign else array
    shared, copied = tm.as_tensor(given), tm.tensor(given)
    for t in (shared, copied):
        assert (t.device, t.dtype, t.tolist()) == ("cuda:0", dtype, array.get().tolist())
    assert shared.stride() == (3, 1)
    array[...] = 0
    assert (shared.sum().item(), copied.sum().item()) == (0, 3)
    shared.fill_(1)
    assert array.get().all()


def test_the_dtype_and_device_of_a_tensor_of_a_gpus_array(gpu_pool: Any):
    import cupy

    array = cupy.arange(3, dtype="float32")
    assert tm.as_tensor(array, dtype=tm.float64).dtype == "float64"
    for make in (tm.as_tensor, tm.tensor):
        on_host = make(array, device="cpu")
        assert (on_host.device, on_host.tolist()) == ("cpu", [0.0, 1.0, 2.0])
        with tm.device("cpu"):
            assert make(array).device == "cpu", "a default device was set"
    assert tm.tensor(array, requires_grad=True).requires_grad
    assert tm.tensor(cupy.array(3.0)).item() == 3.0
    assert tm.as_tensor(cupy.empty((0, 3))).shape == (0, 3)
    x = tm.zeros(2, 3, device="cuda")
    x[1] = array
    assert x.tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]


@pytest.mark.parametrize("make", ["as_tensor", "from_dlpack"])
def test_a_shared_array_is_one_block_for_the_track_until_both_are_gone(gpu_pool: Any, make: str):
    import cupy

    with memory.track("cuda") as track:
        array = cupy.zeros(1000, "float32")
        mine = getattr(tm, make)(array)
        assert tm.cuda.memory_allocated() == track.pool("end").used == 4096
        (block,) = track.live()
        assert block.address == array.data.ptr
        del array
        assert tm.cuda.memory_allocated() == track.pool("end").used == 4096
        assert mine.sum().item() == 0
        del mine
    assert tm.cuda.memory_allocated() == track.pool("end").used == 0


def test_what_tensors_give_to_cupy(gpu_pool: Any):
    import cupy

    x = tm.arange(6.0, device="cuda").view(2, 3)
    for theirs in (cupy.asarray(x), cupy.from_dlpack(x)):
        assert theirs.data.ptr == x.data_ptr()
        theirs += 1
    assert x.tolist() == [[2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]
    kept = cupy.asarray(x)[1]
    del x, theirs
    gc.collect()
    assert kept.get().tolist() == [5.0, 6.0, 7.0]
    assert tm.as_tensor(kept).tolist() == [5.0, 6.0, 7.0]


def test_arithmetic_of_a_tensor_and_an_array(gpu_pool: Any):
    """An array is a constant, as NumPy's is on the CPU."""
    import cupy

    x, array = tm.ones(2, 2, device="cuda", requires_grad=True), cupy.full((2, 2), 3, "float32")
    for y in (x * array, array * x):
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[6.0, 6.0], [6.0, 6.0]]
    numbers: list[Any] = [np.float32(2), np.float64(2), cupy.array(2.0)]
    for number in numbers:
        for y in (x * number, number * x):
            assert (y.dtype, y.tolist()) == ("float32", [[2.0, 2.0], [2.0, 2.0]])


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "from_numpy": (lambda a, x: tm.from_numpy(a), ArgumentTypeError, r"expected np.ndarray \(got cupy.ndarray\); as_tensor"),
    "list": (lambda a, x: tm.tensor([a, a]), DeviceError, r"is on a GPU: as_tensor\(array\) shares .* array.get\(\) copies"),
    "Tensor": (lambda a, x: tm.Tensor(a), DeviceError, r"is on a GPU: as_tensor\(array\) shares .* array.get\(\) copies"),
    "complex": (lambda a, x: tm.as_tensor(a.astype("complex64")), DTypeError, "complex"),
    "negative stride": (lambda a, x: tm.as_tensor(a[::-1]), ArgumentError, "stride in the given cupy array is negative"),
    "complex operand": (lambda a, x: x * a.astype("complex64"), ArgumentTypeError, "must be Tensor or Number, not ndarray"),
    "numpy": (lambda a, x: np.asarray(x), DeviceError, r"Use Tensor.cpu\(\)"),
    "numpy's function": (lambda a, x: np.sin(x), DeviceError, r"Use Tensor.cpu\(\)"),
    "host operand": (lambda a, x: x + np.ones(2), ArgumentTypeError, "must be Tensor or Number, not ndarray"),
    "cpu tensor": (lambda a, x: tm.ones(2) * a, ArgumentTypeError, "must be Tensor or Number, not ndarray"),
    "product": (lambda a, x: x @ a, ArgumentTypeError, "must be Tensor, not ndarray"),
    "index": (lambda a, x: x[a > 0], ArgumentTypeError, r"valid indices \(got ndarray\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_words(gpu_pool: Any, name: str):
    import cupy

    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call(cupy.ones(2, "float32"), tm.ones(2, device="cuda"))


def a_step() -> None:
    weight = tm.ones(100, 100, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()


ALLOCATORS: dict[str, Callable[[Any], Any]] = {
    "another pool": lambda cuda: cuda.MemoryPool().malloc,
    "no pool": lambda cuda: None,
    "managed memory": lambda cuda: cuda.MemoryPool(cuda.malloc_managed).malloc,
    "managed memory without a pool": lambda cuda: cuda.malloc_managed,
    "memory in the order of streams": lambda cuda: cuda.malloc_async,
    "no memory": lambda cuda: lambda size: pytest.fail(f"CuPy's allocator was asked for {size} bytes"),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_tensors_are_in_the_pool_that_is_counted_whatever_cupys_allocator_is(gpu_pool: Any, name: str):
    import cupy

    a_step()  # takes the segments
    with memory.track("cuda") as plain:
        a_step()
    with cupy.cuda.using_allocator(ALLOCATORS[name](cupy.cuda)), memory.track("cuda") as track:
        a_step()
    assert track.peak == plain.peak > 80_000
    assert [event[:1] + event[3:5] for event in track.log] == [event[:1] + event[3:5] for event in plain.log]


@pytest.mark.parametrize("name", [name for name in ALLOCATORS if name != "no memory"])
def test_tensors_over_arrays_of_other_allocators_are_not_counted(gpu_pool: Any, name: str):
    import cupy

    with cupy.cuda.using_allocator(ALLOCATORS[name](cupy.cuda)):
        array = cupy.arange(1000, dtype="float32")
    with memory.track("cuda") as track:
        mine = tm.as_tensor(array).requires_grad_()
        del array
        (mine * 2).sum().backward()
        assert mine.grad is not None
        assert (mine.sum().item(), mine.grad.sum().item()) == (499500, 2000)
        assert track.pool("end").used == gpu_pool.used_bytes() == 4096, "the gradient alone"
        del mine
    assert track.pool("end").used == gpu_pool.used_bytes() == 0


def test_what_another_pool_gives_is_not_recorded(gpu_pool: Any):
    import cupy

    pool = cupy.cuda.MemoryPool()
    old = tm.ones(100, device="cuda")
    early = pool.malloc(5000)
    with memory.track("cuda") as track:
        for given in (pool.malloc, gpu_pool.malloc):
            with cupy.cuda.using_allocator(given):
                array = cupy.zeros(1000, "float32")
            ours = tm.as_tensor(array)
            y = ours * old.sum()
            assert track.pool("end").used == tm.cuda.memory_allocated() == gpu_pool.used_bytes()
            assert track.pool("end").reserved == tm.cuda.memory_reserved() == gpu_pool.total_bytes()
            del array, ours, y
        del early, old
    assert track.pool("end").used == 0
    assert sum(event.rounded for event in track.log if event.kind.name == "MALLOC") == 4096 + 4096 + 512 + 4096 + 512


def test_another_thread_uses_the_pool_that_is_counted(gpu_pool: Any):
    """CuPy's ``using_allocator`` is a thread's own."""
    kept: list[Any] = []
    thread = threading.Thread(target=lambda: kept.append(tm.ones(1000, device="cuda")))
    thread.start()
    thread.join()
    assert tm.cuda.memory_allocated() == gpu_pool.used_bytes() == 4096


def test_each_segment_is_reported_once_whoever_looks_while_it_is_taken(monkeypatch: pytest.MonkeyPatch):
    """CuPy's pool counts a segment before the driver gives it, which takes long: other threads run meanwhile."""
    import cupy

    from tinygrad_mem.devices.cuda_pool import CuPyPool

    cuda: Any = tm.device("cuda")

    def takes(size: int) -> Any:
        looker = threading.Thread(target=cuda.pool.settle)
        looker.start()
        looker.join()
        return cupy.cuda.memory._malloc(size)

    pool = cupy.cuda.MemoryPool(takes)
    monkeypatch.setattr(cuda, "pool", CuPyPool(pool, cuda._device, str(cuda)))
    with memory.track("cuda") as track:
        kept = [tm.ones(1000, device="cuda"), tm.ones(2000, device="cuda")]
        assert track.pool("end").reserved == pool.total_bytes() == 4096 + 8192
        del kept
        cuda.pool.free_all_blocks()
        assert track.pool("end").reserved == pool.total_bytes() == 0
    assert all(track.pool(event).reserved >= track.pool(event).used for event in range(len(track.log)))


def test_peaks_hold_whatever_two_threads_allocate(gpu_pool: Any):
    """The second allocates between two bytecodes of the first, which has already asked how much is in use."""
    from tinygrad_mem.devices import cuda_pool as module

    pool = tm.device("cuda").pool
    for both in interleavings(module.__file__):
        pool.reset_peak()
        kept = both(lambda: tm.empty(1000, device="cuda"), lambda: tm.empty(3000, device="cuda"))
        assert pool.peak_used == gpu_pool.used_bytes() == 4096 + 12288, "the peak that a thread saw is lost"
        assert pool.peak_total == gpu_pool.total_bytes()
        del kept


def test_what_another_thread_takes_between_two_questions_is_not_negative(gpu_pool: Any, monkeypatch: pytest.MonkeyPatch):
    """The driver and the pool are asked one after the other. The track could not be read: it had -512 bytes outside."""
    pool = tm.device("cuda").pool
    monkeypatch.setattr(type(pool), "total_bytes", lambda self: 1 << 60, raising=False)
    with memory.track("cuda") as track:
        kept = tm.ones(4, device="cuda")
    assert track.outside() == 0
    assert track.peak == 512
    del kept


def test_no_frame_of_an_interrupted_free_keeps_the_piece(gpu_pool: Any, monkeypatch: pytest.MonkeyPatch):
    """Python keeps the traceback of what is raised while memory is freed. One that held the piece made the collector crash."""
    from cupy.cuda.memory import PooledMemory

    from tinygrad_mem import scope

    class Interrupting(scope.Listener):
        def free(self, *args: Any) -> None:
            raise KeyboardInterrupt

    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_traceback))
    with scope.listening(Interrupting()):
        kept = tm.ones(4, device="cuda")
        del kept
    assert len(raised) == 1
    frames = [frame for frame, _ in traceback.walk_tb(raised[0])]
    assert "free_preprocess" in [frame.f_code.co_name for frame in frames]
    assert not [value for frame in frames for value in frame.f_locals.values() if isinstance(value, PooledMemory)]
