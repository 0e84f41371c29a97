"""Arrays to and from other libraries, without copies, whoever dies first."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
import torch

import tinygrad_mem as tm
from tinygrad_mem.errors import ArgumentError, DeviceError, DTypeError, GraphError

POOL = tm.device("cpu").pool
DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_ways_for_every_dtype_with_numpy_and_torch(dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]], dtype)
    for source in (array, torch.tensor(array)):
        t = tm.from_dlpack(source)
        assert t.dtype == dtype
        np.testing.assert_array_equal(t.numpy(), array)
        np.testing.assert_array_equal(np.from_dlpack(t), array)
        np.testing.assert_array_equal(torch.from_dlpack(t).numpy(), array)


def test_memory_is_shared():
    theirs = torch.zeros(3)
    mine = tm.from_dlpack(theirs)
    mine += 1
    assert theirs.tolist() == [1.0, 1.0, 1.0]
    back = torch.from_dlpack(mine)
    back += 1
    assert mine.tolist() == theirs.tolist() == [2.0, 2.0, 2.0]
    array = np.zeros(2)
    tm.from_dlpack(array).fill_(5)
    assert array.tolist() == [5.0, 5.0]


def test_strides_and_offsets_survive():
    theirs = torch.arange(12.0).reshape(3, 4)[1:, ::2].t()
    mine = tm.from_dlpack(theirs)
    assert mine.stride() == theirs.stride()
    assert mine.tolist() == theirs.tolist()
    assert torch.from_dlpack(mine).stride() == theirs.stride()


def test_the_exporter_may_die_first():
    before = POOL.used_bytes()
    mine = tm.ones(1000)
    theirs = torch.from_dlpack(mine)
    del mine
    gc.collect()
    assert POOL.used_bytes() == before + 4096
    assert theirs.sum().item() == 1000
    del theirs
    assert POOL.used_bytes() == before
    source = torch.ones(1000)
    kept = tm.from_dlpack(source)[10:]
    del source
    gc.collect()
    assert kept.sum().item() == 990


def test_capsules():
    a = tm.ones(3)
    theirs = torch.utils.dlpack.from_dlpack(tm.utils.dlpack.to_dlpack(a))
    theirs.add_(1)
    assert a.tolist() == [2.0, 2.0, 2.0]
    mine = tm.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(theirs))
    mine.mul_(2)
    assert a.tolist() == [4.0, 4.0, 4.0]
    capsule = a.__dlpack__()
    tm.from_dlpack(capsule)
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        tm.from_dlpack(capsule)
    before = POOL.used_bytes()
    unused = tm.ones(3).__dlpack__()
    assert POOL.used_bytes() == before + 512
    del unused
    assert POOL.used_bytes() == before


def test_refused():
    with pytest.raises(TypeError, match="expected an object with __dlpack__ or a capsule, found list"):
        tm.from_dlpack([1])
    with pytest.raises(DTypeError, match="not offered"):
        tm.from_dlpack(torch.zeros(2, dtype=torch.float8_e5m2))
    with pytest.raises(DTypeError, match="found dtype\\('complex64'\\)"):
        tm.from_dlpack(np.zeros(2, np.complex64))
    leaf = tm.ones(2, requires_grad=True)
    with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
        np.from_dlpack(leaf)
    with pytest.raises(BufferError, match="Can't export tensors that require gradient"):
        tm.utils.dlpack.to_dlpack(leaf * 2)
    with pytest.raises(BufferError, match="has no values"):
        tm.utils.dlpack.to_dlpack(tm.ones(2, device="meta"))

    class Elsewhere:
        def __dlpack__(self):
            raise AssertionError

        def __dlpack_device__(self):
            return 8, 0

    with pytest.raises(DeviceError, match="found DLPack device type 8"):
        tm.from_dlpack(Elsewhere())


def flags(capsule: Any) -> int:
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_uint64.from_address((pointer(capsule, b"dltensor_versioned") or 0) + 24).value


COPIED = 2  # DLPACK_FLAG_BITMASK_IS_COPIED


def test_copies_by_the_protocol(dev: str):
    t = tm.arange(6.0, device=dev).view(2, 3)
    host, wrong = (1, 0), (4, 0)
    for options in ({}, {"max_version": (1, 0)}, {"max_version": (1, 0), "dl_device": t.__dlpack_device__()}):
        for copy in (None, False, True):
            capsule = t.T.__dlpack__(copy=copy, **options)
            if options:
                assert bool(flags(capsule) & COPIED) == bool(copy)
            mine = tm.from_dlpack(capsule)
            assert mine.device == t.device
            assert (mine.data_ptr() == t.data_ptr()) == (not copy)
            assert mine.tolist() == t.T.tolist()
    for copy in (None, True):
        there = tm.from_dlpack(t.__dlpack__(dl_device=host, copy=copy))
        assert (there.device.type, there.tolist()) == ("cpu", t.tolist())
    assert np.from_dlpack(t, device="cpu").tolist() == t.tolist()
    if dev != "cpu":
        with pytest.raises(ValueError, match="without copy"):
            t.__dlpack__(dl_device=host, copy=False)
    with pytest.raises((BufferError, ValueError), match="unsupported device"):  # ValueError: NumPy 2.2
        t.__dlpack__(dl_device=wrong)


def test_from_dlpack_copies_and_moves(dev: str):
    t = tm.arange(3.0, device=dev)
    for source in (t, t.array, t.__dlpack__):
        made = tm.from_dlpack(source() if callable(source) else source, copy=True)
        assert (made.data_ptr() != t.data_ptr(), made.device, made.tolist()) == (True, t.device, [0, 1, 2])
        there = tm.from_dlpack(source() if callable(source) else source, device="cpu")
        assert (there.device.type, there.tolist()) == ("cpu", [0, 1, 2])
    assert tm.from_dlpack(t, device=dev, copy=False).data_ptr() == t.data_ptr()
    if dev != "cpu":
        with pytest.raises(ArgumentError, match="copy=False, but the array is on cuda:0: only a copy can be on cpu"):
            tm.from_dlpack(t, device="cpu", copy=False)


@pytest.mark.cuda
def test_streams_of_the_consumer(gpu_pool: Any):
    """1 is the default stream; a consumer's own stream waits for what was given before; -1 asks for no wait."""
    import cupy

    side = cupy.cuda.Stream(non_blocking=True)
    t = tm.zeros(1000, device="cuda")
    for stream in (None, 1, 2, -1, side.ptr):
        t += 1
        assert tm.from_dlpack(t.__dlpack__(stream=stream)).data_ptr() == t.data_ptr()
    t += 1
    mine = tm.from_dlpack(t.__dlpack__(stream=side.ptr))
    with side:
        assert (mine * 2).tolist() == [12.0] * 1000
    for stream in (-2, "a"):
        with pytest.raises(ValueError, match="the valid stream for the DLPack protocol"):
            t.__dlpack__(stream=stream)
    del mine
    assert gpu_pool.used_bytes() == 4096


def test_numpys_conversions():
    t = tm.ones(2)
    array = np.asarray(t)
    assert array.ctypes.data == t.data_ptr()
    array[0] = 5
    assert t.tolist() == [5.0, 1.0]
    assert np.array(t).ctypes.data != t.data_ptr()
    assert np.asarray(t, np.float64).dtype == np.float64
    with pytest.raises(GraphError, match=r"Can't call numpy\(\) on Tensor that requires grad"):
        np.asarray(tm.ones(2, requires_grad=True))
    with pytest.raises(ValueError, match="copy"):
        np.asarray(t, np.float64, copy=False)


def test_pytorchs_tensors_become_ours():
    theirs = torch.tensor([1.0, 2.0])
    for mine in (tm.tensor(theirs), tm.as_tensor(theirs), tm.from_dlpack(theirs)):
        assert mine.tolist() == [1.0, 2.0]
        assert mine.dtype == tm.float32


def test_cuda_array_interface_is_absent_elsewhere():
    assert not hasattr(tm.ones(2), "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="the tensor is on cpu, not on a GPU"):
        tm.ones(2).__cuda_array_interface__  # noqa: B018
