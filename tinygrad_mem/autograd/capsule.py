"""DLPack capsules of bfloat16. NumPy neither exports nor imports that dtype, so the byte that names the dtype is rewritten.

Source: dmlc/dlpack, ``dlpack.h``: ``DLManagedTensor`` and ``DLManagedTensorVersioned``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dtypes import bfloat16
from ..errors import DeviceError

_NAMES = {b"dltensor": 0, b"dltensor_versioned": 32}  # of capsules; where in the structure the tensor begins
_DEVICE, _CODE = 8, 20  # where in the tensor its device is, and the code of its dtype
_UNSIGNED, _BFLOAT = 1, 4  # DLDataTypeCode
_FLAGS, _IS_COPIED = 24, 2  # where in a versioned structure its flags are, and one of them


def _address(capsule: Any) -> int:
    """The address of the tensor in a capsule. Raises ValueError if the capsule was used before."""
    valid, pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = next((name for name in _NAMES if valid(capsule, name)), b"dltensor")
    return (pointer(capsule, name) or 0) + _NAMES[name]


def device_of(capsule: Any) -> tuple[int, int]:
    """DLPack's device type, and index."""
    kind, index = (ctypes.c_int32 * 2).from_address(_address(capsule) + _DEVICE)
    return kind, index


def _code(capsule: Any) -> Any:
    return ctypes.c_uint8.from_address(_address(capsule) + _CODE)


def mark_copied(capsule: Any) -> Any:
    """The capsule, which says that its memory is the consumer's own. One without a version cannot say it."""
    tensor = _address(capsule)
    if ctypes.pythonapi.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        ctypes.c_uint64.from_address(tensor - _NAMES[b"dltensor_versioned"] + _FLAGS).value |= _IS_COPIED
    return capsule


def given(array: Any, **options: Any) -> Any:
    """A capsule over ``array``."""
    if array.dtype != bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _code(capsule).value = _BFLOAT
    return capsule


class _Recoded:
    """Another library's bfloat16 array, whose capsules name it as unsigned 16-bit integers, which NumPy can import."""

    def __init__(self, array: Any) -> None:
        self._array, self.is_bfloat16 = array, False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._array.__dlpack__(**options)
        code = _code(capsule)
        self.is_bfloat16 = code.value == _BFLOAT
        if self.is_bfloat16:
            code.value = _UNSIGNED
        return capsule

    def __dlpack_device__(self) -> tuple:
        return self._array.__dlpack_device__()


def taken(array: Any) -> tuple[np.ndarray, np.dtype]:
    """A NumPy array over the memory of another library's host array, and the dtype to view it as."""
    recoded = _Recoded(array)
    found = np.from_dlpack(recoded)
    return found, bfloat16 if recoded.is_bfloat16 else found.dtype


def on_host(value: Any) -> np.ndarray:
    """Another library's host array as a NumPy array. Raises: DeviceError: it is, or has within it, an array on a GPU."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        found, dtype = taken(value)
        return found.view(dtype)
    try:
        return np.asarray(value)
    except TypeError as error:
        if "Implicit conversion to a NumPy array" not in str(error):
            raise
    raise DeviceError(
        "an array of CuPy's is on a GPU: as_tensor(array) shares its memory there, array.get() copies it to the host"
    )
