"""Copies and pickles of tensors: shared memory is stored once, with the place of each tensor in it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..devices import device as Device
from ..devices import refuse_outside
from ..ops.base import address_of, root_of
from .storage import Storage


class Memory:
    """The memory of tensors that are copied or pickled together.

    Attributes:
        root: an array of all of the memory; the tensors' arrays are views of it.
        storage: its version counter.
    """

    def __init__(self, root: Any, device: Device) -> None:
        self.root, self.device, self.storage = root, device, Storage()

    @staticmethod
    def of(array: Any, device: Device) -> tuple[Memory, int, tuple, tuple, np.dtype]:
        """The memory of an array, and the array in it: offset in bytes, shape, strides, dtype."""
        root = root_of(array)
        if not root.flags.c_contiguous:  # another library's array, with gaps
            root = array = device.xp.ascontiguousarray(array)
        memory = _known.get(id(root))
        if memory is None:
            memory = _known[id(root)] = Memory(root, device)
        offset = address_of(array) - address_of(root) if array.size else 0
        return memory, offset, array.shape, array.strides, array.dtype

    def __reduce__(self) -> tuple:
        values = None
        if self.device.kind != "meta":
            values = np.empty(self.root.shape, self.root.dtype)
            self.device.download(self.root, values)
        return _load, (values, self.root.shape, self.root.dtype, str(self.device))

    def __deepcopy__(self, memo: dict) -> Memory:
        refuse_outside(self.device, "deepcopy")
        copy = Memory(self.device.empty(self.root.shape, self.root.dtype), self.device)
        self.device.kernels.copy(self.root, out=copy.root)
        return copy

    def array(self, offset: int, shape: tuple, strides: tuple, dtype: np.dtype) -> Any:
        """The array at that place."""
        root = self.root
        if shape == root.shape and strides == root.strides and dtype == root.dtype:
            return root
        if isinstance(root, np.ndarray):
            return np.ndarray(shape, dtype, root, offset, strides)
        line = root.reshape(-1).view(dtype)[offset // dtype.itemsize :]
        return self.device.xp.lib.stride_tricks.as_strided(line, shape, strides)


_known: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()  # one per array, while it is alive


def _load(values: Any, shape: tuple, dtype: np.dtype, device: str) -> Memory:
    where = Device(device)
    root = where.empty(shape, dtype)
    if values is not None:
        where.upload(values, root)
    return Memory(root, where)


def rebuild(
    kind: type, memory: Memory, offset: int, shape: tuple, strides: tuple, dtype: np.dtype, requires_grad: bool, extra: dict
) -> Any:
    """A tensor over ``memory``."""
    tensor = object.__new__(kind)
    tensor.device = memory.device
    tensor.array = memory.array(offset, shape, strides, dtype)
    tensor._storage = memory.storage
    tensor._requires_grad = requires_grad
    tensor.__dict__.update(extra)
    return tensor
