"""Devices: names, identity, the default device, and errors that say what this machine lacks."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem import scope
from tinygrad_mem.devices import CUDA, base, cuda_problem, opened
from tinygrad_mem.devices.meta import NullKernels
from tinygrad_mem.errors import DataDependenceError, DeviceError


def test_one_object_a_device():
    cpu = tm.device("cpu")
    assert tm.device("cpu") is tm.device("cpu:0") is tm.device("cpu", 0) is tm.device(cpu) is cpu
    assert tm.device("meta") is not cpu
    assert (cpu.type, cpu.index) == ("cpu", None)


def test_they_look_and_compare_like_names():
    assert str(tm.device("cpu")) == "cpu"
    assert repr(tm.device("meta")) == "device(type='meta')"
    assert tm.device("cpu") == "cpu"
    assert tm.device("cpu") != "meta"
    assert tm.device("cpu") != tm.device("meta")
    assert {tm.device("cpu"): 1}[tm.device("cpu:0")] == 1
    assert tm.ones(1).device == "cpu"


def test_pickling_and_copying_keep_identity():
    for name in ("cpu", "meta"):
        where = tm.device(name)
        assert pickle.loads(pickle.dumps(where)) is where
        assert copy.deepcopy(where) is where


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "", "CPU", "cpu:", "cpu:1.5"])
def test_unknown_names(name):
    if name == "cpu:":
        assert tm.device(name) is tm.device("cpu")
        return
    with pytest.raises(DeviceError, match=r"device: expected one of cpu, .*meta.*, found "):
        tm.device(name)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="expected a name such as 'cpu' or 'cuda:0', found 3"):
        tm.device(3)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="there is one cpu device, found index 1"):
        tm.device("cpu:1")
    with pytest.raises(DeviceError, match="found 'cuda:0'"):
        tm.device("cuda:0", 1)


@pytest.mark.skipif(cuda_problem() is None, reason="this machine has a GPU")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:9"])
def test_no_gpu_here(name):
    full = "cuda:0" if name == "cuda" else name
    found = tm.device(name)  # a name, as in PyTorch: files have it among their defaults
    assert (str(found), found.index, torch.device(full)) == (full, int(full[-1]), torch.device(str(found)))
    assert tm.device(name) == found == copy.deepcopy(found) == pickle.loads(pickle.dumps(found))
    assert found not in opened()
    uses = [lambda: tm.ones(1, device=name), lambda: tm.ones(1).to(found), lambda: tm.ones(1).cuda(found), lambda: found.pool]
    uses += [
        found.synchronize,
        found.free_memory,
        lambda: tm.nn.Linear(1, 1, device=found),
        lambda: tm.memory.memory_allocated(found),
    ]
    for use in uses:
        with pytest.raises(DeviceError, match=rf"device {full}: CuPy (finds no CUDA driver or no GPU|is not installed)"):
            use()
    with found, pytest.raises(DeviceError, match="CuPy"):
        tm.ones(1)
    assert not hasattr(found, "__array__")


@pytest.mark.cuda
def test_a_gpu_beyond_the_last():
    with pytest.raises(DeviceError, match=r"device cuda:99: this machine has \d+ GPU"):
        tm.ones(1, device="cuda:99")


def test_the_default_device_nests_and_is_the_threads_own():
    with tm.device("meta") as where:
        assert where is tm.device("meta")
        assert tm.ones(1).device == "meta"
        with tm.device("cpu"):
            assert tm.ones(1).device == "cpu"
            with tm.device("cpu"):
                pass
            assert tm.ones(1).device == "cpu"
        assert tm.ones(1).device == "meta"
        seen = []
        thread = threading.Thread(target=lambda: seen.append(str(tm.ones(1).device)))
        thread.start()
        thread.join()
        assert seen == ["cpu"]
    assert scope.local.default_device is None
    with pytest.raises(ZeroDivisionError), tm.device("meta"):
        raise ZeroDivisionError
    assert tm.ones(1).device == "cpu"


def test_addresses_are_those_that_listeners_hear():
    cpu = tm.device("cpu")
    array = cpu.empty((10, 10), np.dtype(np.float32))
    address = cpu.address(array)
    assert address is not None
    assert cpu.address(array[3:].T) == address
    assert cpu.address(np.ones(3)) is None
    assert cpu.address(cpu.empty((0,), np.dtype(np.float32))) is None


def test_upload_and_download():
    cpu = tm.device("cpu")
    array = cpu.empty((2, 3), np.dtype(np.float64))
    cpu.upload(np.arange(6.0).reshape(2, 3), array)
    out = np.empty((2, 3))
    cpu.download(array, out)
    np.testing.assert_array_equal(out, np.arange(6.0).reshape(2, 3))
    assert cpu.owns(array)
    cpu.synchronize()
    with cpu.current(), cpu.listening():
        pass


def test_meta_has_no_values():
    with pytest.raises(DataDependenceError, match=r"a tensor on device meta has a shape \(\(2, 3\)\) and no values"):
        tm.ones(2, 3, device="meta").tolist()


@pytest.mark.cuda
def test_without_nvidias_compiler_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch):
    """A driver is not enough: CuPy's wheel has no compiler, and each kernel would say so in words of its own."""
    import cupy

    def missing() -> None:
        raise RuntimeError("No such file: libnvrtc.so.12")

    monkeypatch.setattr(cupy.cuda.nvrtc, "getVersion", missing)
    assert not tm.cuda.is_available()
    monkeypatch.setattr(base, "_instances", {})
    with pytest.raises(DeviceError, match=r"device cuda:0: CuPy finds no NVRTC, .* pip install 'cupy-cuda12x\[ctk\]'"):
        tm.ones(1, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("kind", ["elementwise", "routine"])
def test_a_library_that_takes_memory_of_its_own_is_refused(kind: str):
    """``CUPY_ACCELERATORS=cutensor``: CuPy gives products and sums to it then."""
    from cupy._core import _accelerator

    given = getattr(_accelerator, f"get_{kind}_accelerators"), getattr(_accelerator, f"set_{kind}_accelerators")
    before = given[0]()
    try:
        given[1](["cub", "cutensor"])
        assert str(cuda_problem()).startswith("CuPy uses cuTENSOR here")
    finally:
        given[1](before)
    assert cuda_problem() is None


def test_null_kernels_do_nothing_but_exist():
    class Kernels:
        @staticmethod
        def add(*args):
            raise AssertionError

        @staticmethod
        def conv_workspace(n):
            return n * 2

    null = NullKernels(Kernels)
    assert null.add(1, 2) is None
    assert null.conv_workspace(4) == 8
    with pytest.raises(AttributeError, match="nope"):
        null.nope(1)


def test_the_names_that_cuda_uses_exist_in_cupy():
    """Without a GPU this is as far as one can look: the attributes are there, and take these arguments."""
    cupy = pytest.importorskip("cupy")
    from cupy.cuda import memory_hook

    assert issubclass(cupy.cuda.memory.OutOfMemoryError, Exception)
    for name in (
        "malloc",
        "used_bytes",
        "total_bytes",
        "free_bytes",
        "free_all_blocks",
        "n_free_blocks",
        "set_limit",
        "get_limit",
    ):
        assert callable(getattr(cupy.cuda.MemoryPool, name)), name
    for name in ("malloc_postprocess", "free_postprocess", "__enter__", "__exit__"):
        assert hasattr(memory_hook.MemoryHook, name), name
    assert callable(cupy.get_default_memory_pool)
    assert callable(cupy.cuda.runtime.getDeviceCount)
    assert {"__enter__", "__exit__", "synchronize"} <= set(dir(cupy.cuda.Device))
    for name in ("set", "get", "flags", "data", "base", "strides"):
        assert hasattr(cupy.ndarray, name), name
    assert hasattr(cupy.cuda.memory, "PooledMemory")
    assert hasattr(cupy.cuda.UnownedMemory, "_owner")
    assert CUDA.canonical(None) == ("cuda", 0)
    assert CUDA.canonical(3) == ("cuda", 3)
