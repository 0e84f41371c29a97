"""The emulated device runs the threads of a block as CUDA says: barriers, shuffles, votes, atomics, shared memory."""

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from .device import ORDERS, Device
from .sources import for_host

pytestmark = pytest.mark.cuda


def run(body: str, *arrays: Any, grid: int = 1, block: int = 32, shared: int = 0, parameters: str = "", head: str = "") -> None:
    """Launch a kernel with the given body; its arguments are arrays and numbers."""
    import cupy

    source = f'{head}\nextern "C" __global__ void probe({parameters}) {{\n{body}\n}}'
    cupy.RawKernel(source, "probe")((grid,), (block,), arrays, shared_mem=shared)


def zeros(*shape: int, dtype: str = "float32") -> Any:
    import cupy

    return cupy.zeros(shape, dtype)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_orders_shared_memory(emulated: Device, order: str):
    out = zeros(3, 70, dtype="int32")
    body = """
    __shared__ int part[70];
    part[threadIdx.x] = threadIdx.x * 10 + blockIdx.x;
    __syncthreads();
    out[blockIdx.x * 70 + threadIdx.x] = part[69 - threadIdx.x];
    """
    with emulated.mode(order):
        run(body, out, grid=3, block=70, parameters="int* out")
        found = out.get()
    assert (found == (69 - np.arange(70)) * 10 + np.arange(3)[:, None]).all()


def test_a_missing_barrier_shows_in_some_order(emulated: Device):
    body = "__shared__ int part[64]; part[threadIdx.x] = 7; out[threadIdx.x] = part[63 - threadIdx.x];"
    right = []
    for order in ("forward", "backward"):
        out = zeros(64, dtype="int32")
        with emulated.mode(order):
            run(body, out, block=64, parameters="int* out")
            right.append((out.get() == 7).all())
    assert right == [False, False]  # shared memory is full of junk when a block starts


def test_an_overwritten_array_shows_in_one_order_only(emulated: Device):
    """Each thread reads its neighbour's place before the neighbour writes it, but only if it comes first."""
    body = "int next = x[threadIdx.x + 1]; x[threadIdx.x] = next;"
    found = {}
    for order in ("forward", "backward"):
        import cupy

        x = cupy.arange(33, dtype="int32")
        with emulated.mode(order):
            run(body, x, block=32, parameters="int* x")
            found[order] = (x.get()[:32] == np.arange(1, 33)).all()
    assert found == {"forward": True, "backward": False}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if (threadIdx.x < 40) __syncthreads(); out[0] = 1;", "__syncthreads that some threads of the block do not reach"),
        (
            "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();",
            "threads of a block meet at different __syncthreads",
        ),
        ("if (threadIdx.x & 1) __syncwarp(0x0000ffffu);", "a lane calls a warp function that does not name it"),
        ("if (threadIdx.x == 3) return; __syncwarp();", "a warp function names lanes that have left"),
        (
            "if (threadIdx.x == 3) __syncthreads(); else __syncwarp(); __syncthreads();",
            "some lanes of a warp wait at __syncthreads and others at a warp function",
        ),
        (
            "if (threadIdx.x & 1)\nout[0] = __shfl_xor_sync(~0u, 1, 1);\nelse\nout[1] = __shfl_xor_sync(~0u, 2, 1);",
            "lanes of a warp meet at different warp functions",
        ),
    ],
)
def test_threads_that_miss_one_another_are_reported(emulated: Device, body: str, said: str):
    run(body, zeros(4, dtype="int32"), block=64, parameters="int* out")
    problems = emulated.problems()
    assert any(said in problem and "kernel probe" in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__shfl_xor_sync(~0u, lane, 5)", lambda lane: lane ^ 5),
        ("__shfl_sync(~0u, lane, 7)", lambda lane: np.full(32, 7)),
        ("__shfl_sync(~0u, lane, 1, 8)", lambda lane: lane // 8 * 8 + 1),
        ("__shfl_down_sync(~0u, lane, 3)", lambda lane: np.where(lane + 3 < 32, lane + 3, lane)),
        ("__shfl_down_sync(~0u, lane, 3, 16)", lambda lane: np.where(lane % 16 + 3 < 16, lane + 3, lane)),
        ("__shfl_up_sync(~0u, lane, 3)", lambda lane: np.where(lane >= 3, lane - 3, lane)),
        ("(int)__ballot_sync(~0u, lane % 3 == 0)", lambda lane: np.full(32, np.uint32(0x49249249).astype("int32"))),
        ("__any_sync(~0u, lane == 31)", lambda lane: np.full(32, 1)),
        ("__all_sync(~0u, lane != 31)", lambda lane: np.full(32, 0)),
        ("__popc(__ballot_sync(~0u, true))", lambda lane: np.full(32, 32)),
    ],
)
@pytest.mark.parametrize("order", ["forward", "backward"])
def test_warp_functions(emulated: Device, call: str, expected: Any, order: str):
    out = zeros(32, dtype="int32")
    with emulated.mode(order):
        run(f"int lane = threadIdx.x; out[lane] = {call};", out, parameters="int* out")
        found = out.get()
    assert found.tolist() == np.asarray(expected(np.arange(32))).tolist()


