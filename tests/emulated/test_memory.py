"""The emulated device knows what was asked of the pool: reads and writes elsewhere are reported, memory runs out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from .device import Device
from .test_kernels import run, zeros

pytestmark = pytest.mark.cuda


def test_new_memory_is_full_of_junk(emulated: Device):
    import cupy

    for _ in range(2):  # also where the pool gives a block again
        x = cupy.empty(100, "float32")
        assert np.isnan(x.get()).all()
        x[...] = 1
        del x


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize("count", [1, 3, 7, 100, 129])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_the_first_element_beyond_an_array_is_found(emulated: Device, dtype: str, count: int, write: bool):
    kind = {"int8": "char", "float16": "short", "float32": "int", "float64": "long long"}[dtype]
    x, out = zeros(count, dtype=dtype), zeros(1, dtype="int64")
    body = "x[at] = 1;" if write else "out[0] = x[at];"
    run(body, x, out, np.int64(count - 1), block=1, parameters=f"{kind}* x, long long* out, long long at")
    assert emulated.problems() == []
    run(body, x, out, np.int64(count), block=1, parameters=f"{kind}* x, long long* out, long long at")
    what = f"{'writes' if write else 'reads'} {x.itemsize} bytes: beyond the end of an array"
    assert emulated.problems() == [f"kernel probe, thread (0, 0, 0) of block (0, 0, 0), {what}"]


@pytest.mark.parametrize(("kind", "size"), [("short", 2), ("float", 4), ("double", 8)])
@pytest.mark.parametrize("place", ["x", "part"], ids=["array", "shared"])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_a_number_at_no_multiple_of_its_size_is_found(emulated: Device, kind: str, size: int, place: str, write: bool):
    """An x86 takes it; on a GPU the program ends. That of a copy need be none: it moves bytes."""
    body = f"extern __shared__ char part[]; {kind}* at = ({kind}*)({place} + by), zero = {{}};"
    body += "*at = zero;" if write else f"*({kind}*)out = *at;"
    x, out = zeros(64, dtype="int8"), zeros(4)
    parameters = "char* x, float* out, int by"
    run(body, x, out, np.int32(size), block=1, shared=64, parameters=parameters)
    assert emulated.problems() == []
    run(body, x, out, np.int32(size // 2), block=1, shared=64, parameters=parameters)
    what = f"{'writes' if write else 'reads'} {size} bytes: their address is no multiple of that"
    assert emulated.problems() == [f"kernel probe, thread (0, 0, 0) of block (0, 0, 0), {what}"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_product_of_numbers_at_no_multiple_of_their_size_is_found(emulated: Device, dtype: str):
    import cupy

    x, y = zeros(9, dtype=dtype), zeros(2, 2, dtype=dtype)
    odd = cupy.ndarray((2, 2), dtype, cupy.cuda.MemoryPointer(x.data.mem, 2))
    cupy.matmul(odd, y)
    assert emulated.problems() == ["a product of cuBLAS reads: numbers at no multiple of their size"]


def test_memory_that_was_freed_is_found(emulated: Device):
    import cupy

    x = zeros(10)
    address = np.int64(x.data.ptr)
    del x
    run("*(float*)at = 1;", address, block=1, parameters="long long at")
    assert emulated.problems()[0].endswith("writes 4 bytes: device memory that was freed")
    cupy.get_default_memory_pool().free_all_blocks()
    run("*(float*)at = 1;", address, block=1, parameters="long long at")
    assert "device memory that" in emulated.problems()[0]


@pytest.mark.parametrize(("name", "said"), [("null", "a null pointer"), ("host", "memory of the host, or of nobody")])
def test_pointers_that_are_not_of_the_device_are_found(emulated: Device, name: str, said: str):
    here = np.zeros(4)
    run("*(float*)at = 1;", np.int64(0 if name == "null" else here.ctypes.data), block=1, parameters="long long at")
    assert emulated.problems()[0].endswith(f"writes 4 bytes: {said}")
    assert (here == 0).all()


def test_a_copy_beyond_an_array_is_found(emulated: Device):
    import cupy

    x, here = zeros(10), np.zeros(11, "float32")
    cupy.cuda.runtime.memcpy(here.ctypes.data, x.data.ptr, 44, cupy.cuda.runtime.memcpyDeviceToHost)
    assert emulated.problems() == ["a copy reads: 44 bytes that are not all one array's: beyond the end of an array"]
    cupy.cuda.runtime.memset(x.data.ptr, 0, 41)
    assert emulated.problems() == ["a memset writes: 41 bytes that are not all one array's: beyond the end of an array"]


def test_a_copy_of_all_that_the_pool_gave_is_right(emulated: Device):
    """What was rounded up is the program's too; part of it is nobody's array."""
    import cupy

    x, here = zeros(10), np.zeros(512, "uint8")
    cupy.cuda.runtime.memcpy(here.ctypes.data, x.data.ptr, 512, cupy.cuda.runtime.memcpyDeviceToHost)
    assert emulated.problems() == []
    cupy.cuda.runtime.memcpy(here.ctypes.data, x.data.ptr, 508, cupy.cuda.runtime.memcpyDeviceToHost)
    assert emulated.problems() == ["a copy reads: 508 bytes that are not all one array's: beyond the end of an array"]


def test_memory_of_another_pool_is_known(emulated: Device):
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        for _ in range(2):  # the second time where the first array was
            x = cupy.empty(100, "float32")
            assert np.isnan(x.get()).all()
            x[...] = 1
            del x
        assert emulated.problems() == []


def test_empty_arrays_and_copies(emulated: Device):
    import cupy

    x = cupy.empty((0, 3), "float32")
    assert x.get().shape == (0, 3)
    assert cupy.cuda.runtime.malloc(0) == 0
    cupy.cuda.runtime.memcpy(0, 0, 0, cupy.cuda.runtime.memcpyHostToDevice)


def test_cub_and_thrust_are_refused(emulated: Device):
    """CuPy would give them its own sums and sorts, and the reduction of one array; one of ours it runs by itself."""
    import cupy

    from tinygrad_mem.kernels.cupy.fused import Reduction

    x, out = cupy.ones(5000, "float32"), cupy.empty((), "float32")
    formula = "T x", "T y", "x", "a + b", "y = a", "0", "sum_of_all"
    for call in (x.sum, x.max, x.sort, x.cumsum, lambda: cupy.ReductionKernel(*formula)(x), lambda: cupy.all(x > 0)):
        with pytest.raises(RuntimeError, match="CuPy takes memory for it that nobody asked for"):
            call()
    Reduction(*formula)(x, out=out)
    assert out.get() == 5000


def test_another_thread_allocates_and_frees(emulated: Device):
    found: list[Any] = []

    def work() -> None:
        x = zeros(5)
        x += 1
        found.append(x.get().tolist())
        found.append(np.int64(x.data.ptr))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found[0] == found[2] == [1.0] * 5
    run("*(float*)at = 1;", found[1], block=1, parameters="long long at")
    assert emulated.problems()[0].endswith("writes 4 bytes: device memory that was freed")


def test_an_array_that_a_thread_frees_which_never_allocates_is_gone(emulated: Device):
    """CuPy's hooks are a thread's own: nobody is told of what the garbage collector frees in a thread of pytest-xdist."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        large = cupy.empty(1536, "uint8")
        place = large.data.ptr
        del large
        pieces = {a.data.ptr - place: a for a in [cupy.zeros(128, "float32") for _ in range(3)]}
        thread = threading.Thread(target=pieces.pop, args=(512,))  # nothing holds what it returns
        thread.start()
        thread.join()
        pieces.clear()
        large = cupy.zeros(384, "float32")
        assert large.data.ptr == place
    out = zeros(256)
    run("out[threadIdx.x] = x[threadIdx.x];", large[128:], out, block=256, parameters="float* x, float* out")
    assert emulated.problems() == []
    assert (out.get() == 0).all()


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_the_neighbour_of_an_array_that_fills_its_piece_is_found(emulated: Device, write: bool):
    """The pool gives by 512 bytes: an array of that size has no room behind it, and the next one may begin there."""
    import cupy

    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        large = cupy.empty(2048, "uint8")
        del large
        first, second = cupy.zeros(128, "float32"), cupy.zeros(128, "float32")
    low, high = sorted((first, second), key=lambda a: a.data.ptr)
    assert high.data.ptr == low.data.ptr + 512
    out = zeros(1)
    body = "x[at] = 1;" if write else "out[0] = x[at];"
    run(body, low, out, np.int64(127), block=1, parameters="float* x, float* out, long long at")
    assert emulated.problems() == []
    run(body, low, out, np.int64(128), block=1, parameters="float* x, float* out, long long at")
    (problem,) = emulated.problems()
    assert problem.endswith(f"{'writes' if write else 'reads'} 4 bytes: an array that the kernel was not given")
    run(body, low[100:], high, np.int64(28), block=1, parameters="float* x, float* out, long long at")
    assert emulated.problems() == []  # it was given
    here = np.zeros(129, "float32")
    cupy.cuda.runtime.memcpy(here.ctypes.data, low.data.ptr, 516, cupy.cuda.runtime.memcpyDeviceToHost)
    assert emulated.problems() == ["a copy reads: 516 bytes that are not all one array's: into the next array"]


