"""DLPack: arrays handed to and taken from other libraries without a copy.

Source: dmlc/dlpack, *Python Specification for DLPack*.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from ..autograd import capsule
from ..autograd.tensor import Tensor
from ..devices import device as Device
from ..errors import ArgumentError, DeviceError, DTypeError

_CPU, _CUDA = 1, 2  # DLDeviceType


class _Capsule:
    """Wraps a bare capsule as an object of the protocol. Its device is read from the structure in the capsule."""

    def __init__(self, held: Any) -> None:
        self._capsule = held

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return capsule.device_of(self._capsule)


class _Writable:
    """NumPy marks arrays from old capsules read-only, because these have no flag for it. This makes them writable."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False), "strides": array.strides}


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's array; writing one writes the other.

    Args:
        ext_tensor: an object with ``__dlpack__`` (NumPy, PyTorch, CuPy, ...), or a capsule, which can be used once.
        device: where the tensor is to be; by default where the array is. On another device it is a copy.
        copy: True: always a copy. False: never, or an error.

    Raises:
        TypeError: neither of them.
        DTypeError: a dtype that is not offered.
        ValueError: negative strides; a copy is needed, and ``copy`` is False.
        DeviceError: memory that is neither the host's nor a GPU's.
    """
    found = _share(ext_tensor)
    where = found.device if device is None else Device(device)
    if where is found.device:
        return found.clone() if copy else found
    if copy is False:
        raise ArgumentError(f"from_dlpack: copy=False, but the array is on {found.device}: only a copy can be on {where}")
    return found.to(where)


def _share(ext_tensor: Any) -> Tensor:
    if isinstance(ext_tensor, Tensor):
        return ext_tensor.detach()
    if type(ext_tensor).__name__ == "PyCapsule":
        ext_tensor = _Capsule(ext_tensor)
    if not hasattr(ext_tensor, "__dlpack__"):
        raise TypeError(f"from_dlpack: expected an object with __dlpack__ or a capsule, found {type(ext_tensor).__name__}")
    kind, index = ext_tensor.__dlpack_device__()
    kind = int(kind)
    if kind not in (_CPU, _CUDA):
        raise DeviceError(f"from_dlpack: expected memory of the host (1) or of a GPU (2), found DLPack device type {kind}")
    where: Any = Device("cpu") if kind == _CPU else Device("cuda", index)
    try:
        if kind == _CPU:
            array, dtype = capsule.taken(ext_tensor)
        else:
            array = where.from_dlpack(ext_tensor)
            dtype = array.dtype
    except (BufferError, RuntimeError) as error:
        if "dtype" in str(error):
            raise DTypeError(f"from_dlpack: a dtype that is not offered; cast it first ({error})") from None
        raise
    dtypes.as_dtype(dtype)
    if kind == _CPU:
        array = dtypes.borrowed(array.view(dtype))
        if isinstance(ext_tensor, _Capsule):
            array = np.asarray(_Writable(array))
    return Tensor._wrap(array.view(dtype), where)


def to_dlpack(tensor: Tensor) -> Any:
    """A capsule over the tensor's memory, which stays alive while the capsule is used.

    Raises:
        BufferError: the tensor requires grad, or has no memory (device ``meta``).
    """
    return tensor.__dlpack__()
