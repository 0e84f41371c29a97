"""Conversion of tensors to Python numbers, NumPy arrays, arrays of other libraries, text and pickles."""

from __future__ import annotations

from copy import deepcopy
from numbers import Number
from typing import Any, Self

import numpy as np

from ..devices import device as Device
from ..dtypes import borrowed, plain
from ..errors import DeviceError, DTypeError, GraphError, ShapeError
from ..ops.base import address_of
from ..scope import local
from .capsule import given, mark_copied
from .formatting import format_tensor
from .pickling import Memory, rebuild
from .shape import Shaped
from .unknown import Unknown


class Exchange(Shaped):
    """The methods that read values."""

    _grad: Any
    _storage: Any
    requires_grad: Any
    _node: Any
    _wrap: Any

    def _host(self) -> np.ndarray:
        """The values in host memory: the array itself for a cpu tensor, else a copy."""
        if type(self.array) is np.ndarray and self.device.kind == "cpu":
            return self.array
        out = np.empty(self.array.shape, self.array.dtype)
        self.device.download(self.array, out)
        return out

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The values as a NumPy array that shares the memory of a cpu tensor.

        Args:
            force: detach it, and copy it to the host if needed.

        Raises:
            GraphError: it requires grad, and grad mode is on; use ``detach().numpy()``.
            DeviceError: it is on a GPU; use ``cpu().numpy()``.
        """
        if not force:
            if self.requires_grad and local.grad_enabled:
                raise GraphError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
            if self.device.kind == "cuda":
                raise DeviceError("can't convert cuda device tensor to numpy. Use Tensor.cpu() to copy it to the host first.")
        return self._host()

    def item(self) -> Any:
        """The one element, as a Python number. In a dry run (``memory.predict``) only numbers that the program gave are known.

        Raises:
            ShapeError: there is not exactly one element.
            DataDependenceError: on device ``meta``.
        """
        if self.array.size != 1:
            raise ShapeError(f"a Tensor with {self.array.size} elements cannot be converted to Scalar")
        if local.dry is not None and local.dry in (self.device, self.device.host_of):
            known = self._constant()
            return Unknown.of(self.array.dtype.kind) if known is None else known.item()
        return self._host().item()

    def tolist(self) -> Any:
        """The values as (nested) lists of Python numbers."""
        return self._known_values().tolist()

    def _constant(self) -> np.ndarray | None:
        """In a dry run: the values, if the program gave them as numbers and nothing was written there since."""
        if local.dry is None or self._storage is None or self._storage.constant is None:
            return None
        version, start, values = self._storage.constant
        if version != self._storage.version:
            return None
        if not self.array.size:  # an empty view may begin beyond the end
            return np.empty(self.array.shape, self.array.dtype)
        offset = address_of(self.array) - start
        return np.ndarray(self.array.shape, self.array.dtype, values, offset, self.array.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        """The result of a NumPy function of this tensor, as a tensor. Raises: DTypeError: the result's dtype is not offered."""
        return type(self)._wrap(borrowed(array), Device("cpu"))

    @property
    def __cuda_array_interface__(self) -> dict:
        if self.device.kind != "cuda":
            raise AttributeError(f"__cuda_array_interface__: the tensor is on {self.device}, not on a GPU")
        if self.requires_grad:
            raise GraphError("Can't get __cuda_array_interface__ on Tensor that requires grad. Use tensor.detach() first.")
        return self.array.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.is_meta:
            raise BufferError("a tensor on meta or in a prediction has no values: there is nothing to export")
        stays = options.get("dl_device") in (None, self.__dlpack_device__())
        with self.device.current():
            if not (self.device.kind == "cuda" and options.get("copy") and stays):
                return given(self.array, **options)
            array = self.device.empty(self.array.shape, self.array.dtype)  # CuPy makes copies for the host alone
            self.device.kernels.copy(self.array, out=array)
            return mark_copied(given(array, **{**options, "copy": None}))

    def __dlpack_device__(self) -> tuple:
        return self.array.__dlpack_device__()

    def __len__(self) -> int:
        if not self.array.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.array.shape[0]

    def __bool__(self) -> bool:
        if self.array.size != 1:
            what = "no values" if self.array.size == 0 else "more than one value"
            raise ShapeError(f"Boolean value of Tensor with {what} is ambiguous; use .any() or .all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.array.dtype.kind not in "iub":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __contains__(self, element: Any) -> bool:
        if not isinstance(element, (Exchange, Number, Unknown)):
            raise DTypeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(element)}.")
        wanted = element._known_values() if isinstance(element, Exchange) else plain(element)
        return bool((self._known_values() == wanted).any())

    def _known_values(self) -> np.ndarray:
        """The values on the host; in a dry run, if they are known."""
        known = self._constant()
        return self._host() if known is None else known

    def __format__(self, spec: str) -> str:
        unreadable = self.is_meta and local.dry is None
        return object.__format__(self, spec) if self.array.ndim or unreadable else format(self.item(), spec)

    def __repr__(self) -> str:
        return format_tensor(self)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        if self.requires_grad and self._node is not None:
            raise GraphError(
                "Only Tensors created explicitly by the user (leaves) can be pickled or deep-copied; detach() first"
            )
        extra = {name: value for name, value in self.__dict__.items() if name not in _CORE}  # of a user or a subclass
        return rebuild, (type(self), *Memory.of(self.array, self.device), self.requires_grad, extra)

    def __deepcopy__(self, memo: dict) -> Self:
        if id(self) in memo:
            return memo[id(self)]
        copy: Any = self._deepcopy(memo)
        if self._grad is not None:
            copy.grad = self._grad.__deepcopy__(memo)
        return copy

    def _deepcopy(self, memo: dict) -> Self:
        """A copy without the gradient. Tensors that share memory share it in the copy too."""
        _, (kind, memory, *rest) = self.__reduce_ex__(4)
        copy = memo[id(self)] = rebuild(kind, deepcopy(memory, memo), *rest)
        return copy


_CORE = {"array", "device", "_grad", "_requires_grad", "_node", "_index", "_view", "_storage", "_hooks", "_post_accumulate"}
_CORE |= {"_retains_grad", "_inference", "_off_the_record", "_twins", "_stepped_in_backward"}