def test_a_warp_function_of_a_part_of_a_warp(emulated: Device):
    out = zeros(32, dtype="int32")
    run("int i = threadIdx.x; if (i < 16) out[i] = __shfl_xor_sync(0xffffu, i, 1);", out, parameters="int* out")
    assert out.get().tolist() == [i ^ 1 for i in range(16)] + [0] * 16


@pytest.mark.parametrize("kind", ["int", "unsigned", "unsigned long long", "float", "double"])
def test_atomics_lose_nothing(emulated: Device, kind: str):
    dtypes = {"unsigned": "uint32", "unsigned long long": "uint64", "float": "float32", "double": "float64", "int": "int32"}
    out = zeros(1, dtype=dtypes[kind])
    run(f"atomicAdd(out, ({kind})1);", out, grid=5, block=100, parameters=f"{kind}* out")
    assert out.get()[0] == 500


def test_atomic_exchanges_and_extrema(emulated: Device):
    out = zeros(4, dtype="int32")
    body = """
    int i = threadIdx.x + 1;
    atomicMax(out, i); atomicMin(out + 1, -i);
    if (i == 1) { out[2] = atomicCAS(out + 3, 0, 5); atomicExch(out + 3, atomicCAS(out + 3, 4, 6) + 1); }
    """
    run(body, out, parameters="int* out")
    assert out.get().tolist() == [32, -32, 0, 6]


def test_half_arithmetic_rounds_after_each_step(emulated: Device):
    import cupy

    x = cupy.asarray(np.float16([2048, 0.1, 6e-8, 60000]))
    y = cupy.asarray(np.float16([1, 0.2, 3e-8, 60000]))
    out = cupy.empty_like(x)
    head = "#include <cuda_fp16.h>"
    run(
        "int i = threadIdx.x; out[i] = __hadd(x[i], y[i]);",
        x,
        y,
        out,
        block=4,
        parameters="__half* x, __half* y, __half* out",
        head=head,
    )
    with np.errstate(over="ignore"):
        assert out.get().tolist() == (x.get() + y.get()).tolist()


def test_dynamic_shared_memory_has_the_size_that_was_asked(emulated: Device):
    body = "extern __shared__ float part[]; part[threadIdx.x + beyond] = 3; __syncthreads();"
    body += "out[threadIdx.x] = part[31 - threadIdx.x];"
    out = zeros(32)
    run(body, out, np.int32(0), shared=128, parameters="float* out, int beyond")
    assert (out.get() == 3).all()
    run(body, out, np.int32(1), shared=128, parameters="float* out, int beyond")
    (problem,) = emulated.problems()
    assert problem == "kernel probe, thread (31, 0, 0) of block (0, 0, 0), writes 4 bytes: beyond an array in shared memory"


