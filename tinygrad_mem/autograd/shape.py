"""Shape, dtype, bytes and device of a tensor: everything that needs no tape."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from ..devices import device as Device
from ..dtypes import FLOATING
from ..errors import DimensionError
from ..ops.base import address_of, root_of


class Size(tuple):
    """A shape: a tuple of ints with ``numel()``."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Size(found) if isinstance(key, slice) else found

    def __add__(self, other: tuple) -> Size:
        return Size(tuple.__add__(self, other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: tuple) -> Size:
        return Size(other) + self

    def __mul__(self, times: Any) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"Size({list(self)})"


def normalize_dim(dim: int, ndim: int) -> int:
    """``dim`` as a number that is not negative.

    Raises:
        DimensionError: it is outside of ``[-ndim, ndim - 1]`` (a 0-d tensor takes -1 and 0).
    """
    bound, dim = max(ndim, 1), operator.index(dim)
    if not -bound <= dim < bound:
        raise DimensionError(f"Dimension out of range (expected to be in range of [{-bound}, {bound - 1}], but got {dim})")
    return dim % bound


class Shaped:
    """An array on a device. Strides and offsets count elements, as in PyTorch, not bytes."""

    array: Any
    device: Device

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions."""
        return Size(self.array.shape)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one dimension."""
        if dim is None:
            return Size(self.array.shape)
        return self.array.shape[normalize_dim(dim, self.array.ndim)]

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of the elements."""
        return self.array.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    def dim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    ndimension = dim

    def numel(self) -> int:
        """The number of elements."""
        return int(self.array.size)

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.array.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.array.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements. A view keeps the whole memory of its base alive, which may be more."""
        return int(self.array.nbytes)

    def stride(self, dim: int | None = None) -> Any:
        """The step to the next element along each dimension (or one), in elements."""
        strides = [s // self.array.itemsize for s in self.array.strides]
        step = 1
        for i in reversed(range(self.ndim)):  # where NumPy has 0, PyTorch has the step over what follows
            if strides[i] == 0 and (self.shape[i] == 1 or self.array.size == 0):
                strides[i] = step
            step = strides[i] * max(self.shape[i], 1)
        return tuple(strides) if dim is None else strides[normalize_dim(dim, self.ndim)]

    def storage_offset(self) -> int:
        """The position of the first element in the shared memory, in elements. A view without elements may begin anywhere."""
        root = root_of(self.array)
        return (self.data_ptr() - address_of(root)) // self.array.itemsize

    def data_ptr(self) -> int:
        """The address of the first element."""
        return address_of(self.array)

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True if the elements are in row-major order without gaps; with ``"channels_last"``, in that order."""
        if memory_format in ("channels_last", "channels_last_3d"):
            wanted = 4 if memory_format == "channels_last" else 5
            return self.array.ndim == wanted and bool(self.array.transpose(0, *range(2, wanted), 1).flags.c_contiguous)
        return bool(self.array.flags.c_contiguous)

    def is_floating_point(self) -> bool:
        """True if the dtype is floating."""
        return self.array.dtype.kind in FLOATING

    def is_complex(self) -> bool:
        """Complex dtypes are not offered: always False."""
        return False

    @property
    def is_cuda(self) -> bool:
        """True if the tensor is on a GPU."""
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """True if the tensor is in host memory."""
        return self.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """True if it has a shape and no values: it is on device ``meta``, or in a prediction, whatever its device is called."""
        return self.device.kind == "meta"

    is_xpu = is_mps = is_xla = is_mkldnn = is_quantized = is_nested = is_sparse = False
    """Always False: such devices and tensors are not offered. A sparse gradient is a ``SparseTensor``."""

    def get_device(self) -> int:
        """The index of the GPU; -1 if it is not on one."""
        return -1 if self.device.index is None else self.device.index