def test_a_failed_allocation_is_no_event(emulated: Device):
    """CuPy calls its hooks all the same, with address 0: no listener may hear of a block that nobody frees."""
    import cupy

    import tinygrad_mem as tm
    from tinygrad_mem import memory
    from tinygrad_mem.memory.log import Kind

    hooks: Any = cupy.cuda.memory_hook
    addresses: list[int] = []

    class Addresses(hooks.MemoryHook):
        name = "addresses"

        def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:
            addresses.append(mem_ptr)

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    used = pool.used_bytes()
    with memory.Track("cuda") as track, emulated.refusing(), Addresses(), pytest.raises(tm.OutOfMemoryError):
        tm.empty(1 << 21, device="cuda")
    assert 0 in addresses
    assert [event for event in track.log if event.kind == Kind.MALLOC] == []
    assert pool.used_bytes() == used


def test_a_device_of_a_given_size_is_full(emulated: Device, gpu_pool: Any):
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    with emulated.capacity(total - free + (1 << 20)):
        kept = cupy.empty(1 << 20, "uint8")
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(1 << 20, "uint8")
        del kept
        assert cupy.empty(1 << 20, "uint8").size == 1 << 20


def test_a_driver_that_refuses(emulated: Device, gpu_pool: Any):
    import cupy

    with emulated.refusing(after=1):
        kept = cupy.empty(3 << 20, "uint8")
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(5 << 20, "uint8")
    assert cupy.empty(5 << 20, "uint8").size == 5 << 20
    del kept


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batched"])
@pytest.mark.parametrize("sizes", [(5, 7, 3), (1, 4, 6), (8, 8, 0)], ids=str)
def test_products_equal_numpys(emulated: Device, dtype: str, batch: tuple[int, ...], sizes: tuple[int, int, int]):
    import cupy

    m, n, k = sizes
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (*batch, m, k)).astype(dtype), rng.integers(-4, 5, (*batch, k, n)).astype(dtype)
    right = (a.astype("float64") @ b.astype("float64")).astype(dtype)  # whole numbers: no rounding in any type
    turned = cupy.asarray(np.ascontiguousarray(a.swapaxes(-1, -2))).swapaxes(-1, -2)
    for left in (cupy.asarray(a), turned):
        found = left @ cupy.asarray(b)
        assert found.dtype == dtype
        assert (found.get() == right).all()


def test_a_product_that_leaves_its_matrix_is_found(emulated: Device):
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    x, one = zeros(4, 4), np.ones(1, "float32")
    handle = device.get_cublas_handle()
    scalar = one.ctypes.data
    cublas.sgemm(handle, 0, 0, 4, 4, 4, scalar, x.data.ptr, 4, x.data.ptr + 16, 4, scalar, x.data.ptr, 4)
    assert "a product of cuBLAS reads: 16 bytes" in emulated.problems()[0]
    with pytest.raises(cublas.CUBLASError):
        cublas.sgemm(handle, 0, 0, 4, 4, 4, scalar, x.data.ptr, 3, x.data.ptr, 4, scalar, x.data.ptr, 4)
    assert "leading dimension" in emulated.problems()[0]


def test_what_is_not_emulated_says_so(emulated: Device):
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    x = zeros(4)
    with pytest.raises(cublas.CUBLASError):
        cublas.isamax(device.get_cublas_handle(), 4, x.data.ptr, 1, zeros(1, dtype="int32").data.ptr)
    assert emulated.problems() == ["not emulated: cublasIsamax_v2"]
