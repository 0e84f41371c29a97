"""cuda: CuPy's arrays, CuPy's pool, CuPy's stream. CuPy is imported when a cuda device is first used."""

from __future__ import annotations

import functools
import math
from types import MethodType
from typing import Any

import numpy as np

from .. import scope
from ..dtypes import bfloat16, check_borrowed
from ..errors import ADDRESSES, OutOfMemoryError
from .base import device
from .cuda_pool import CuPyPool, PoolEvents


def cuda_problem() -> str | None:
    """A sentence that says why there is no cuda device here; ``None`` if there is one."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install cupy-cuda12x"
    if not cupy.cuda.is_available():
        return "CuPy finds no CUDA driver or no GPU on this machine"
    try:
        cupy.cuda.nvrtc.getVersion()
    except Exception:  # the library is missing, or is a wrong one
        return "CuPy finds no NVRTC, NVIDIA's library that compiles its kernels: pip install 'cupy-cuda12x[ctk]'"
    from cupy._core import _accelerator  # type: ignore[attr-defined]

    used = (*_accelerator.get_elementwise_accelerators(), *_accelerator.get_routine_accelerators())
    if _accelerator.ACCELERATOR_CUTENSOR in used:
        return "CuPy uses cuTENSOR here, which takes memory that is not counted: remove cutensor from CUPY_ACCELERATORS"
    return None


class _KernelsOf:
    """The kernels, of one of several GPUs: CuPy launches only for the current one."""

    def __init__(self, gpu: Any, kernels: Any) -> None:
        self._gpu, self._kernels = gpu, kernels

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        if not callable(kernel):
            return kernel

        @functools.wraps(kernel)
        def on_this_gpu(*arguments: Any, **named: Any) -> Any:
            with self._gpu:
                return kernel(*arguments, **named)

        vars(self)[name] = on_this_gpu
        return on_this_gpu


class CUDA(device, kind="cuda"):
    """``device("cuda")`` is the first GPU, ``device("cuda:1")`` the second."""

    index: int
    like = "cuda"
    lacking = bfloat16  # CuPy has it elementwise; the kernels of products, sums and convolutions here know float16 alone
    remedy = "bfloat16 is on cpu and meta only: on cuda use float16, with a GradScaler"
    _aside: Any = None  # the stream of copies that are made ahead

    @classmethod
    def canonical(cls, index: int | None) -> tuple[str, int | None]:
        return "cuda", 0 if index is None else index

    def _open(self) -> None:
        self.missing = cuda_problem() or ""
        if self.missing:
            return
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        if self.index >= count:
            self.missing = f"this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}"
            return
        from ..kernels import cupy as kernels

        self.xp = self._cupy = cupy
        self._device = cupy.cuda.Device(self.index)
        self.kernels: Any = kernels if count == 1 else _KernelsOf(self._device, kernels)
        self._events = PoolEvents(self)
        with self._device:
            self.pool = CuPyPool(cupy.get_default_memory_pool(), self._device, str(self))

    def __getattr__(self, name: str) -> Any:
        """The attributes that only a present GPU has: kernels, pool, stream."""
        if not name.startswith("__"):
            self.require()
        raise AttributeError(f"device {self} has no attribute {name!r}")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        if dtype is self.lacking:
            raise self.refusal()
        size = math.prod(shape, start=dtype.itemsize)
        if size >= ADDRESSES:  # CuPy's 64-bit count could overflow to a small number
            raise self._out_of_memory(size)
        if scope.listeners:
            self._events.stay()
        with self._device:
            try:
                place = self.pool.malloc(size)
            except self._cupy.cuda.memory.OutOfMemoryError:
                raise self._out_of_memory(size) from None
            self.pool.notice()
            if size:
                place = self._events.reporting(place.mem)
            return self._cupy.ndarray(shape, dtype, place)

    def from_dlpack(self, source: Any) -> Any:
        """As :meth:`sharing`, for an object with ``__dlpack__``."""
        if self.owns(source):
            return self.sharing(source)
        with self._device:
            return self.sharing(self._cupy.from_dlpack(source))

    def sharing(self, array: Any) -> Any:
        """An array over the memory of a program's own CuPy array, whose end is reported. If the pool gave it, it is counted.

        Raises:
            DTypeError, ArgumentError: as ``check_borrowed``.
        """
        check_borrowed(array, "cupy")
        if array.dtype == self.lacking:
            raise self.refusal()
        memory = array.data.mem
        place = self._events.reporting(memory) + (array.data.ptr - memory.ptr)
        return self._cupy.ndarray(array.shape, array.dtype, place, strides=array.strides)

    def gpu_of(self, array: Any) -> int:
        """The number of the GPU that has another library's array, which may be CuPy's."""
        if self.owns(array):
            return array.device.id
        address = array.__cuda_array_interface__["data"][0]  # 0 of an empty one
        return self._cupy.cuda.runtime.pointerGetAttributes(address).device if address else self.index

    def _out_of_memory(self, size: int) -> OutOfMemoryError:
        pool = self.pool
        found = pool.used_bytes(), pool.total_bytes(), pool.get_limit()
        free = found[1] - found[0], None  # CuPy does not report the largest piece
        return OutOfMemoryError(str(self), size, *found, free, scope.ask_autopsy(pool, size))

    def upload(self, source: np.ndarray, out: Any) -> None:
        with self._device:
            if out.flags.c_contiguous:
                out.set(source.astype(out.dtype, copy=False))
                return
            staged = self._staged(out)
            staged.set(source.astype(out.dtype, copy=False))
            self.kernels.copy(staged, out=out)

    def download(self, source: Any, out: np.ndarray) -> None:
        with self._device:
            if not source.flags.c_contiguous:
                staged = self._staged(source)
                self.kernels.copy(source, out=staged)
                source = staged
            out[...] = source.get()

    def _staged(self, array: Any) -> Any:
        """A contiguous buffer for copies between ``array`` and the host."""
        work = self.workspace(self.kernels.staging_workspace(array))
        return self._cupy.ndarray(array.shape, array.dtype, None if work is None else work.data)

    def address(self, array: Any) -> int | None:
        piece = self._piece(array)
        return None if piece is None else piece.ptr

    def _piece(self, array: Any) -> Any:
        """The piece of the pool in which ``array`` lies; None: it lies in other memory, also that of another pool of CuPy's."""
        memory = array.data.mem
        owner = getattr(memory, "_owner", None)
        if isinstance(owner, MethodType):  # of PoolEvents.reporting
            memory = owner.__self__
        return memory if getattr(memory, "pool", None) is self.pool.mark else None

    def sizes(self, array: Any) -> tuple[int, int]:
        piece = self._piece(array)
        size = 0 if piece is None else piece.size
        return size, size  # CuPy keeps the rounded size only

    def free_memory(self) -> int:
        with self._device:
            return self._cupy.cuda.runtime.memGetInfo()[0] + self.pool.free_bytes()

    def outside(self) -> int:
        with self._device:
            free, total = self._cupy.cuda.runtime.memGetInfo()
        return max(total - free - self.pool.total_bytes(), 0)  # another thread may allocate between the two questions

    def current(self) -> Any:
        if scope.listeners:
            self._events.stay()
        return self._cupy.cuda.Device(self.index)

    def listening(self) -> Any:
        return self._events

    def block(self, array: Any) -> tuple[Any, int] | None:
        memory = array.data.mem
        if self.address(array) is None:
            return None
        start = self._cupy.cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray((memory.size,), np.uint8, start), array.data.ptr - memory.ptr

    def window(self, block: Any, offset: int, like: Any) -> Any:
        return self._cupy.ndarray(like.shape, like.dtype, block.data + offset, strides=like.strides)

    def host(self, *, pinned: bool = False) -> Any:
        cpu: Any = device("cpu")
        return cpu.over_pool(self.pool.host(pinned=pinned), self)

    def to_host(self, source: Any, out: np.ndarray) -> None:
        with self._device:  # in the order of the stream: the source may be freed at once
            source.get(out=out, blocking=False)

    def from_host(self, source: np.ndarray, out: Any, *, ahead: bool = False) -> Any:
        with self._device:
            now = self._cupy.cuda.get_current_stream()
            if not ahead:
                out.set(source, stream=now)
                return None
            if self._aside is None:
                self._aside = self._cupy.cuda.Stream(non_blocking=True)
            self._aside.wait_event(now.record())  # waits for earlier users of this memory, and for the copy to the host
            out.set(source, stream=self._aside)
            return self._aside.record()

    def wait(self, copy: Any) -> None:
        if copy is not None:
            with self._device:
                self._cupy.cuda.get_current_stream().wait_event(copy)

    def synchronize(self) -> None:
        self._device.synchronize()

    def owns(self, array: Any) -> bool:
        return isinstance(array, self._cupy.ndarray)
