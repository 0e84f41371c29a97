"""DLPack's capsules where NumPy has none: it neither gives nor takes bfloat16, so the one byte that names it is rewritten.

Source: dmlc/dlpack, ``dlpack.h``: ``DLManagedTensor`` and ``DLManagedTensorVersioned``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..dtypes import as_dtype, bfloat16, refuse_complex
from ..errors import ArgumentError

_NAMES = {b"dltensor": 0, b"dltensor_versioned": 32}  # of capsules; where in the structure the tensor begins
_DEVICE, _CODE = 8, 20  # where in the tensor its device is, and the code of its dtype
_UNSIGNED, _BFLOAT = 1, 4  # DLDataTypeCode


def _address(capsule: Any) -> int:
    """The address of the tensor in a capsule. ValueError: the capsule was used before."""
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


def given(array: Any, **options: Any) -> Any:
    """A capsule over ``array``."""
    if array.dtype != bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(np.uint16).__dlpack__(**options)
    _code(capsule).value = _BFLOAT
    return capsule


class _Recoded:
    """Somebody's array, whose capsules call bfloat16 unsigned numbers of 16 bits."""

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
    """A NumPy array over the memory of somebody's array on the host, and the dtype that it is to be seen in."""
    recoded = _Recoded(array)
    found = np.from_dlpack(recoded)
    return found, bfloat16 if recoded.is_bfloat16 else found.dtype


def borrowed(array: np.ndarray) -> np.ndarray:
    """Somebody's array, as a plain one that a tensor may lie over.

    Raises:
        DTypeError: its dtype is not offered.
        ArgumentError: its bytes are in another order than this machine's; a stride is negative, or no whole number of elements.
    """
    dtype = as_dtype(array.dtype)
    if not array.dtype.isnative:
        raise ArgumentError(
            f"given numpy array has byte order different from the native byte order: {array.dtype.str!r}. "
            f"Use tensor(array), which converts its copy, or array.astype({dtype.name!r})."
        )
    if any(stride < 0 for stride in array.strides):
        raise ArgumentError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not currently "
            "supported. Make a copy of your array with array.copy()."
        )
    if any(stride % dtype.itemsize for stride in array.strides):
        raise ArgumentError(
            f"given numpy array strides not a multiple of the element byte size ({dtype.itemsize}): found {array.strides}. "
            "Make a copy of your array with array.copy()."
        )
    return array if type(array) is np.ndarray else array.view(np.ndarray)


FOREIGN = (np.ndarray, complex, np.complexfloating)
"""What an op may be given that is neither a tensor nor one of its numbers."""


def admitted(value: Any) -> np.ndarray:
    """An operand that is :data:`FOREIGN`, as an op takes it. Raises: as :func:`borrowed`; DTypeError: a complex number."""
    refuse_complex(value)
    return borrowed(value)


def on_host(value: Any) -> np.ndarray:
    """Anybody's array on the host as NumPy's; those of bfloat16 have no other way than this one."""
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        found, dtype = taken(value)
        return found.view(dtype)
    return np.asarray(value)
