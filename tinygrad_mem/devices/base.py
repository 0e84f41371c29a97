"""A device: its memory pool, its kernels, its random numbers, and copies from and to the host.

Arrays are ``numpy.ndarray`` on ``cpu`` and ``meta`` and ``cupy.ndarray`` on ``cuda``: views, strides and slices are theirs.
All other code uses devices through the few methods below.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import scope
from ..dtypes import uint8
from ..errors import ArgumentTypeError, DeviceError, NotOfferedError
from ..interrupts import reentrant, signal_safe
from .random import Generator

_instances: dict[tuple[str, int | None], device] = {}
_kinds: dict[str, type[device]] = {}
hosts: weakref.WeakValueDictionary[int, device] = weakref.WeakValueDictionary()  # those of devices, by the id of their pool
_opening = reentrant()  # one object a device, also where two threads ask for the first time at once


class device:
    """``device("cpu")``, ``device("cuda", 1)``, ``device("cuda:1")``, ``device("meta")``: one object per device.

    As a context manager it is the default device of new tensors in this thread. A GPU that this machine does not have may be
    named, as in PyTorch; using it raises a DeviceError.

    Raises:
        DeviceError: the name is not one of cpu, cuda[:i], meta.
    """

    kind: str  # whose code runs: "cpu", "cuda" or "meta"
    type: str  # the name that a program sees: in a dry run that of the device it stands for, otherwise the kind
    index: int | None
    if TYPE_CHECKING:
        # Kernels of all devices have the names and signatures of NumPy's: there an editor leads from ``ctx.kernels.relu``.
        from ..kernels import numpy as kernels
    xp: Any  # the array module, numpy or cupy: for views, never for arithmetic
    pool: Any
    generator: Generator
    like = "cpu"  # "cpu" or "cuda": whose kernels' workspaces are counted
    missing = ""  # why this machine has no such device
    lacking: np.dtype | None = None  # a dtype that this device does not offer
    remedy = ""  # the message for that dtype: what to do instead
    whose = ""  # in messages, after the name: tells devices of the same name apart
    host_of: device | None = None  # of a :meth:`host`: the device whose arrays are offloaded there

    def __new__(cls, type: str | device = "cpu", index: int | None = None) -> device:
        if isinstance(type, device):
            dry = scope.local.dry
            if dry is None or dry is type.host_of or (type.kind == "meta" and not type.whose):
                return type
            return dry
        if not isinstance(type, str):
            raise ArgumentTypeError(f"device: expected a name such as 'cpu' or 'cuda:0', found {type!r}")
        kind, _, number = type.partition(":")
        if kind not in _kinds or (number and not number.isdecimal()) or (number and index is not None):
            raise DeviceError(f"device: expected one of {', '.join(_kinds)} or cuda:i, found {type!r}")
        if number:
            index = int(number)
        if scope.local.dry is not None and kind != "meta":
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
        cls.kind = cls.type = kind

    @classmethod
    def canonical(cls, index: int | None) -> tuple[str, int | None]:
        """The (type, index) under which a device is known; ``cpu:0`` is ``cpu``."""
        if index not in (None, 0):
            raise DeviceError(f"device: there is one {cls.type} device, found index {index}")
        return cls.type, None

    def _open(self) -> None:
        """Load the kernels and the pool, once."""
        raise NotImplementedError

    def require(self) -> None:
        """Raise a ``DeviceError`` if this machine has no such device, as its first use would."""
        if self.missing:
            raise DeviceError(f"device {self}: {self.missing}")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised, C-contiguous array of this device's pool."""
        raise NotImplementedError

    def workspace(self, size: int) -> Any:
        """``size`` bytes of temporary memory for a kernel; ``None`` for 0."""
        if not size:
            return None
        before, scope.local.new_role = scope.local.new_role, "WORKSPACE"
        try:
            return self.empty((size,), uint8)
        finally:
            scope.local.new_role = before

    def refusal(self) -> NotOfferedError:
        """The error for an array of the dtype :attr:`lacking`."""
        return NotOfferedError(self.remedy)

    def upload(self, source: np.ndarray, out: Any) -> None:
        """Copy a host array into ``out``, of the same shape and dtype."""
        raise NotImplementedError

    def download(self, source: Any, out: np.ndarray) -> None:
        """Copy ``source`` into a host array of the same shape and dtype, and wait for it."""
        raise NotImplementedError

    def host(self, *, pinned: bool = False) -> device:
        """The memory of :meth:`Pool.host` as a device: for tensors that stay there, which the cpu computes."""
        raise NotImplementedError

    def block(self, array: Any) -> tuple[Any, int] | None:
        """The bytes of the block that holds ``array``, and the array's offset in it; ``None`` for memory of other libraries."""
        raise NotImplementedError

    def window(self, block: Any, offset: int, like: Any) -> Any:
        """An array over the bytes of a block, with the shape, strides and dtype of ``like``."""
        return np.ndarray(like.shape, like.dtype, block, offset, like.strides)

    def to_host(self, source: Any, out: np.ndarray) -> None:
        """Copy bytes into memory of :attr:`Pool.host`. Later work of the device finds the copy complete."""
        self.kernels.copy(source, out=out)

    def from_host(self, source: np.ndarray, out: Any, *, ahead: bool = False) -> Any:
        """Copy bytes back. With ``ahead`` the copy may overlap other work: pass the result to :meth:`wait` before use."""
        self.kernels.copy(source, out=out)

    def wait(self, copy: Any) -> None:
        """Make later work of the device wait for a copy that was made ahead."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done."""

    def address(self, array: Any) -> int | None:
        """The pool address of the block that holds ``array``, which listeners know; ``None`` for memory of other libraries."""
        raise NotImplementedError

    def sizes(self, array: Any) -> tuple[int, int]:
        """(bytes requested, bytes taken) for the block that holds ``array``; (0, 0) for memory of other libraries."""
        raise NotImplementedError

    def free_memory(self) -> int:
        """Bytes that the device could still give to its pool; 0 if the device reports no limit."""
        return 0

    def outside(self) -> int:
        """Bytes of a GPU's memory in use outside of the pool; 0 on other devices."""
        return 0

    def current(self) -> AbstractContextManager[Any]:
        """While open, kernels of this thread run on this device. Only GPUs other than the first need it."""
        return nullcontext()

    def listening(self) -> AbstractContextManager[Any]:
        """While open, mallocs and frees of this thread reach ``scope.listeners``. Our own pools always report them."""
        return nullcontext()

    def owns(self, array: Any) -> bool:
        """True if ``array`` has the array class of this device."""
        return isinstance(array, np.ndarray)

    def __enter__(self) -> device:
        scope.local.entered_devices.append(scope.local.default_device)
        scope.local.default_device = device(self)
        return scope.local.default_device

    @signal_safe
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


def _of_generator(generator: Generator) -> device:
    """The device on which a generator's numbers are drawn."""
    return device("cpu" if generator._device is None else generator._device)


Generator.device = property(_of_generator)


def opened() -> list[device]:
    """The devices in use so far; in a dry run, its one device. And their hosts."""
    found = [each for each in _instances.copy().values() if not each.missing] if scope.local.dry is None else [scope.local.dry]
    return [*found, *[host for host in list(hosts.values()) if host.host_of in found]]