def test_two_forms_of_a_template_have_shared_memory_each(emulated: Device):
    head = """
    template <class T> __device__ void put(T* out) {
        __shared__ T part[2][16], one;
        part[threadIdx.x / 16][threadIdx.x % 16] = threadIdx.x; if (threadIdx.x == 0) one = 5;
        __syncthreads();
        out[threadIdx.x] = part[1][15 - threadIdx.x % 16] + one;
    }"""
    a, b = zeros(32), zeros(32, dtype="float64")
    run("put(a); put(b);", a, b, parameters="float* a, double* b", head=head)
    expected = [36 - i % 16 for i in range(32)]
    assert a.get().tolist() == expected
    assert b.get().tolist() == expected


def test_a_launch_out_of_range_is_refused(emulated: Device):
    import cupy

    with pytest.raises(cupy.cuda.driver.CUDADriverError):
        run("", block=1025)
    assert emulated.problems() == ["launch of kernel probe refused: grid, block or shared memory is out of range"]


def test_mixed_runs_some_launches_each_way(emulated: Device):
    """A sum of floats by atomics depends on the order: a run that is repeated in this mode shows it."""
    import cupy

    x = cupy.asarray(np.random.default_rng(0).standard_normal(256).astype("float32") * 1e4)
    found = set()
    with emulated.mode("mixed"):
        for _ in range(8):
            out = zeros(1)
            run("atomicAdd(out, x[threadIdx.x]);", x, out, block=256, parameters="float* x, float* out")
            found.add(float(out.get()[0]))
    assert len(found) == 2


def test_a_kernel_runs_on_fibers_if_it_or_what_it_uses_waits():
    """By the name of each kernel: whether it needs fibers, and whether the order of its threads matters."""
    kernel = 'extern "C" __global__ void '
    waits = kernel + "waits(int* x) { if (x) { __syncthreads(); } }\n"
    adds = 'extern "C" __global__ __launch_bounds__(128) void adds(int* x) { atomicAdd(x, 1); }\n'
    plain = kernel + "plain(int* x) { *x = 1; }\n"
    function = "/* made (of { */ // two (ways) {\ntemplate <class T> "
    function += "__device__ inline void both(T waits) { __shared__ T y[2]; __syncthreads(); }\n"
    through = "__device__ void through(int x) {\n    for (;;) { both(x); }\n}\n"
    calls = kernel + "calls(int* x) { if (x) { through(*x); } }\n"
    macro = "#define MEET(x) \\\n    __syncwarp()\n#define SIZE (3)\n"
    meets = kernel + "meets(int* x) { MEET(x); }\n"
    held = "struct Held { int y; __device__ void wait() { __syncthreads(); } };\nconst int table[] = {1, 2};\n"
    holds = kernel + "holds(Held x, int y) { x.wait(); }\n"

    def entries(source: str) -> dict[str, tuple[str, str]]:
        found = re.findall(r"EMU_KERNEL\((\w+), (\d), (\d)\)", for_host(source))
        return {name: (fibers, order) for name, fibers, order in found}

    assert entries(plain + waits + adds) == {"plain": ("0", "0"), "waits": ("1", "0"), "adds": ("0", "1")}
    assert entries(function + plain + through + adds + calls) == {"plain": ("0", "0"), "adds": ("0", "1"), "calls": ("1", "1")}
    named = kernel + "named(int* x) { int waits = *x; *x = waits; }\n"
    assert entries(waits + named) == {"waits": ("1", "0"), "named": ("0", "0")}
    assert entries(macro + plain + meets) == {"plain": ("0", "0"), "meets": ("1", "0")}
    assert entries(held + plain + holds) == {"plain": ("0", "0"), "holds": ("1", "0")}
    assert entries("namespace own { __device__ void f() { __syncthreads(); } }\n" + plain) == {"plain": ("1", "0")}


def test_a_kernel_that_waits_without_fibers_is_reported(emulated: Device, monkeypatch: pytest.MonkeyPatch):
    """What ``sources.py`` overlooks ends no block in silence."""
    import cupy

    from . import sources

    monkeypatch.setattr(sources, "_WAITS", re.compile("nothing waits"))
    source = 'extern "C" __global__ void overlooked(int* x) { __syncthreads(); x[threadIdx.x] = 1; }'
    cupy.RawKernel(source, "overlooked")((2,), (32,), (zeros(32, dtype="int32"),))
    assert emulated.problems() == ["kernel overlooked: its threads wait for one another, and the emulator did not know it"]


