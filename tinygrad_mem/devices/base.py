"""A device: somewhere to allocate, kernels that compute there, a pool that counts, random numbers, a way in and out.

Arrays are ``numpy.ndarray`` on ``cpu`` and ``meta`` and ``cupy.ndarray`` on ``cuda``: views, strides and slices are theirs.
Everything above this room works on any of them through the few methods below.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from .. import scope
from ..dtypes import uint8
from ..errors import ArgumentTypeError, DeviceError, NotOfferedError
from ..interrupts import covered
from .random import Generator

_instances: dict[tuple[str, int | None], device] = {}
_kinds: dict[str, type[device]] = {}
_opening = threading.RLock()  # one object a device, also where two threads ask for the first time at once


class device:
    """``device("cpu")``, ``device("cuda", 1)``, ``device("cuda:1")``, ``device("meta")``: one object per device.

    As a context manager it is the default device of new tensors, for this thread. A GPU that this machine has not may be named,
    as in PyTorch; whatever is asked of it raises a DeviceError.

    Raises:
        DeviceError: the name is not one of cpu, cuda[:i], meta.
    """

    type: str
    index: int | None
    kernels: Any
    xp: Any  # the array module, numpy or cupy: for views, never for arithmetic
    pool: Any
    generator: Generator
    like = "cpu"  # whose kernels say what workspaces they want, "cpu" or "cuda"
    missing = ""  # why this machine has no such device
    lacking: np.dtype | None = None  # a dtype that cannot be computed with here
    remedy = ""  # that it cannot, and what to do instead
    whose = ""  # in messages, after its name: what tells it from another device of the same name

    def __new__(cls, type: str | device = "cpu", index: int | None = None) -> device:
        if isinstance(type, device):
            return scope.local.dry or type
        if not isinstance(type, str):
            raise ArgumentTypeError(f"device: expected a name such as 'cpu' or 'cuda:0', found {type!r}")
        kind, _, number = type.partition(":")
        if kind not in _kinds or (number and not number.isdecimal()) or (number and index is not None):
            raise DeviceError(f"device: expected one of {', '.join(_kinds)} or cuda:i, found {type!r}")
        if number:
            index = int(number)
        if scope.local.dry is not None:
            return scope.local.dry
        key = _kinds[kind].canonical(index)
        known = _instances.get(key)
        if known is None or known.missing:
            with _opening:
                known = _instances.get(key)
                if known is None or known.missing:
                    self = known or object.__new__(_kinds[kind])
                    self.type, self.index = key
                    self._open()
                    self.generator = Generator(self)
                    _instances[key] = self
        return _instances[key]

    def __init_subclass__(cls, *, kind: str) -> None:
        _kinds[kind] = cls
        cls.type = kind

    @classmethod
    def canonical(cls, index: int | None) -> tuple[str, int | None]:
        """The (type, index) under which a device is known; ``cpu:0`` is ``cpu``."""
        if index not in (None, 0):
            raise DeviceError(f"device: there is one {cls.type} device, found index {index}")
        return cls.type, None

    def _open(self) -> None:
        """Find the kernels and the pool, once."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised, C-contiguous array of this device's pool."""
        raise NotImplementedError

    def workspace(self, size: int) -> Any:
        """``size`` bytes that a kernel wants for itself while it runs; ``None`` for 0."""
        if not size:
            return None
        before, scope.local.birth = scope.local.birth, "WORKSPACE"
        try:
            return self.empty((size,), uint8)
        finally:
            scope.local.birth = before

    def refusal(self) -> NotOfferedError:
        """The error for an array of the dtype that is :attr:`lacking`."""
        return NotOfferedError(self.remedy)

    def upload(self, source: np.ndarray, out: Any) -> None:
        """Copy a host array into ``out``, of the same shape and dtype."""
        raise NotImplementedError

    def download(self, source: Any, out: np.ndarray) -> None:
        """Copy ``source`` into a host array of the same shape and dtype, and wait for it."""
        raise NotImplementedError

    def block(self, array: Any) -> tuple[Any, int] | None:
        """The bytes of the block that ``array`` lies in, flat, and where in them it begins; ``None`` for memory of others."""
        raise NotImplementedError

    def window(self, block: Any, offset: int, like: Any) -> Any:
        """An array over a block's bytes, with the shape, strides and dtype of ``like``."""
        return np.ndarray(like.shape, like.dtype, block, offset, like.strides)

    def to_host(self, source: Any, out: np.ndarray) -> None:
        """Copy bytes into memory of :attr:`Pool.host`: done before anything that is asked of the device later."""
        self.kernels.copy(source, out=out)

    def from_host(self, source: np.ndarray, out: Any, *, ahead: bool = False) -> Any:
        """Copy bytes back. With ``ahead`` it may happen beside other work: give what is returned to :meth:`wait` before use."""
        self.kernels.copy(source, out=out)

    def wait(self, copy: Any) -> None:
        """Work that is given to the device from now on finds a copy made ahead complete."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def address(self, array: Any) -> int | None:
        """The pool address of the block that ``array`` shows, as listeners hear it; ``None`` for memory of others."""
        raise NotImplementedError

    def sizes(self, array: Any) -> tuple[int, int]:
        """Bytes asked for, and bytes taken from the pool, of the block that ``array`` shows; (0, 0) for memory of others."""
        raise NotImplementedError

    def free_memory(self) -> int:
        """Bytes that the device could still give to its pool; 0 if the device reports no limit."""
        return 0

    def outside(self) -> int:
        """Bytes of a GPU's memory that are taken, and not by the pool; 0 where the machine's memory is not the device's."""
        return 0

    def current(self) -> AbstractContextManager[Any]:
        """While open, kernels of this thread run on this device: only GPUs beyond the first need it."""
        return nullcontext()

    def listening(self) -> AbstractContextManager[Any]:
        """While open, this thread's mallocs and frees reach ``scope.listeners``; pools of our own always tell them."""
        return nullcontext()

    def owns(self, array: Any) -> bool:
        """Whether ``array`` is of this device's array class."""
        return isinstance(array, np.ndarray)

    def __enter__(self) -> device:
        _entered().append(scope.local.default_device)
        scope.local.default_device = scope.local.dry or self
        return scope.local.default_device

    @covered
    def __exit__(self, *exc: object) -> None:
        try:
            entered = scope.local.entered_devices
        finally:
            scope.local.default_device = scope.local.entered_devices[-1]
        entered.pop()

    def __repr__(self) -> str:
        return f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self) -> tuple:
        return device, (str(self),)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and str(self) == other)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


def opened() -> list[device]:
    """The devices that were asked for so far; in a dry run, the one that there is."""
    return [each for each in _instances.copy().values() if not each.missing] if scope.local.dry is None else [scope.local.dry]


def _entered() -> list:
    """The default devices that ``with device:`` blocks of this thread will restore."""
    if not hasattr(scope.local, "entered_devices"):
        scope.local.entered_devices = []
    return scope.local.entered_devices