@pytest.mark.parametrize(("kind", "dtype", "expected"), [("float", "float32", 0), ("double", "float64", 2.0**-130 * 2.0**30)])
def test_subnormal_float32_numbers_are_0_in_a_kernel(emulated: Device, kind: str, dtype: str, expected: float):
    """Those that are read, those that are computed, and those of which libm knows the bits; float64's are not."""
    import cupy

    x, out = cupy.asarray(np.array([2.0**-130, 2.0**-100], dtype)), zeros(6, dtype=dtype)
    body = f"out[0] = x[0] * ({kind})1073741824; out[1] = x[1] * x[1] * ({kind})1e30;"
    body += f"out[2] = log(x[0]); out[3] = pow(x[0], 0); out[4] = fmod(({kind})1, x[0]); out[5] = fmod(x[0], ({kind})1);"
    run(body, x, out, block=1, parameters=f"{kind}* x, {kind}* out")
    found = out.get()
    with np.errstate(divide="ignore"):
        assert found[0] == expected
        assert (found[1] == 0) is np.bool_(dtype == "float32")
        assert found[2] == np.log(np.array(expected and 2.0**-130, dtype))
    assert found[3] == 1
    assert np.isnan(found[4]) == (dtype == "float32")
    assert found[5] == (0 if dtype == "float32" else 2.0**-130)


@pytest.mark.parametrize("seen", [False, True])
def test_comparisons_may_see_subnormal_numbers_that_sums_make_0(emulated: Device, seen: bool):
    import cupy

    x, out = cupy.asarray(np.array([1e-45, -1e-45], np.float32)), zeros(4, dtype="int32")
    body = "out[0] = x[0] > 0; out[1] = x[1] < x[0]; out[2] = x[0] + 0.0f > 0; out[3] = x[1] + 0.0f < x[0] + 0.0f;"
    with emulated.comparing_subnormals() if seen else nullcontext():
        run(body, x, out, block=1, parameters="float* x, int* out")
        found = out.get().tolist()
    assert found == [seen, seen, 0, 0]


@pytest.mark.parametrize(
    ("body", "value", "said"),
    [
        ("out[0] = 1 << (int)x;", 32, "shifts by as many bits as the number has, or more"),
        ("out[0] = 1 << (int)x;", 31, ""),
        ("out[0] = (int)x;", 2.0**31, "makes an integer of a float that is out of its range"),
        ("out[0] = (int)x;", np.nan, "makes an integer of a float that is out of its range"),
        ("out[0] = (int)x;", -(2.0**31), ""),
        ("out[0] = (unsigned char)x;", -1, "makes an integer of a float that is out of its range"),
    ],
)
def test_where_x86_computes_another_integer_than_a_gpu_is_found(emulated: Device, body: str, value: float, said: str):
    run(body, zeros(1, dtype="int32"), np.float32(value), block=1, parameters="int* out, float x")
    assert emulated.problems() == ([f"kernel probe, thread (0, 0, 0) of block (0, 0, 0), {said}"] if said else [])


def test_all_shared_memory_of_a_block_together_is_bounded(emulated: Device):
    body = "extern __shared__ char own[]; __shared__ char part[40960]; part[threadIdx.x] = own[threadIdx.x] = 1;"
    run(body, shared=8192)
    assert emulated.problems() == []
    run(body, shared=8193)
    (problem,) = emulated.problems()
    assert problem.endswith("of block (0, 0, 0), needs more shared memory than there is")


@pytest.mark.parametrize("given", [(np.int32(1), 2), (np.int64(1), 2), (1, np.int32(2)), (np.int32(1),)])
def test_arguments_of_other_sizes_than_the_parameters_are_found(emulated: Device, given: tuple):
    run("out[0] = x + y;", zeros(1, dtype="int64"), *given, block=1, parameters="long long* out, int x, long long y")
    right = [np.asarray(a).itemsize for a in given] == [4, 8]
    said = "launch of kernel probe: the arguments have other sizes than its parameters"
    assert emulated.problems() == ([] if right else [said])
